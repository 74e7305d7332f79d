"""Rows of commands with versions, and of large ones: what travels with each of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import field_validator

from command_bus import Command, EntityId
from command_bus.serialization.envelope import unpack_envelope
from command_bus.serialization.models import codec_for

pa = pytest.importorskip("pyarrow")

from command_bus.messages.outgoing import Envelope  # noqa: E402 - after the skip
from command_bus.serialization.announcements import read_description  # noqa: E402
from command_bus.spark.options import WriteOptions  # noqa: E402
from command_bus.spark.writing.command_lookup import announced_mapping  # noqa: E402
from command_bus.spark.writing.encoder import BatchEncoder  # noqa: E402
from tests.unit.spark.encoders import Offline, encode, why  # noqa: E402

ROWS = {"command_id": ["a", "b"], "thing": ["x", "y"], "count": [1, 2]}


class Second(Command[None], entity="thing", name="test.second", version=2):
    thing: EntityId
    count: int


class Checked(Command[None], entity="thing", name="test.third", version=3):
    thing: EntityId
    count: int

    @field_validator("count")
    @classmethod
    def _any(cls, value: int) -> int:
        return value


def versions_of(packed: list[Any]) -> list[Any]:
    return [unpack_envelope(item[3]).options for item in packed]


@pytest.mark.parametrize(("kind", "version"), [(Second, 2), (Checked, 3)])
def test_columns_and_rows_have_the_version_of_their_class(kind: type[Command[None]], version: int) -> None:
    assert versions_of(encode(ROWS, kind)) == [{"v": version}] * 2


def test_a_mapper_sends_the_version_of_its_commands() -> None:
    packed = encode(ROWS, mapper=lambda row: Second(thing=row["thing"], count=row["count"]))
    assert versions_of(packed) == [{"v": 2}] * 2
    _, item = Offline().pack(Envelope(Second(thing="x", count=1), command_id="a"))
    assert unpack_envelope(item[3]).options == {"v": 2}


def test_a_command_known_by_name_has_the_announced_version() -> None:
    schema = {"type": "object", "properties": {"thing": {"type": "string"}, "count": {"type": "integer"}}, "required": ["thing"]}
    facts = {"entity": "thing", "key": "thing", "delivery": "at_least_once", "schema": schema, "version": 4}
    info = read_description("Counted", json.dumps(facts).encode(), ())
    assert info is not None
    options = WriteOptions.parse({"command": "Counted", "commandIdColumn": "command_id", "dispatchId": "d"})
    mapping = announced_mapping(info, options, list(ROWS))
    encoder = BatchEncoder({"Counted": mapping}, Offline(), options)
    assert versions_of(encoder.encode(pa.record_batch({name: pa.array(each) for name, each in ROWS.items()}))) == [{"v": 4}] * 2


class Long(Command[None], entity="thing", name="test.long", compress_above=200):
    thing: EntityId
    count: int
    text: str


class LongChecked(Checked, entity="thing", name="test.long_checked", compress_above=200):
    text: str


@pytest.mark.parametrize("kind", [Long, LongChecked])
def test_large_rows_travel_compressed_and_small_ones_as_they_are(kind: type[Command[None]]) -> None:
    rows: dict[str, Any] = {**ROWS, "text": ["small", "large " * 100]}
    small, large = encode(rows, kind)
    plain, unpacked = encode(rows, kind, dispatcher=Offline(signing_keys={"k": "a secret of some length"}))
    read = [unpack_envelope(item[3]) for item in (small, large, plain, unpacked)]
    assert [each.compressed for each in read] == [False, True, False, True]
    assert len(large[3]) < 200
    assert [codec_for(kind).decode(each.payload).model_dump()["text"] for each in read] == rows["text"] * 2


def test_a_mapper_s_commands_travel_compressed_too() -> None:
    packed = encode(ROWS, mapper=lambda row: Long(thing=row["thing"], count=row["count"], text="large " * 100))
    assert all(unpack_envelope(item[3]).compressed for item in packed)


class Kept(Command[None], entity="thing", name="test.kept", history="1 h"):
    thing: EntityId
    count: int


class KeptChecked(Checked, entity="thing", name="test.kept_checked", history="1 h"):
    pass


def test_a_dispatch_has_no_history_beside_its_outcomes() -> None:
    mapped = encode(ROWS, mapper=lambda row: Kept(thing=row["thing"], count=row["count"]))
    _, item = Offline(history="1 h").pack(Envelope(Kept(thing="x", count=1), command_id="a"))
    assert versions_of([*encode(ROWS, Kept), *encode(ROWS, KeptChecked), *mapped, item]) == [None] * 7


class Pair(Command[None], entity="thing"):
    one: EntityId
    other: EntityId


def test_a_mapper_gives_no_command_of_several_entities() -> None:
    """It would stand in one line only, and be a dead letter there."""
    (reject,) = encode({"command_id": ["a"], "thing": ["x"]}, mapper=lambda row: Pair(one=row["thing"], other="b"))
    assert "Pair stands in the lines of several entities" in why(reject)
