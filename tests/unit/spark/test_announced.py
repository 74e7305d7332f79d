"""Rows of a command that is known by its wire name, against what its workers announced."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from command_bus import InvalidCommand, InvalidSettings
from command_bus.serialization.announcements import read_description
from command_bus.serialization.limits import Limits
from command_bus.serialization.msgpack import unpack
from command_bus.spark.options import WriteOptions
from command_bus.spark.writing.announced import announced_mapping
from command_bus.spark.writing.command_mapping import CommandMapping

PATTERN = "(a+)+$"


def mapping(fields: dict[str, Any], key: str | None = "truck") -> CommandMapping:
    schema = {"type": "object", "properties": {"truck": {"type": "string"}, **fields}, "required": ["truck"]}
    facts = {"entity": "truck", "key": key, "delivery": "at_least_once", "schema": schema}
    info = read_description("Move", json.dumps(facts).encode(), ())
    assert info is not None
    options = WriteOptions.parse({"command": "Move", "commandIdColumn": "id", "dispatchId": "d"})
    return announced_mapping(info, options, ["id", "truck", *fields])


def test_a_row_becomes_a_payload() -> None:
    row = {"truck": "a", "at": datetime(2026, 11, 22, tzinfo=UTC), "load": None}
    found = mapping({"at": {"type": "string", "format": "date-time"}, "load": {"anyOf": [{"type": "number"}, {"type": "null"}]}})
    payload, entity, tenant = found.payload(row, Limits())
    assert (unpack(payload), entity, tenant) == (row, "a", "")


def test_a_bad_row_is_refused_with_the_reasons() -> None:
    with pytest.raises(InvalidCommand, match="Move: load is at most 100; note has at most 1"):
        mapping({"load": {"maximum": 100}, "note": {"maxLength": 1}}).payload({"truck": "a", "load": 500, "note": "xx"}, Limits())


@pytest.mark.timeout(10)  # with `re` the first row takes longer than anybody waits
def test_57_a_pattern_that_somebody_announced_stalls_no_task() -> None:
    found = mapping({"note": {"type": "string", "pattern": PATTERN}})
    with pytest.raises(InvalidCommand, match="note matches"):
        found.payload({"truck": "a", "note": "a" * 50_000 + "b"}, Limits())


def test_a_key_that_is_no_field_is_refused_when_the_query_is_planned() -> None:
    with pytest.raises(InvalidSettings, match="no field car"):
        mapping({}, key="car")
