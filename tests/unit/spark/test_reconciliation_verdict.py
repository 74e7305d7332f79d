"""The verdict of a reconciliation from its counts, without Spark and without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from command_bus.spark.reconciliation.dispatch_state import DispatchState
from command_bus.spark.reconciliation.verdict import EFFECT_FLAGS, EFFECTS, FLAGS, STATUSES, Tally, Verdict
from command_bus.transport.ports.bulk import DispatchFacts
from command_bus.transport.ports.kept_streams import KeptStream

DAY = 86_400_000


def stream(length: int = 10, added: int | None = None, *, counted: bool = True) -> KeptStream:
    return KeptStream(length, (length if added is None else added) if counted else None, "1-0", "9-0")


def dispatch_state(*streams: KeptStream | None, age_ms: int = 1000, rejected_rows: int = 0, **facts: Any) -> DispatchState:
    summary = json.dumps({"partitions": [{"rejected": rejected_rows}]})
    given: dict[str, Any] = {"version": 0, "first_ms": 5000, "keep_ms": DAY, "added": 10, "summary": summary} | facts
    known = DispatchFacts("d", **given)
    return DispatchState(known, streams or (stream(),), 5000 + age_ms)


def verdict(tally: Tally, before: DispatchState | None = None, after: DispatchState | None = None) -> Verdict:
    before = before or dispatch_state()
    return Verdict.of(tally, before, after or before)


def found(judged: Verdict) -> dict[str, int]:
    return {name: count for name, count in judged.counts.items() if count}


def test_all_counts_exist() -> None:
    judged = verdict(Tally({"completed": 10}, traced=10))
    assert list(judged.counts) == [*STATUSES, *FLAGS]
    assert found(judged) == {"completed": 10}
    assert judged.ok
    assert judged.settled
    assert judged.total == 10
    assert str(judged) == "right: every row is accounted for, once and in order"
    assert not judged.notes


def test_folded_rows_are_no_commands_that_were_lost() -> None:
    """Ten commands and five folded rows: one of the ten has no trace."""
    state = dispatch_state(folded=5)
    judged = verdict(Tally({"completed": 7, "superseded": 2, "folded": 5, "untraced": 1}, traced=14), state)
    assert found(judged) == {"completed": 7, "superseded": 2, "folded": 5, "missing": 1}
    assert "1 commands were accepted, but have no outcome" in judged.notes[0]
    judged = verdict(Tally({"completed": 8, "superseded": 2, "folded": 5}, traced=15), state)
    assert (judged.ok, judged.settled, judged.total) == (True, True, 15)
    dropped = verdict(Tally({"completed": 10, "folded": 5, "untraced": 1}, traced=15), dispatch_state(folded=5, rejected_rows=1))
    assert found(dropped)["dropped"] == 1


def test_commands_without_a_trace_are_missing() -> None:
    judged = verdict(Tally({"completed": 8, "untraced": 2}, traced=8))
    assert found(judged) == {"completed": 8, "missing": 2}
    assert not judged.ok
    assert str(judged) == "wrong: 2 missing"
    assert judged.notes == ["2 commands were accepted, but have no outcome and wait in no mailbox."]


def test_commands_that_were_never_accepted_are_missing() -> None:
    judged = verdict(Tally({"completed": 10, "untraced": 2}, traced=10))
    assert found(judged) == {"completed": 10, "missing": 2}
    assert "never arrived" in judged.notes[0]


@pytest.mark.parametrize(
    ("tally", "rejected_rows", "rejected", "name"),
    [
        (Tally({"untraced": 2}, traced=10), 2, 0, "dropped"),
        (Tally({"untraced": 3}, traced=10), 2, 0, "missing"),  # more than were dropped
        (Tally({"untraced": 2}, traced=9), 2, 0, "missing"),  # one that was accepted is gone
        (Tally({"untraced": 2}, traced=10), 2, 2, "missing"),  # these were noted, so nothing was dropped
    ],
)
def test_dropped_rows_explain_as_many_untraced_ones(tally: Tally, rejected_rows: int, rejected: int, name: str) -> None:
    before = dispatch_state(rejected_rows=rejected_rows, rejected=rejected)
    judged = verdict(tally, before)
    assert judged.untraced_as == name
    assert judged.ok == (name == "dropped")


@pytest.mark.parametrize(
    ("after", "lossy"),
    [
        (dispatch_state(stream(10, 10)), False),
        (dispatch_state(stream(10, 11)), True),
        (dispatch_state(stream(10, 10), None), False),  # a shard in which nothing has settled
        (dispatch_state(stream(10, 10), None, age_ms=DAY), True),  # or whose outcomes ran out of time
        (dispatch_state(stream(10, 10), age_ms=DAY), False),
        (dispatch_state(stream(counted=False)), False),
        (dispatch_state(stream(counted=False), age_ms=DAY), True),
    ],
)
def test_nothing_is_missing_if_outcomes_may_be_trimmed(after: DispatchState, lossy: bool) -> None:
    judged = verdict(Tally({"completed": 9, "untraced": 1}, traced=9), dispatch_state(), after)
    assert after.lossy == lossy
    assert found(judged) == {"completed": 9, "forgotten" if lossy else "missing": 1}
    assert not judged.ok
    if lossy:
        assert str(judged) == "not proven: 1 forgotten"
        assert "Outcomes are kept no more" in judged.notes[0]


def test_unreadable_outcomes_make_missing_ones_doubtful() -> None:
    judged = verdict(Tally({"completed": 9, "untraced": 1}, traced=9, unreadable=1))
    assert judged.untraced_as == "forgotten"
    assert "1 outcomes cannot be read" in judged.notes[0]


def test_a_replay_may_look_out_of_order() -> None:
    judged = verdict(Tally({"completed": 10}, out_of_order=1, traced=10), after=dispatch_state(stream(10, 11)))
    assert str(judged) == "wrong: 1 out of order"
    assert "whose first outcome is gone" in judged.notes[0]


def test_every_fault_is_named() -> None:
    judged = verdict(Tally({"completed": 8, "untraced": 1}, duplicated=2, out_of_order=3, traced=8))
    assert str(judged) == "wrong: 1 missing, 2 duplicated, 3 out of order"


def test_pending_commands_are_not_wrong() -> None:
    judged = verdict(Tally({"completed": 8, "pending": 2}, traced=10))
    assert judged.ok
    assert not judged.settled
    assert str(judged) == "right so far: 2 pending, all others accounted for, once and in order"


def test_notes_explain_conflicts_and_unexpected_commands() -> None:
    tally = Tally({"completed": 10, "unexpected": 3}, conflicts=2, traced=10)
    judged = verdict(tally, dispatch_state(opened=1))
    assert judged.total == 10
    assert judged.ok
    assert [note.split(":")[0] for note in judged.notes] == [
        "The dispatch is open",
        "2 rows were set aside because another row has their command id",
        "3 commands of the dispatch belong to none of these rows",
    ]


def test_effects_of_others_and_of_what_waits_are_no_faults() -> None:
    effects = dict.fromkeys(EFFECTS, 0) | {"effects": 9, "effect_early": 2, "effect_unasked": 3}
    judged = verdict(Tally({"completed": 8, "pending": 2}, traced=10, effects=effects))
    assert (judged.ok, len(judged.notes)) == (True, 2)
    assert list(judged.counts) == [*STATUSES, *FLAGS, *EFFECTS]
    for flag in EFFECT_FLAGS:
        judged = verdict(Tally({"completed": 10}, traced=10, effects=effects | {flag: 1}))
        assert str(judged) == f"wrong: 1 {flag.replace('_', ' ')}"


def test_ids_that_are_spelled_otherwise_are_named() -> None:
    effects = dict.fromkeys(EFFECTS, 0) | {"effect_missing": 10, "effect_unasked": 10}
    judged = verdict(Tally({"completed": 10}, traced=10, effects=effects, spelled=("a-b", "AB")))
    assert judged.notes[-1].startswith("No effect is of these commands. Their ids are written as 'a-b', those of effects as 'AB'")
