"""The statuses of a reconciliation, on handmade tables: each invariant is broken once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from command_bus.spark.reconciliation.statuses import entry_order, out_of_order, statuses_of

START = 1_790_000_000_000
LOOKED = START + 500_000
OUTCOME = (
    "command_id string, status string, entity_type string, entity string, attempt int, fence long, message string, entry string, "
    "started_at timestamp"
)


def outcome(
    command_id: str | None,
    at: int,
    status: str = "completed",
    *,
    fence: int | None = None,
    message: str | None = None,
    entity: str = "a",
) -> tuple[Any, ...]:
    """Return an outcome of this second, by default in the order of acceptance."""
    started = datetime.fromtimestamp((START + at * 1000 - 5) / 1000, UTC)
    message = f"{START + at}-0" if message is None else message
    return (command_id, status, "truck", entity, 1, at if fence is None else fence, message, f"{START + at * 1000}-0", started)


class HandmadeTables:
    """Tables made by hand and their results: `statuses` by id, and the ids that are duplicated or late."""

    def __init__(
        self,
        spark: SparkSession,
        rows: list[tuple[str | None, Any]],
        outcomes: list[tuple[Any, ...]],
        *,
        rejects: list[tuple[str | None, str]] = [],  # noqa: B006 - only read
        waiting: list[tuple[str, bool]] = [],  # noqa: B006
        order: str = "seq long",
    ) -> None:
        frame = statuses_of(
            spark.createDataFrame(rows, f"command_id string, {order}"),
            spark.createDataFrame(outcomes, OUTCOME),
            spark.createDataFrame(rejects, "command_id string, reason string"),
            spark.createDataFrame(waiting, "command_id string, parked boolean"),
            order_by="seq",
            looked_ms=LOOKED,
        ).cache()
        found = frame.collect()
        self.statuses = {row["command_id"]: row["status"] for row in found}
        self.rows = {row["command_id"]: row["rows"] for row in found}
        self.duplicated = {row["command_id"] for row in found if row["duplicated"]}
        self.late = {row["command_id"]: row["why"].split(" that ")[1] for row in out_of_order(frame).collect()}
        frame.unpersist()


def numbered(*ids: str) -> list[tuple[str | None, Any]]:
    return [(command_id, number) for number, command_id in enumerate(ids)]


def test_every_id_has_one_status(spark: SparkSession) -> None:
    statuses = ["completed", "rejected", "expired", "dead_lettered", "parked", "cancelled", "discarded"]
    found = HandmadeTables(
        spark,
        [*numbered(*statuses, "waits", "bad", "gone", "twin"), ("twin", 99), (None, 1), (None, 2)],
        [
            *(outcome(status, at, status, fence=at * 10) for at, status in enumerate(statuses, 1)),
            outcome("stranger", 99, entity="b"),
        ],
        rejects=[("bad", "invalid"), ("twin", "conflict"), (None, "invalid"), ("completed", "conflict")],
        waiting=[("waits", False), ("twin", False), ("parked", True)],
    )
    assert found.statuses == {status: status for status in statuses} | {
        "waits": "pending",
        "bad": "quarantined",
        "gone": "untraced",
        "twin": "pending",
        "stranger": "unexpected",
        None: "quarantined",
    }
    assert (found.rows["twin"], found.rows[None]) == (2, 2)
    assert not found.duplicated
    assert not found.late


def test_a_conflict_alone_leaves_a_row_untraced(spark: SparkSession) -> None:
    assert HandmadeTables(spark, numbered("twin"), [], rejects=[("twin", "conflict")]).statuses == {"twin": "untraced"}


def test_an_outcome_after_a_final_one_is_duplicated(spark: SparkSession) -> None:
    twice = ["completed completed", "rejected completed", "completed expired", "completed dead_lettered", "discarded completed"]
    twice += ["dead_lettered completed completed", "cancelled rejected"]
    once = [
        "completed",
        "dead_lettered completed",
        "parked parked completed",
        "expired completed",
        "dead_lettered discarded",
        "parked",
    ]
    outcomes = [outcome(story, at, status, entity=story) for story in once + twice for at, status in enumerate(story.split(), 1)]
    found = HandmadeTables(spark, numbered(*once, *twice), outcomes)
    assert found.statuses == {story: story.split()[-1] for story in once + twice}
    assert found.duplicated == set(twice)


def test_equal_entries_of_two_shards_are_duplicated(spark: SparkSession) -> None:
    assert HandmadeTables(spark, numbered("c"), [outcome("c", 1), outcome("c", 1)]).duplicated == {"c"}


@pytest.mark.slow
def test_order_is_checked_by_acceptance_and_by_column(spark: SparkSession) -> None:
    rows = numbered("a0", "a1", "a2", "b0", "b1")
    right = [outcome("a0", 1), outcome("a1", 2), outcome("a2", 3), outcome("b1", 5, entity="b"), outcome("b0", 4, entity="b")]
    assert not HandmadeTables(spark, rows, right).late
    overtaken = [outcome("a0", 1), outcome("a1", 2, fence=3), outcome("a2", 3, fence=2), *right[3:]]
    assert HandmadeTables(spark, rows, overtaken).late == {"a1": "was accepted later"}
    loaded_wrongly = [outcome("a1", 1), outcome("a0", 2), outcome("a2", 3), *right[3:]]
    assert HandmadeTables(spark, rows, loaded_wrongly).late == {"a0": "is later by order_by"}
    assert not HandmadeTables(spark, [(name, None) for name, _ in rows], loaded_wrongly).late


def test_ids_of_messages_are_compared_as_numbers(spark: SparkSession) -> None:
    rows = numbered("c0", "c1")
    right = [outcome("c0", 1, message=f"{START}-9"), outcome("c1", 2, message=f"{START}-10")]
    assert not HandmadeTables(spark, rows, right).late
    wrong = [outcome("c0", 1, message=f"{START}-10"), outcome("c1", 2, message=f"{START}-9")]
    assert set(HandmadeTables(spark, rows, wrong).late) == {"c1"}


def test_entities_of_different_types_are_separate(spark: SparkSession) -> None:
    second = list(outcome("c1", 1, fence=9))
    second[2] = "trailer"
    assert not HandmadeTables(spark, numbered("c0", "c1"), [outcome("c0", 2, fence=10), tuple(second)]).late


def test_order_by_a_text_column(spark: SparkSession) -> None:
    rows: list[tuple[str | None, Any]] = [("c0", "a"), ("c1", "b")]
    assert set(HandmadeTables(spark, rows, [outcome("c1", 1), outcome("c0", 2)], order="seq string").late) == {"c0"}


def test_a_replayed_dead_letter_is_ordered_by_its_failure(spark: SparkSession) -> None:
    kinds = ("dead_lettered", "parked", "expired")
    ids = [f"{kind}-{number}" for kind in kinds for number in range(3)]
    first = [
        outcome(f"{kind}-{number}", number + 1, kind if number == 0 else "completed", entity=kind)
        for kind in kinds
        for number in range(3)
    ]
    replays = [outcome(f"{kind}-0", 9, entity=kind) for kind in kinds]
    found = HandmadeTables(spark, numbered(*ids), [*first, *replays])
    assert set(found.statuses.values()) == {"completed"}
    assert not found.late
    no_letter = [each for each in first if not each[0].endswith("-0")]
    assert set(HandmadeTables(spark, numbered(*ids), [*no_letter, *replays]).late) == {
        f"{kind}-0" for kind in kinds
    }  # nothing excuses it


def test_commands_that_never_started_have_no_order(spark: SparkSession) -> None:
    rows = numbered("c0", "c1", "c2")
    taken_out = [outcome("c2", 1, "cancelled", fence=0), outcome("c0", 2), outcome("c1", 3, "discarded", fence=0, message="")]
    found = HandmadeTables(spark, rows, taken_out)
    assert not found.late
    assert found.statuses["c1"] == "discarded"


def test_a_replayed_dead_letter_that_waits_is_pending(spark: SparkSession) -> None:
    """A command settled after the mailboxes were read has the status of its outcome."""
    cases = [
        (1, "dead_lettered", False, "pending"),
        (1, "parked", False, "pending"),
        (1, "parked", True, "parked"),
        (900, "dead_lettered", False, "dead_lettered"),
        (900, "completed", False, "completed"),
        (1, "completed", False, "completed"),
    ]
    ids = [f"c{number}" for number in range(len(cases))]
    outcomes = [outcome(name, at, status) for name, (at, status, _, _) in zip(ids, cases, strict=True)]
    waiting = [(name, parked) for name, (_, _, parked, _) in zip(ids, cases, strict=True)]
    found = HandmadeTables(spark, numbered(*ids), outcomes, waiting=waiting)
    assert found.statuses == {name: status for name, (_, _, _, status) in zip(ids, cases, strict=True)}


def test_entry_order_grows_with_ids(spark: SparkSession) -> None:
    ids = ["1-0", "1-9", "1-10", f"{START}-0", f"{START}-2097151", f"{START}-9999999", f"{START + 1}-0", "4000000000000-7"]
    places = [
        row[0] for row in spark.createDataFrame([(each,) for each in ids], "id string").select(entry_order(F.col("id"))).collect()
    ]
    assert places == sorted(places)
    assert len(set(places)) == len(ids) - 1  # two million in a millisecond count as one
    assert spark.createDataFrame([("",), (None,)], "id string").select(entry_order(F.col("id"))).collect() == [(None,), (None,)]
