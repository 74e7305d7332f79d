"""Rows that are no commands become rejects with a reason; their neighbours are sent."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from pyspark.sql import SparkSession
from redis import Redis

from command_bus import (
    InvalidRows,
    InvalidSettings,
)
from command_bus.spark import dispatch_dataframe
from tests.spark.trucks import Move, Namespace, Weigh
from tests.spark.writes import MOVES, ROWS_OF_MOVES, rejects_of, write


def test_invalid_rows_are_quarantined_with_the_reason(spark: SparkSession, namespace: Namespace) -> None:
    long = "é" * 3000  # over the 4096 bytes of an entity id
    bad: dict[str, tuple[Any, ...]] = {  # by their ids: the differences from a good row
        "null-field": ("a", 1, None, None),
        "null-entity": (None, 1, 1.0, None),
        "empty-entity": ("", 1, 1.0, None),
        "long-entity": (long, 1, 1.0, None),
        "null-seq": ("a", None, 1.0, None),
        "nan": ("a", 1, float("nan"), None),
        "infinite": ("a", 1, float("inf"), None),
        "below": ("a", 1, -0.5, None),
        "above": ("a", 1, 100.5, None),
    }
    reasons = {
        "null-field": "load", "null-entity": "truck", "empty-entity": "truck", "long-entity": "truck", "null-seq": "seq",
        "nan": "load", "infinite": "load", "below": "greater than or equal to 0", "above": "less than or equal to 100",
    }  # fmt: skip
    good = [("a" if number % 2 else "b", number, 1.0, None, f"good-{number}") for number in range(20)]
    rows: list[tuple[Any, ...]] = [("a", 1, 1.0, None, None), ("a", 1, 2.0, None, ""), ("a", 1, 3.0, None, "i" * 513)]
    for number, (name, values) in enumerate(bad.items()):
        rows += [good[number], (*values, name)]
    rows += good[len(bad) :]
    write(spark.createDataFrame(rows, ROWS_OF_MOVES).coalesce(1), namespace)
    assert namespace.seqs() == {"a": list(range(1, 20, 2)), "b": list(range(0, 20, 2))}
    rejects = rejects_of(spark, namespace)
    assert len(rejects) == len(bad) + 3
    assert {row.reason for row in rejects} == {"invalid"}
    assert {row.command for row in rejects} == {"Move"}
    errors = {row.command_id: row.error for row in rejects if row.command_id and not row.command_id.startswith("i" * 9)}
    for name, part in reasons.items():
        assert part in errors[name], (name, errors[name])
    without_id = [row for row in rejects if not row.command_id]
    assert [json.loads(row.row)["load"] for row in sorted(without_id, key=lambda row: row.row)] == [1.0, 2.0]
    assert all("its command id is NULL or empty" in row.error for row in without_id)
    (too_long,) = [row for row in rejects if row.command_id == "i" * 513]
    assert "more than 512 bytes" in too_long.error
    row = next(row for row in rejects if row.command_id == "above")
    assert (row.entity, json.loads(row.row)) == ("a", {"truck": "a", "seq": 1, "load": 100.5, "note": None})


def test_nan_is_accepted_only_if_the_model_allows_it(spark: SparkSession, namespace: Namespace) -> None:
    rows = [("a", 1, 1.0, 1.0), ("a", 2, float("nan"), 1.0), ("a", 3, 1.0, float("nan")), ("a", 4, 1.0, float("-inf"))]
    frame = spark.createDataFrame(rows, "truck string, seq long, free double, finite double")
    report = dispatch_dataframe(frame, Weigh, key="seq", order_by="seq", dispatch_id="d", **namespace.options)
    assert [each.fields["seq"] for each in namespace.landed()] == [1, 2]
    assert math.isnan(namespace.landed()[1].fields["free"])
    assert [row.error for row in report.rejects().collect()] == ["Weigh: finite: Input should be a finite number"] * 2


def test_conflicts_are_quarantined_and_equal_rows_count_once(spark: SparkSession, namespace: Namespace) -> None:
    rows = [
        ("a", 1, 1.0, None, "1"),
        ("a", 1, 1.0, None, "1"),  # the same row again: a duplicate
        ("a", 1, 2.0, None, "1"),  # another one under its id
        ("b", 5, 1.0, None, "2"),
        ("a", 3, 1.0, None, "3"),
        ("a", 2, 1.0, None, "4"),  # behind its turn
        ("a", 3, 9.0, None, "5"),  # another one with its number
        ("b", 6, 1.0, None, "6"),
        ("a", 4, 1.0, None, "7"),
    ]
    frame = spark.createDataFrame(rows, ROWS_OF_MOVES).coalesce(1)
    write(frame, namespace, sequenceColumn="seq", batchSize=4)
    assert namespace.seqs() == {"a": [1, 3, 4], "b": [5, 6]}
    assert {row.command_id: row.reason for row in rejects_of(spark, namespace)} == {
        "1": "conflict",
        "4": "out_of_sequence",
        "5": "out_of_sequence",
    }
    write(frame, namespace, sequenceColumn="seq", dispatchId="other")
    assert len(namespace.landed()) == 5 + 5  # ids and numbers count within one dispatch only


@pytest.mark.slow
def test_invalid_rows_fail_the_dispatch_if_not_allowed(spark: SparkSession, namespace: Namespace) -> None:
    rows = spark.createDataFrame([("a", 1, 1.0, None), ("a", 2, 200.0, None), ("a", 3, 1.0, None)], MOVES).coalesce(1)

    def dispatch(**options: Any) -> Any:
        return dispatch_dataframe(rows, Move, key="seq", order_by="seq", dispatch_id="d", **options, **namespace.options)

    with pytest.raises(InvalidRows) as caught:
        dispatch(on_invalid="raise")
    text = str(caught.value)
    assert "dispatch 'd': a row is no valid command: Move: load" in text
    assert "on_invalid = quarantine" in text
    assert len(text) < 400
    with pytest.raises(InvalidRows, match="more than 0 rows are no valid commands"):
        dispatch(max_rejects=0.1)
    with pytest.raises(InvalidRows, match="more than 0 rows"):
        dispatch(max_rejects=0, on_invalid="drop")
    report = dispatch(max_rejects=1)  # the same dispatch goes on
    assert (report.added, report.rejected, report.state) == (2, 1, "committed")
    assert namespace.seqs() == {"a": [1, 3]}


def test_rows_rejects_and_commands_are_counted(spark: SparkSession, namespace: Namespace) -> None:
    bad = [("a", 1, 500.0, None)] * 3 + [(None, 2, 1.0, None)] * 2 + [("a", 3, 700.0, None)]
    rows = spark.createDataFrame([*bad, ("a", 4, 1.0, None), ("a", 4, 1.0, None), ("b", 5, 1.0, None)], MOVES)
    given: dict[str, Any] = {"key": "seq", "order_by": "seq", "dispatch_id": "d", **namespace.options}
    planned = dispatch_dataframe(rows, Move, dry_run=True, **given)
    assert (planned.state, namespace.depth()) == ("dry run", 0)
    with Redis.from_url(namespace.url) as client:
        assert not [key for key in client.scan_iter(f"{{{namespace.name}:*") if b":b:" in key or b":m:" in key]
    report = dispatch_dataframe(rows, Move, **given)
    for each in (planned, report):
        assert (each.rows, each.added, each.duplicates, each.rejected, each.distinct_rejects) == (9, 2, 1, 6, 3)
        assert "9 rows, 2 commands for 2 entities, 1 rows that repeat others, 6 rows rejected (3 different);" in str(each)
        assert (
            sorted(row.error for row in each.rejects().collect())[2]
            == "truck is null: it is the entity id of Move, which every row needs"
        )
        assert each.rejects().count() == 3
    assert str(planned).startswith("dispatch 'd' dry run, nothing was sent; what would be: 9 rows")
    with pytest.raises(InvalidSettings, match="a dry run has no outcomes"):
        planned.outcomes()


def test_invalid_rows_can_be_dropped(spark: SparkSession, namespace: Namespace) -> None:
    rows = spark.createDataFrame([("a", seq, 60.0 * seq, None) for seq in range(4)], MOVES)
    report = dispatch_dataframe(rows, Move, key="seq", order_by="seq", dispatch_id="d", on_invalid="drop", **namespace.options)
    assert (report.added, report.rejected, report.rejects().count()) == (2, 2, 0)
    assert namespace.seqs() == {"a": [0, 1]}
