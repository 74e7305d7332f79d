"""The place of a command, as a sentence and figures."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from command_bus.sending.command_location import Whereabouts, whereabouts
from command_bus.serialization.announcements import WorkerInfo, worker_record
from command_bus.serialization.envelope import WireEnvelope, pack_envelope
from command_bus.serialization.limits import PayloadLimits
from command_bus.transport.records import CommandLocation, EntityCondition, HoldInfo, StoredEntity

NOW = 1_800_000_000_000
HELD: dict[str, Any] = {"holder": "w-1#3", "started_ms": NOW - 12_000, "attempt": 2}


def worker(name: str = "w-1", *, silent: float = 0.0, commands: tuple[str, ...] = ("Refund",), running: int = 0) -> bytes:
    return worker_record(WorkerInfo(name, "host-a", 41, NOW - 60_000, NOW - int(silent * 1000), 4, running, commands))


def line(*command_ids: str) -> list[tuple[str, bytes]]:
    return [
        (f"{number}-0", pack_envelope(WireEnvelope(command_id, "Refund", "account", "a", b"\x80")))
        for number, command_id in enumerate(command_ids, 1)
    ]


def seen(
    state: Any, *command_ids: str, hold: HoldInfo | None = None, workers: tuple[bytes, ...] | None = (worker(),), **facts: Any
) -> Whereabouts:
    """Return where command `c` is in a line of these commands."""
    of_entity = {name: facts.pop(name) for name in tuple(facts) if name in StoredEntity.__slots__}
    entity = StoredEntity("account:a", state, len(command_ids), 0, **{"attempt": 0, "hold": hold, **of_entity})
    values: dict[str, Any] = {
        "mark": b"q" + bytes(8) + b"account:a",
        "retry_ms": None,
        "delayed_ms": None,
        **facts,
    }
    sighting = CommandLocation(entity=entity, workers=workers, now_ms=NOW, **values)
    return whereabouts(sighting, line(*command_ids), "c", "Refund", "namespace 'shop' on redis://x", PayloadLimits())


def test_a_running_command() -> None:
    found = seen("running", "c", **HELD)
    assert (found.state, found.position, found.running_for, found.attempt, found.worker) == ("running", 1, 12.0, 2, "w-1")
    assert found.hint == "It has run for 12 s (attempt 2) on worker w-1 (host-a, process 41)"


def test_a_command_of_a_lost_worker() -> None:
    found = seen("running", "c", workers=(worker(silent=90),), **HELD)
    assert (found.state, found.workers) == ("running", 0)
    assert found.hint.endswith("on worker w-1 (host-a, process 41), which has shown no sign of life for 90 s")


@pytest.mark.parametrize("state", [each for each in get_args(EntityCondition) if each not in ("running", "waiting", "draining")])
def test_each_state_is_named(state: EntityCondition) -> None:
    hold = HoldInfo("account:a", "account", "paused", NOW - 1000, "") if state == "paused" else None
    facts: dict[str, Any] = {"attempt": 1} if state == "retrying" else {}
    found = seen(state, "c", hold=hold, **facts)
    assert found.state == state
    assert "waits for a worker" not in found.hint
    if state not in ("paused", "parked"):
        assert "waits for a worker" not in seen(state, "a", "c", **facts).hint, "nor of one behind it"


def test_behind_others() -> None:
    found = seen("running", "a", "b", "c", **HELD)
    assert (found.state, found.position) == ("behind", 3)
    assert found.hint.startswith("It is number 3 in the line of account:a, behind Refund a, which has run for 12 s (attempt 2)")


def test_where_its_line_may_not_be_read() -> None:
    """Nothing is claimed of its place; of the only command there is, it is known."""
    entity = StoredEntity("account:a", "running", 5, 0, **HELD)
    sighting = CommandLocation(entity, b"q", None, None, None, NOW)
    found = whereabouts(sighting, (), "c", "Refund", "x", PayloadLimits())
    assert (found.state, found.position, found.workers, found.handlers) == ("", None, None, None)
    assert (
        found.hint
        == "The line of account:a holds 5 commands. At its head is a command, which has run for 12 s (attempt 2) on worker w-1"
    )
    alone = CommandLocation(StoredEntity("account:a", "running", 1, 0, **HELD), b"q", None, None, None, NOW)
    assert whereabouts(alone, (), "c", "Refund", "x", PayloadLimits()).state == "running"


def test_a_hold_and_a_missing_worker_are_both_reported() -> None:
    found = seen("paused", "c", hold=HoldInfo("all account", "account", "paused", NOW, "stocktaking"), workers=())
    assert found.state == "no_worker"
    assert found.hint == (
        "There is no live worker in namespace 'shop' on redis://x: start one with `command-bus worker`. "
        "all account is paused (stocktaking): its commands wait until it is resumed"
    )


def test_other_states() -> None:
    assert seen("parked", "b", "c").hint.startswith("account:a is parked by a dead letter")
    assert seen("waiting", "c", delayed_ms=NOW + 3_000).hint == "It is delayed and takes its place in line in 3.0 s"
    assert (seen("retrying", "c", attempt=1, retry_ms=NOW + 500).state, seen("retrying", "c", retry_ms=NOW).state) == (
        "retrying",
        "waiting",  # it was offered to a worker that does not know it: no attempt
    )
    assert seen("waiting", "c", workers=(worker(running=4),)).state == "busy"
    assert seen("waiting", mark=b"d" + bytes(8)).state == "settled"
    assert seen("waiting", mark=None).state == "unknown"
    draining = seen("draining", "c", hold=HoldInfo("account:a", "account", "draining", NOW, ""))
    assert (draining.state, draining.hint.endswith("account:a is being drained: what was accepted before still runs")) == (
        "waiting",
        True,
    )


def test_many_names_are_cut_short() -> None:
    found = seen(
        "waiting", "c", workers=(worker("w-1", commands=tuple(f"Order{n:02}" for n in range(14))), worker("w-2", commands=()))
    )
    assert (found.state, found.workers, found.handlers) == ("no_handler", 2, 0)
    assert "None of the 2 live workers in" in found.hint
    assert found.hint.endswith("Order09 and 4 more")
