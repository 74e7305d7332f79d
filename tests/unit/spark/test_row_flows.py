"""Rows of commands with a priority or a tenant wait in what `dispatch` would put equal commands into."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import field_validator

from command_bus import BusSettings, Command, EntityId, EntityPolicy, InvalidCommand, InvalidSettings, RetryPolicy, Unique
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.serialization.envelope import unpack_envelope

pa = pytest.importorskip("pyarrow")

from command_bus.messages.outgoing import Envelope  # noqa: E402 - after the skip
from command_bus.spark.options import WriteOptions  # noqa: E402
from command_bus.spark.writing.task_results import RowReject  # noqa: E402
from command_bus.transport.ports.bulk import LoadItem  # noqa: E402
from tests.unit.spark.encoders import Offline, check, encode, why  # noqa: E402


class Low(Command[None], entity="thing", name="flow.low", priority="low"):
    thing: EntityId
    count: int


class Shared(Command[None], entity="thing", name="flow.shared", fair_by="customer"):
    thing: EntityId
    customer: str | None = None


class Numbered(Command[None], entity="thing", name="flow.numbered", fair_by="customer"):
    thing: EntityId
    customer: int


class Lowered(Command[None], entity="thing", name="flow.lowered", fair_by="customer"):
    """A class that only its model can check."""

    thing: EntityId
    customer: str

    @field_validator("customer")
    @classmethod
    def _lower(cls, value: str) -> str:
        return value.lower()


class Far(Command[None], entity="thing", name="flow.far", fair_by="customer"):
    thing: EntityId
    customer: str = "x" * 201


class Folded(Command[None], entity="thing", name="flow.folded", unique=Unique()):
    thing: EntityId


def flows(packed: list[Any]) -> list[str]:
    return [item[6] for item in packed]


def options(packed: list[Any]) -> list[Any]:
    return [unpack_envelope(item[3]).options for item in packed]


def rows(**columns: list[Any]) -> dict[str, Any]:
    count = len(next(iter(columns.values())))
    return {"command_id": [f"c{n}" for n in range(count)], "thing": [f"t{n}" for n in range(count)], **columns}


def test_the_priority_of_a_class_is_that_of_its_rows() -> None:
    packed = encode(rows(count=[1, 2]), Low)
    assert flows(packed) == ["2", "2"]
    assert options(packed) == [{"p": "low"}] * 2


def test_an_option_counts_more_than_the_class_and_that_more_than_the_type() -> None:
    assert flows(encode(rows(count=[1]), Low, priority="high")) == ["0"]
    packed = encode(rows(count=[1]), Low, priority="normal")
    assert (flows(packed), options(packed)) == ([""], [None])
    policy = {"thing": EntityPolicy(priority="high")}
    assert flows(encode(rows(customer=["a"]), Shared, dispatcher=Offline(entities=policy))) == ["0a"]
    assert flows(encode(rows(count=[1]), Low, dispatcher=Offline(entities=policy))) == ["2"]


def test_a_column_says_the_priority_of_each_row() -> None:
    given = rows(count=[1, 2, 3, 4, 5], urgency=["high", None, "normal", "urgent", "low"])
    packed = encode(given, Low, priority="urgency")
    assert flows([packed[index] for index in (0, 1, 2, 4)]) == ["0", "2", "", "2"]
    assert [item[1] for item in (packed[0], packed[4])] == ["c0", "c4"], "in the order of the rows"
    assert "'urgent'" in why(packed[3])


def test_a_column_of_priorities_and_one_of_commands() -> None:
    given = rows(
        count=[1, 2, 3, 4],
        customer=[1, 2, 3, 4],
        kind=["flow.low", "flow.numbered", "other", "flow.low"],
        urgency=["high", "low", None, "?"],
    )
    packed = encode(given, Low, Numbered, priority="urgency", command_column="kind")
    assert flows(packed[:2]) == ["0", "22"]
    assert "unknown command 'other'" in why(packed[2])
    assert "'?'" in why(packed[3])


def test_the_tenant_is_that_of_the_field() -> None:
    assert flows(encode(rows(customer=["acme", None, "a/b c", "acme"]), Shared)) == ["1acme", "", "1a%2Fb%20c", "1acme"]
    assert flows(encode(rows(customer=[7, 8]), Numbered)) == ["17", "18"]
    assert flows(encode(rows(customer=["Acme"]), Lowered)) == ["1acme"], "as the model changes it"
    assert flows(encode(rows(other=[1, 2]), Shared)) == ["", ""], "the default names none"


def test_75_a_tenant_that_is_none_is_rejected_alone() -> None:
    packed = encode(rows(customer=["a", "x" * 201, "b"]), Shared)
    assert flows([packed[0], packed[2]]) == ["1a", "1b"]
    assert "200 bytes" in why(packed[1])
    assert "200 bytes" in why(encode(rows(customer=["x" * 201]), Lowered)[0])
    assert "200 bytes" in why(encode(rows(other=[1]), Far)[0])


@pytest.mark.promise("A row waits where Python's would")
def test_a_row_waits_where_dispatch_would_put_it() -> None:
    builder = EnvelopeBuilder(BusSettings(namespace="t"))
    for command in (Shared(thing="t0", customer="a/é"), Shared(thing="t0"), Numbered(thing="t0", customer=9)):
        (packed,) = encode(rows(customer=[command.customer]), type(command))
        assert flows([packed]) == [builder.build(builder.outgoing(command)).flow]


def test_a_mapper_s_commands_have_their_class_s_priority_and_tenant() -> None:
    def made(row: dict[str, Any]) -> Command[None]:
        return (
            Low(thing=row["thing"], count=1) if row["customer"] is None else Shared(thing=row["thing"], customer=row["customer"])
        )

    given = rows(customer=[None, "acme", "x"], urgency=[None, "high", "soon"])
    assert flows(encode(given, mapper=made)) == ["2", "1acme", "1x"]
    packed = encode(given, mapper=made, priority="urgency")
    assert flows(packed[:2]) == ["2", "0acme"]
    assert isinstance(packed[2], RowReject)
    assert "'soon'" in why(packed[2])


def test_an_envelope_keeps_what_it_says_of_its_attempts() -> None:
    command = Envelope(
        Low(thing="t", count=1),
        command_id="c",
        retry=RetryPolicy(attempts=2, delays=(3.0,)),
        attempt_timeout=4.0,
        priority="high",
    )
    _, item = Offline().pack(command)
    assert unpack_envelope(item[3]).options == {"r": {"attempts": 2, "delays": [3.0]}, "t": 4.0, "p": "high"}
    assert item[6] == "0"


def test_a_moment_is_refused_like_a_delay() -> None:
    from datetime import UTC, datetime

    with pytest.raises(InvalidCommand, match="no delay"):
        Offline().pack(Envelope(Low(thing="t", count=1), command_id="c", at=datetime(2030, 1, 1, tzinfo=UTC)))


@pytest.mark.parametrize(("name", "problem"), [("urgent", "there are command_id, thing, count"), ("count", "a column of texts")])
def test_116_a_priority_that_is_neither_one_nor_a_column_is_refused_when_the_query_is_planned(name: str, problem: str) -> None:
    chosen = WriteOptions.parse({"command": f"{__name__}:Low", "priority": name})
    schema = pa.schema([("command_id", pa.string()), ("thing", pa.string()), ("count", pa.int64())])
    with pytest.raises(InvalidSettings, match=problem):
        check(chosen, schema)


def test_a_mapper_s_command_with_a_unique_key_is_that_of_dispatch() -> None:
    dispatcher = Offline(keep=True)
    (packed,) = encode(rows(count=[1]), mapper=lambda row: Folded(thing=row["thing"]), dispatcher=dispatcher)
    assert packed == dispatcher.pack(Envelope(Folded(thing="t0"), command_id="c0"))[1]
    assert packed[7].key == "thing:t0:flow.folded"


@pytest.mark.parametrize("priority", [None, "high"])
def test_the_unique_key_of_a_row_is_what_dispatch_makes_of_it(priority: Any) -> None:
    dispatcher = Offline(keep=True)
    for thing in ("a", "a/b c", "x" * 300):
        given = {"command_id": ["c0"], "thing": [thing]}
        envelope = Envelope(Folded(thing=thing), command_id="c0", priority=priority)
        assert encode(given, Folded, dispatcher=dispatcher, priority=priority) == [dispatcher.pack(envelope)[1]]
        builder = dispatcher.connection.builder
        key, unique = dispatcher.pack(envelope)[1][7], builder.build(builder.of_item(envelope)).unique
        assert key is not None
        assert (key.key, key.mode, key.window_ms, key.longest_ms) == (
            unique.key,
            unique.mode,
            unique.window_ms,
            unique.longest_ms,
        )


class Sharded(Offline):
    """Records what is queued in two shards."""

    def __init__(self) -> None:
        super().__init__()
        self.added: list[tuple[int, list[tuple[str, str]]]] = []
        self._offline.shard_of = lambda mailbox: int(mailbox[-1]) % 2
        self._offline.transport = SimpleNamespace(shards=2)

    def add(self, shard: int, items: Iterable[LoadItem]) -> None:
        self.added.append((shard, [item[:2] for item in items]))


def test_rows_are_grouped_by_shard_and_mailbox_in_their_order() -> None:
    dispatcher = Sharded()
    given = {**rows(count=[*range(6)]), "thing": ["1", "2", "3", "2", "1", "4"]}
    dispatcher.add_all(encode(given, Low, dispatcher=dispatcher))
    assert dispatcher.added == [
        (0, [("thing:2", "c1"), ("thing:2", "c3"), ("thing:4", "c5")]),
        (1, [("thing:1", "c0"), ("thing:1", "c4"), ("thing:3", "c2")]),
    ]


def test_a_batch_without_rows_is_no_command() -> None:
    assert encode({name: pa.array(values)[:0] for name, values in rows(count=[1]).items()}, Low) == []
