"""What becomes of commands, as far as no server is needed to tell."""

from __future__ import annotations

import pytest

from command_bus import Command, EntityId, HandlerRegistry, RetryPolicy
from command_bus.execution.decisions import Decisions
from command_bus.serialization.envelope import AT_MOST_ONCE, WireEnvelope, pack_envelope
from command_bus.settings import BusSettings
from command_bus.transport.interfaces import Bury, GiveBack, Park, Started

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
def test_a_worker_that_does_not_know_the_policy_leaves_it_to_one_that_does(attempt: int) -> None:
    assert decisions(HandlerRegistry()).interrupted(started(attempt)) == GiveBack(counts=True)


def test_what_must_not_run_twice_is_given_up_by_any_worker() -> None:
    assert isinstance(decisions(HandlerRegistry()).interrupted(started(1, AT_MOST_ONCE)), Bury)
