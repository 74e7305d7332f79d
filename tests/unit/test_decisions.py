"""Decisions on commands that need no server."""

from __future__ import annotations

import msgpack
import pytest

from command_bus import Command, EntityId, HandlerRegistry, RetryPolicy
from command_bus.serialization.dead_letter import DeadLetterRecord
from command_bus.serialization.envelope import AT_MOST_ONCE, WireEnvelope, pack_envelope
from command_bus.settings import BusSettings
from command_bus.transport.steps import DeadLetterStep, GiveBack, Park, Started
from command_bus.worker.decisions import Decisions

registry = HandlerRegistry()


class Often(Command[None], entity="box", retry=RetryPolicy(attempts=5), on_poison="park"):
    box: EntityId


@registry.handles(Often)
async def often(command: Often) -> None: ...


def decisions(known: HandlerRegistry) -> Decisions:
    return Decisions(known.lookup, BusSettings(url="redis://none"), worker="w")


def started(attempt: int, flags: int = 0) -> Started:
    envelope = pack_envelope(WireEnvelope("c-1", "Often", "box", "a", b"\x81\xa3box\xa1a", flags))
    return Started("7", "1-0", attempt, 1, 1, envelope)


@pytest.mark.parametrize("attempt", [1, 4])
def test_an_interrupted_command_runs_again_while_its_policy_allows(attempt: int) -> None:
    assert decisions(registry).interrupted(started(attempt)) == GiveBack(counts=True)


def test_then_it_is_poisoned_as_its_contract_says() -> None:
    assert isinstance(decisions(registry).interrupted(started(5)), Park)


@pytest.mark.parametrize("attempt", [1, 3, 5, 50])
def test_a_worker_without_the_policy_leaves_the_command_to_another(attempt: int) -> None:
    assert decisions(HandlerRegistry()).interrupted(started(attempt)) == GiveBack(counts=True)


def test_an_older_worker_leaves_what_a_newer_one_began() -> None:
    """Its class says how often an older version may be run."""
    newer = pack_envelope(WireEnvelope("c-1", "Often", "box", "a", b"\x81\xa3box\xa1a", options={"v": 2}))
    assert decisions(registry).interrupted(Started("7", "1-0", 50, 1, 1, newer)) == GiveBack(counts=True)


def test_what_must_not_run_twice_is_given_up_by_any_worker() -> None:
    assert isinstance(decisions(HandlerRegistry()).interrupted(started(1, AT_MOST_ONCE)), DeadLetterStep)


LATER = {
    "version": msgpack.packb([2, "c-1", "Often", {"another": "shape"}]),
    "critical flag": pack_envelope(WireEnvelope("c-1", "Often", "box", "a", b"\x81\xa3box\xa1a", 1 << 17)),
}
each_later = pytest.mark.parametrize("later", LATER.values(), ids=LATER.keys())


def of_a_later_version(age: float, later: bytes = LATER["version"]) -> Started:
    """Started so many seconds ago by a newer worker, and interrupted."""
    now_ms = 1_700_000_000_000
    return Started(str(int((now_ms / 1000 - age) * 1e6)), "1-0", 2, now_ms - 3_600_000, now_ms, later)


@each_later
@pytest.mark.parametrize("age", [31, 120])
def test_an_interrupted_newer_command_is_left_to_a_newer_worker(age: float, later: bytes) -> None:
    """This worker cannot read whether it may run again."""
    assert decisions(registry).lost(of_a_later_version(age, later)) is None


@each_later
def test_but_not_for_ever(later: bytes) -> None:
    step = decisions(registry).lost(of_a_later_version(200, later))
    assert isinstance(step, DeadLetterStep)
    letter = DeadLetterRecord.unpack(step.record)
    assert (letter.reason, letter.command_id, letter.name) == ("interrupted", "c-1", "Often")
    assert step.raw == later
    assert step.left.mark, "its caller is told"


def test_a_lost_readable_command_is_interrupted() -> None:
    assert decisions(registry).lost(started(4)) == GiveBack(counts=True)
    assert isinstance(decisions(registry).lost(started(5)), Park)


def test_a_lost_unreadable_command_is_undecodable() -> None:
    step = decisions(registry).lost(Started("7", "1-0", 1, 1, 1, b"garbage"))
    assert isinstance(step, DeadLetterStep)
    assert DeadLetterRecord.unpack(step.record).reason == "undecodable"
