"""What the numbers of a reconciliation mean, without Spark and without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from command_bus.spark.reconciliation.dispatch_state import Evidence
from command_bus.spark.reconciliation.verdict import FATES, FLAGS, Tally, Verdict
from command_bus.transport.bulk import DispatchFacts, OutcomeStream

DAY = 86_400_000


def stream(length: int = 10, added: int | None = None, *, counted: bool = True) -> OutcomeStream:
    return OutcomeStream(length, (length if added is None else added) if counted else None, "1-0", "9-0")


def evidence(*streams: OutcomeStream | None, age_ms: int = 1000, rejected_rows: int = 0, **facts: Any) -> Evidence:
    summary = json.dumps({"partitions": [{"rejected": rejected_rows}]})
    given: dict[str, Any] = {"version": 0, "first_ms": 5000, "keep_ms": DAY, "added": 10, "summary": summary} | facts
    known = DispatchFacts("d", **given)
    return Evidence(known, streams or (stream(),), 5000 + age_ms)


def verdict(tally: Tally, before: Evidence | None = None, after: Evidence | None = None) -> Verdict:
    before = before or evidence()
    return Verdict.of(tally, before, after or before)


def found(judged: Verdict) -> dict[str, int]:
    return {name: count for name, count in judged.counts.items() if count}


def test_all_that_is_counted_is_there_also_as_zero() -> None:
    judged = verdict(Tally({"completed": 10}, traced=10))
    assert list(judged.counts) == [*FATES, *FLAGS]
    assert found(judged) == {"completed": 10}
    assert judged.ok
    assert judged.settled
    assert judged.total == 10
    assert str(judged) == "right: every row is accounted for, once and in order"
    assert not judged.notes


def test_what_left_no_trace_is_missing() -> None:
    judged = verdict(Tally({"completed": 8, "untraced": 2}, traced=8))
    assert found(judged) == {"completed": 8, "missing": 2}
    assert not judged.ok
    assert str(judged) == "wrong: 2 missing"
    assert judged.notes == ["2 commands were accepted, but have no outcome and wait in no mailbox."]


def test_what_was_never_accepted_is_missing_too() -> None:
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
def test_dropped_rows_explain_so_many_and_no_more(tally: Tally, rejected_rows: int, rejected: int, name: str) -> None:
    before = evidence(rejected_rows=rejected_rows, rejected=rejected)
    judged = verdict(tally, before)
    assert judged.untraced_as == name
    assert judged.ok == (name == "dropped")


@pytest.mark.parametrize(
    ("after", "lossy"),
    [
        (evidence(stream(10, 10)), False),
        (evidence(stream(10, 11)), True),
        (evidence(stream(10, 10), None), False),  # a shard in which nothing has settled
        (evidence(stream(10, 10), None, age_ms=DAY), True),  # or whose outcomes ran out of time
        (evidence(stream(10, 10), age_ms=DAY), False),
        (evidence(stream(counted=False)), False),
        (evidence(stream(counted=False), age_ms=DAY), True),
    ],
)
def test_where_outcomes_may_be_gone_nothing_is_called_missing(after: Evidence, lossy: bool) -> None:
    judged = verdict(Tally({"completed": 9, "untraced": 1}, traced=9), evidence(), after)
    assert after.lossy == lossy
    assert found(judged) == {"completed": 9, "forgotten" if lossy else "missing": 1}
    assert not judged.ok
    if lossy:
        assert str(judged) == "not proven: 1 forgotten"
        assert "Outcomes are kept no more" in judged.notes[0]


def test_outcomes_that_cannot_be_read_may_have_told_of_it() -> None:
    judged = verdict(Tally({"completed": 9, "untraced": 1}, traced=9, unreadable=1))
    assert judged.untraced_as == "forgotten"
    assert "1 outcomes cannot be read" in judged.notes[0]


def test_a_replay_may_look_out_of_order_when_its_first_outcome_is_gone() -> None:
    judged = verdict(Tally({"completed": 10}, out_of_order=1, traced=10), after=evidence(stream(10, 11)))
    assert str(judged) == "wrong: 1 out of order"
    assert "whose first outcome is gone" in judged.notes[0]


def test_every_fault_is_named() -> None:
    judged = verdict(Tally({"completed": 8, "untraced": 1}, duplicated=2, out_of_order=3, traced=8))
    assert str(judged) == "wrong: 1 missing, 2 duplicated, 3 out of order"


def test_what_is_pending_is_not_wrong() -> None:
    judged = verdict(Tally({"completed": 8, "pending": 2}, traced=10))
    assert judged.ok
    assert not judged.settled
    assert str(judged) == "right so far: 2 pending, all others accounted for, once and in order"


def test_what_else_must_be_known() -> None:
    tally = Tally({"completed": 10, "unexpected": 3}, conflicts=2, traced=10)
    judged = verdict(tally, evidence(opened=1))
    assert judged.total == 10
    assert judged.ok
    assert [note.split(":")[0] for note in judged.notes] == [
        "The dispatch is open",
        "2 rows were set aside because another row has their command id",
        "3 commands of the dispatch belong to none of these rows",
    ]
