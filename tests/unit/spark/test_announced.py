"""Rows of a command that is known by its wire name, against what its workers announced."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from command_bus import BusSettings, Command, EntityId, HandlerRegistry, InvalidCommand, InvalidSettings, Unique
from command_bus.serialization.announcements import read_description
from command_bus.serialization.limits import PayloadLimits
from command_bus.serialization.msgpack import unpack
from command_bus.spark.options import WriteOptions
from command_bus.spark.writing.command_lookup import announced_mapping
from command_bus.spark.writing.command_mapping import CommandMapping
from command_bus.worker.worker_bus import describe_commands

PATTERN = "(a+)+$"
registry = HandlerRegistry()


class Pull(Command[None], entity="truck", unique=Unique(wins="latest", debounce=2.0)):
    truck: EntityId


@registry.handles(Pull)
async def pull(command: Pull) -> None:
    """Do nothing."""


def mapping(fields: dict[str, Any], key: str | None = "truck", **policy: Any) -> CommandMapping:
    schema = {"type": "object", "properties": {"truck": {"type": "string"}, **fields}, "required": ["truck"]}
    facts = {"entity": "truck", "key": key, "delivery": "at_least_once", "schema": schema, "policy": policy}
    info = read_description("Move", json.dumps(facts).encode(), ())
    assert info is not None
    options = WriteOptions.parse({"command": "Move", "commandIdColumn": "id", "dispatchId": "d"})
    return announced_mapping(info, options, ["id", "truck", *fields])


def test_a_row_becomes_a_payload() -> None:
    row = {"truck": "a", "at": datetime(2026, 11, 22, tzinfo=UTC), "load": None}
    found = mapping({"at": {"type": "string", "format": "date-time"}, "load": {"anyOf": [{"type": "number"}, {"type": "null"}]}})
    payload, entity, tenant = found.payload(row, PayloadLimits())
    assert (unpack(payload), entity, tenant) == (row, "a", "")


def test_a_bad_row_is_refused_with_the_reasons() -> None:
    with pytest.raises(InvalidCommand, match="Move: load is at most 100; note has at most 1"):
        mapping({"load": {"maximum": 100}, "note": {"maxLength": 1}}).payload(
            {"truck": "a", "load": 500, "note": "xx"}, PayloadLimits()
        )


@pytest.mark.timeout(10)  # with `re` the first row takes longer than anybody waits
def test_57_a_pattern_that_somebody_announced_stalls_no_task() -> None:
    found = mapping({"note": {"type": "string", "pattern": PATTERN}})
    with pytest.raises(InvalidCommand, match="note matches"):
        found.payload({"truck": "a", "note": "a" * 50_000 + "b"}, PayloadLimits())


def test_a_key_that_is_no_field_is_refused_when_the_query_is_planned() -> None:
    with pytest.raises(InvalidSettings, match="no field car"):
        mapping({}, key="car")


def test_an_announced_priority_and_tenant_are_those_of_the_class() -> None:
    found = mapping({"owner": {"type": "string"}}, priority="low", fair_by="owner")
    assert (found.spec.priority, found.tenant and found.tenant.name) == ("low", "owner")
    assert found.payload({"truck": "a", "owner": "acme"}, PayloadLimits())[2] == "acme"
    with pytest.raises(InvalidCommand, match="200 bytes"):
        found.payload({"truck": "a", "owner": "x" * 201}, PayloadLimits())


@pytest.mark.parametrize("wrong", [{"priority": "urgent"}, {"priority": ["low"]}, {"fair_by": 7}, {"fair_by": "nowhere"}])
def test_an_announced_priority_or_tenant_that_is_none_is_left_out(wrong: dict[str, Any]) -> None:
    found = mapping({}, **wrong)
    assert (found.spec.priority, found.tenant) == (None, None)
    assert found.payload({"truck": "a"}, PayloadLimits())[2] == ""


def test_an_announced_unique_key_is_that_of_the_class() -> None:
    announced = json.loads(describe_commands(registry, BusSettings())["Pull"])["policy"]["unique"]
    found = mapping({}, unique=announced).spec.unique
    assert found == Unique("Pull", wins="latest", until="started", debounce=2.0)
    assert mapping({}, unique=None).spec.unique is None
    for later in ({"key": "Move", "wins": "lowest"}, {"key": "Move", "spread": 3}):
        with pytest.raises(InvalidSettings, match="install the workers' release"):
            mapping({}, unique=later)
