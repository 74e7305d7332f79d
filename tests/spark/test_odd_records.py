"""Odd records of dispatches: each view goes on, what does not fit is NULL, and a report counts what can be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from command_bus.export.columns import batch_of, reject_row
from command_bus.serialization.odd_values import odd_values
from command_bus.spark.writing.fingerprint import Fingerprint, rows_of_summary
from command_bus.spark.writing.task_results import PartitionResult, read_summary

ODD_JSON = [b"", b"\xff", b"[]", b"5", b"null", b"[" * 5000, b'{"a":', b'{"row":NaN}', b'"text"', b"{}" * 2]
ODD_SUMMARIES = [
    "5", "[]", "{}", "[" * 5000, "x", '{"partitions": 5}', '{"partitions": [5]}', '{"partitions": [{"rows": "x"}]}',
    '{"partitions": [{"rows": 1e400}]}', '{"partitions": [{"rows": 99999999999999999999}]}', '{"partitions": [], "seconds": "x"}',
]  # fmt: skip
GOOD = ("d", "c-1", "Move", "truck:a", "invalid", "no", "{}")


@pytest.mark.parametrize("record", ODD_JSON)
def test_an_odd_reject_is_a_row_and_is_counted(record: bytes) -> None:
    before = odd_values.counts().get("b", 0)
    row = reject_row("d", record)
    assert row == ("d", None, None, None, "unknown", None, None)
    assert odd_values.counts()["b"] == before + 1
    assert batch_of("rejects", [GOOD, row]).num_rows == 2


@pytest.mark.parametrize("odd", [5, b"x", ["x"], {"a": 1}, "\ud800"])
def test_a_value_that_does_not_fit_its_column_is_null(odd: Any) -> None:
    facts = json.dumps(
        {"command_id": "c-2", "command": "Move", "entity": odd if not isinstance(odd, bytes) else [1], "reason": "r"}
    )
    rows = batch_of("rejects", [GOOD, reject_row("d", facts.encode()), GOOD]).to_pylist()
    assert [row["entity"] for row in rows] == ["truck:a", None, "truck:a"]
    assert rows[1]["reason"] in ("r", "unknown")


@pytest.mark.parametrize("ms", [-1, 2**53, 2**62, -(2**63), 253_402_300_800_000])
def test_a_time_that_no_timestamp_can_be_is_null(ms: int) -> None:
    row = ["truck", "a", "truck:a", "active", 1, 1_700_000_000_000, 1, 0]
    odd = [*row[:5], ms, *row[6:]]
    found = batch_of("entities", [tuple(row), tuple(odd)]).to_pylist()
    assert found[0]["oldest_accepted_at"].year == 2023
    assert found[1]["oldest_accepted_at"] is None


@pytest.mark.parametrize("attempt", [2**31, 2**62, -(2**31) - 1])
def test_a_number_beyond_its_column_is_null(attempt: int) -> None:
    row = ("truck", "a", "truck:a", "active", 1, 1_700_000_000_000, attempt, 0)
    (found,) = batch_of("entities", [row]).to_pylist()
    assert found["attempt"] is None
    assert found["mailbox"] == "truck:a"


@pytest.mark.parametrize("summary", ODD_SUMMARIES)
def test_an_odd_summary_is_none(summary: str) -> None:
    assert read_summary(summary) is None
    assert rows_of_summary(summary) is None
    assert Fingerprint.parse(summary) is None


def test_a_summary_of_another_release_is_read() -> None:
    found = read_summary('{"version": 1, "seconds": 2, "later": 1, "partitions": [{"rows": 3, "later": []}]}')
    assert found is not None
    assert (found.partitions, found.seconds, found.conflicts) == ((PartitionResult(rows=3),), 2, 0)
    assert rows_of_summary('{"partitions": [{"rows": 3}, {"rows": 4}]}') == 7
