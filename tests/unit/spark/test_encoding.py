"""Arrow's checks in bulk and pydantic's row by row give equal bytes and equal refusals."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_serializer, field_validator, model_serializer

from command_bus import Command, EntityId, InvalidCommand, InvalidSettings
from command_bus.messages.outgoing import Envelope
from command_bus.serialization.envelope import AT_MOST_ONCE, IN_DISPATCH, KEEP_OUTCOME, unpack_envelope
from command_bus.serialization.models import codec_for

pa = pytest.importorskip("pyarrow")

from command_bus.spark.options import WriteOptions  # noqa: E402
from command_bus.spark.writing.command_lookup import command_mappings  # noqa: E402
from command_bus.spark.writing.field_checks import plans_of  # noqa: E402
from command_bus.spark.writing.partition import payload_check  # noqa: E402 - after the skip
from command_bus.spark.writing.task_results import RowReject  # noqa: E402 - after the skip
from tests.unit.spark.encoders import Offline, check, encode, why  # noqa: E402


class Sample(Command[None], entity="thing", name="test.sample"):
    thing: EntityId
    count: Annotated[int, Field(ge=0, lt=100)]
    ratio: Annotated[float, Field(gt=-5.0)]
    label: Annotated[str, Field(min_length=1, max_length=6, pattern=r"^[a-zé ]+$")]
    note: str | None = None
    flag: bool = True
    raw: bytes | None = None


class Once(Command[None], entity="thing", name="test.once", delivery="at_most_once"):
    thing: EntityId
    count: int


class Free(Command[None], name="test.free"):
    count: int


class Checked(Command[None], entity="thing", name="test.checked"):
    thing: EntityId
    count: int

    @field_validator("count")
    @classmethod
    def _even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("odd")
        return value


class Lowered(Command[None], entity="thing", name="test.lowered"):
    """A command of scalars, with a validator of the entity id."""

    thing: EntityId
    count: int

    @field_validator("thing")
    @classmethod
    def _lower(cls, value: str) -> str:
        if value == "bad1":
            raise ValueError("a bad one")
        return value.lower()


class Whole(Command[None], entity="thing", name="test.whole"):
    thing: EntityId
    count: int

    @field_validator("count", mode="before")
    @classmethod
    def _less(cls, value: int) -> int:
        return value - 1000 if value > 1000 else value

    @model_serializer
    def _whole(self) -> dict[str, Any]:
        return {"thing": self.thing, "count": self.count + 1000}


class Single(Command[None], entity="thing", name="test.single"):
    thing: EntityId
    count: int = 0

    @field_validator("count", mode="before")
    @classmethod
    def _less(cls, value: int) -> int:
        return value - 1000 if value > 1000 else value

    @field_serializer("count")
    def _more(self, value: int) -> int:
        return value + 1000


class Dated(Command[None], entity="thing", name="test.dated"):
    thing: EntityId
    day: date | None = None
    at: datetime | None = None
    note: str = ""


class Preset(Command[None], name="test.preset"):
    count: int = Field(default=-1, ge=0, validate_default=True)


class Huge(Command[None], name="test.huge"):
    count: int = 2**70


class Long(Command[None], name="test.long"):
    note: str = "n" * 500


class Classes(Command[None], name="test.classes"):
    """A command whose pattern means `a` or `e` to the model; another engine finds it in `a]`."""

    note: Annotated[str, Field(pattern=r"^[a-z&&[ae]]$")]


class Ping(Command[None], name="test.ping"):
    """A command without fields."""


class Place(BaseModel):
    city: str
    zip: int


class Rich(Command[None], entity="thing", name="test.rich"):
    thing: EntityId
    at: datetime
    day: date
    price: Decimal
    place: Place
    tags: list[str]
    sizes: dict[str, int]
    kind: Literal["a", "b"] = "a"


def judged(fields: dict[str, Any]) -> tuple[Sample | None, str]:
    try:
        return codec_for(Sample).validate(fields), ""
    except InvalidCommand as error:
        return None, error.message


ROWS = st.fixed_dictionaries(
    {
        "command_id": st.one_of(st.text(min_size=1, max_size=40), st.none(), st.just("")),
        "thing": st.one_of(st.text(max_size=5), st.none()),
        "count": st.one_of(st.integers(-3, 103), st.none()),
        "ratio": st.one_of(st.floats(-10, 10), st.just(math.nan), st.just(math.inf), st.none()),
        "label": st.one_of(st.text(alphabet="aé Z0", max_size=8), st.none()),
        "note": st.one_of(st.text(max_size=4), st.none()),
        "flag": st.one_of(st.booleans(), st.none()),
        "raw": st.one_of(st.binary(max_size=4), st.none()),
    }
)
TYPES = {
    "command_id": pa.string(), "thing": pa.string(), "count": pa.int32(), "ratio": pa.float64(), "label": pa.string(), "note": pa.string(),
    "flag": pa.bool_(), "raw": pa.binary(),
}  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(st.lists(ROWS, min_size=1, max_size=12))
def test_arrow_and_pydantic_agree(rows: list[dict[str, Any]]) -> None:
    columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in TYPES.items()}
    dispatcher = Offline(keep=True)
    codec = codec_for(Sample)
    for row, packed in zip(rows, encode(columns, Sample, dispatcher=dispatcher), strict=True):
        fields = {name: value for name, value in row.items() if name != "command_id"}
        if not row["command_id"]:
            assert "command id is NULL or empty" in why(packed)
            continue
        if fields["thing"] is None:
            assert why(packed).startswith("thing is null: it is the entity id of ")
            continue
        message, refusal = judged(fields)
        if message is None:
            assert why(packed) == refusal
            continue
        mailbox, command_id, check, envelope, entity, number, flow, _ = packed
        assert (command_id, entity, number, flow) == (row["command_id"], row["thing"], 0, "")
        out = dispatcher.connection.builder.of_item(Envelope(message, command_id=row["command_id"]))
        assert mailbox == dispatcher.connection.builder.build(out).mailbox
        found = unpack_envelope(envelope)
        assert (found.command_id, found.name, found.entity_type, found.entity_id) == (
            command_id,
            "test.sample",
            "thing",
            row["thing"],
        )
        assert found.payload == codec.encode(message)
        assert check == payload_check("test.sample", found.payload)
        assert (found.flags, found.correlation_id) == (IN_DISPATCH | KEEP_OUTCOME, "dispatch-1")


def test_valid_batches_skip_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"command_id": ["a", "b"], "thing": [1, 2], "count": [1, 2], "ratio": [1, 2], "label": ["x", "y"]}
    monkeypatch.setattr(codec_for(Sample), "_validate", lambda fields: pytest.fail(f"validated {fields}"))
    first, second = encode(columns, Sample)
    envelope = unpack_envelope(second[3])
    assert (envelope.entity_id, envelope.flags) == ("2", IN_DISPATCH)
    assert first[0] == "thing:1"
    monkeypatch.undo()
    message = codec_for(Sample).decode(envelope.payload)
    assert message == Sample(thing=2, count=2, ratio=2.0, label="y")


def test_fields_that_arrow_can_check() -> None:
    plans, all_of_them = plans_of(Sample)
    assert all_of_them
    assert [(plan.name, plan.kind, plan.nullable) for plan in plans][:5] == [
        ("thing", "entity", False), ("count", "int", False), ("ratio", "float", False), ("label", "str", False), ("note", "str", True),
    ]  # fmt: skip
    assert not plans_of(Checked)[1]
    assert not plans_of(Rich)[1]


def test_validators_run() -> None:
    good, bad = encode({"command_id": ["a", "b"], "thing": ["x", "x"], "count": [2, 3]}, Checked)
    assert good[1] == "a"
    assert "odd" in why(bad)


def test_nested_values_reach_the_model() -> None:
    at = datetime(2026, 11, 21, 12, tzinfo=UTC)
    columns = {
        "command_id": ["a"],
        "thing": ["x"],
        "at": pa.array([at], pa.timestamp("us", tz="UTC")),
        "day": [date(2026, 11, 21)],
        "price": [Decimal("1.50")],
        "place": [{"city": "Ulm", "zip": 89073}],
        "tags": [["p", "q"]],
        "sizes": pa.array([[("s", 1), ("m", 2)]], pa.map_(pa.string(), pa.int64())),
    }
    (packed,) = encode(columns, Rich)
    message = codec_for(Rich).decode(unpack_envelope(packed[3]).payload)
    assert message == Rich(
        thing="x", at=at, day=date(2026, 11, 21), price=Decimal("1.50"), place=Place(city="Ulm", zip=89073), tags=["p", "q"],
        sizes={"s": 1, "m": 2},
    )  # fmt: skip


def test_several_commands_keep_the_order_of_their_rows() -> None:
    columns = {
        "command_id": ["a", "b", "c", "d", "e"],
        "thing": ["x"] * 5,
        "count": [1, 2, 3, 4, 5],
        "what": ["test.once", "test.checked", "nonsense", None, "test.once"],
    }
    packed = encode(columns, Once, Checked, command_column="what")
    assert [None if isinstance(each, RowReject) else each[1] for each in packed] == ["a", "b", None, None, "e"]
    assert unpack_envelope(packed[0][3]).flags == IN_DISPATCH | AT_MOST_ONCE
    assert "unknown command 'nonsense'; there are test.once, test.checked" in why(packed[2])
    assert "its command is NULL" in why(packed[3])


def test_a_command_without_an_entity_has_a_mailbox_of_its_own() -> None:
    (packed,) = encode({"command_id": ["a"], "count": [1]}, Free)
    assert packed[0] == "~:a"
    assert unpack_envelope(packed[3]).entity_id is None


def test_sequence_numbers_are_integers_that_lua_can_hold() -> None:
    columns = {"command_id": ["a", "b", "c"], "thing": ["x"] * 3, "count": [1, 2, 3], "seq": [7, None, 2**60]}
    packed = encode(columns, Once, sequence_column="seq")
    assert packed[0][5] == 7
    assert "sequence number is None" in why(packed[1])
    assert "below 2^53" in why(packed[2])


def test_rows_that_are_too_large_are_rejected_alone() -> None:
    columns = {
        "command_id": ["a", "b"],
        "thing": ["x", "x"],
        "count": [1, 1],
        "ratio": [1.0, 1.0],
        "label": ["a", "a"],
        "note": ["n", "n" * 500],
    }
    good, bad = encode(columns, Sample, dispatcher=Offline(max_payload=200))
    assert good[1] == "a"
    assert "limit is 200" in why(bad)


def test_a_missing_entity_id_names_its_column() -> None:
    columns = {"command_id": ["a"], "meter": pa.array([None], pa.string()), "count": [1]}
    (row,) = encode(columns, Once, columns={"thing": "meter"})
    assert why(row) == "meter is null: it is the entity id of test.once, which every row needs"


def test_reject_keys_depend_on_the_row() -> None:
    columns = {"command_id": ["a", "a", "a"], "thing": ["x"] * 3, "count": [1, 3, 3]}
    rejects = encode(columns, Checked)
    assert len({reject.key for reject in rejects}) == 2  # the last two are the same row
    assert json.loads(rejects[0].record)["row"] == {"thing": "x", "count": 1}


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ({"count": pa.float64()}, {}, "column 'count' is of type double, field count of test.once wants int: cast it"),
        ({"thing": pa.float64()}, {}, "wants text or integers"),
        ({"command_id": pa.int64()}, {}, "holds command ids, which are text"),
        ({}, {"sequence_column": "nope"}, "sequenceColumn = 'nope' names no column; there are command_id, thing, count"),
        ({}, {"sequence_column": "thing"}, "is a column of integers"),
    ],
)
def test_impossible_columns_are_refused_at_planning(columns: Any, options: Any, text: str) -> None:
    kinds = {"command_id": pa.string(), "thing": pa.string(), "count": pa.int64()} | columns
    schema = pa.schema(list(kinds.items()))
    chosen = WriteOptions(command=f"{__name__}:Once", **options)
    with pytest.raises(InvalidSettings) as caught:
        check(chosen, schema)
    assert text in caught.value.message


def test_a_missing_column_is_named() -> None:
    with pytest.raises(InvalidSettings, match=r"test\.once needs columns that are not there: count; there are command_id, thing"):
        command_mappings(WriteOptions(command=f"{__name__}:Once"), ["command_id", "thing"])
    with pytest.raises(InvalidSettings, match=r"count \(from column 'n'\)"):
        command_mappings(WriteOptions(command=f"{__name__}:Once", columns={"count": "n"}), ["command_id", "thing"])


@pytest.mark.parametrize("text", ["nonsense", "no.such.module:Thing", f"{__name__}:Missing", f"{__name__}:Offline"])
def test_an_unknown_command_is_refused(text: str) -> None:
    with pytest.raises(InvalidSettings, match="no class can be imported by this name"):
        command_mappings(WriteOptions(command=text), ["command_id"], lambda _: None)


def test_several_commands_need_a_column() -> None:
    with pytest.raises(InvalidSettings, match="2 commands need option commandColumn"):
        command_mappings(WriteOptions(command=f"{__name__}:Once,{__name__}:Checked"), ["command_id", "thing", "count"])


def test_55_a_validator_may_not_change_the_entity_of_a_row() -> None:
    """Rows are arranged by the column: other rows of the entity that the validator makes of `ABC` may be in another task."""
    columns = {"command_id": ["a", "b", "c"], "thing": ["abc", "ABC", "bad1"], "count": [1, 2, 3]}
    good, moved, bad = encode(columns, Lowered)
    assert good[0] == "thing:abc"
    assert why(moved).startswith("its command has another entity id than column 'thing': rows are put in order by the column")
    assert json.loads(moved.record)["entity"] == "ABC"
    assert "a bad one" in why(bad)


def test_a_mapper_may_not_change_the_entity_of_a_row() -> None:
    columns = {"command_id": ["a", "b", "c"], "key": ["x", "Y", None], "count": [1, 2, 3]}

    def mapper(row: dict[str, Any]) -> Command[None]:
        return Free(count=1) if row["key"] is None else Once(thing=row["key"].lower(), count=row["count"])

    good, moved, free = encode(columns, mapper=mapper, entity_column="key")
    assert good[0] == "thing:x"
    assert why(moved).startswith("its command has another entity id than column 'key'")
    assert free[0] == "~:c"  # without an entity there is no order to keep
    assert encode(columns, mapper=mapper)[1][0] == "thing:y"  # no column was named by which they are arranged


def test_a_mapper_s_error_without_a_text_costs_its_own_row_alone() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def mapper(row: dict[str, Any]) -> Command[None]:
        if row["count"] == 1:
            raise Mute
        return Free(count=2)

    mute, good = encode({"command_id": ["a", "b"], "count": [1, 2]}, mapper=mapper)
    assert why(mute) == "the mapper raised Mute: (the text of this Mute cannot be read)"
    assert good[0] == "~:b"


@pytest.mark.parametrize("command", [Whole, Single])
def test_serializers_run(command: type[Command[None]]) -> None:
    (packed,) = encode({"command_id": ["a"], "thing": ["x"], "count": [1]}, command)
    out = Offline().connection.builder.of_item(Envelope(command.model_validate({"thing": "x", "count": 1}), command_id="a"))
    assert unpack_envelope(packed[3]).payload == out.payload
    assert b"count\xcd\x03\xe9" in out.payload  # 1,001


def test_54_unreadable_values_reject_only_their_rows() -> None:
    notes = pa.array([b"ok", b"\xff", b"ok", b"ok", b"\xff"])
    columns = {
        "command_id": ["a", "b", "c", "d", "e"],
        "thing": ["x"] * 5,
        "day": pa.array([1, 2, 9_000_000, 4, 9_000_000], pa.int32()).view(pa.date32()),
        "at": pa.array([1, 2, 3, 1_700_000_000_000_000_000, 5]).view(pa.timestamp("us", "Europe/Berlin")),
        "note": pa.Array.from_buffers(pa.string(), 5, notes.buffers()),
    }
    first, *others = encode(columns, Dated)
    assert first[1] == "a"
    assert [why(each) for each in others] == [
        "column 'note' holds bytes that are no UTF-8 text",
        "column 'day' holds a date or time outside the years 1 to 9999",
        "column 'at' holds a date or time outside the years 1 to 9999",
        "column 'day' holds a date or time outside the years 1 to 9999",
    ]
    rows = [json.loads(each.record)["row"] for each in others]
    assert (rows[0]["note"], rows[1]["day"], rows[2]["at"]) == ("\\xff", "9000000", "1700000000000000000")


def test_any_column_may_hold_an_unreadable_value() -> None:
    """Including those of ids, names and entities, and with a mapper."""
    clean = {"command_id": ["a", "b"], "thing": ["x", "y"], "count": [1, 2], "what": ["test.once"] * 2}
    goods = {"command_id": b"a", "thing": b"x", "what": b"test.once"}
    for name, good in goods.items():
        columns = clean | {name: texts(good)}
        refusal = f"column {name!r} holds bytes that are no UTF-8 text"
        for found in (
            encode(columns, Once, command_column="what"),
            encode(columns, mapper=lambda row: Once(thing="x", count=row["count"])),
        ):
            assert not isinstance(found[0], RowReject)
            assert why(found[1]) == refusal


def texts(good: bytes) -> Any:
    """Return a good text and one that is no UTF-8."""
    raw = pa.array([good, b"\xff"])
    return pa.Array.from_buffers(pa.string(), 2, raw.buffers())


def test_instants_are_sent_in_utc() -> None:
    payloads = set()
    for zone in ("UTC", "Europe/Berlin", "America/New_York"):
        at = pa.array([datetime(2026, 7, 1, 12, tzinfo=UTC)], pa.timestamp("us", zone))
        (packed,) = encode({"command_id": ["a"], "thing": ["x"], "at": at}, Dated)
        payloads.add(unpack_envelope(packed[3]).payload)
    message = Dated(thing="x", at=datetime(2026, 7, 1, 12, tzinfo=UTC))
    assert payloads == {codec_for(Dated).encode(message)}


def test_a_command_without_fields_is_sent_for_every_row() -> None:
    packed = encode({"command_id": ["a", "b"]}, Ping)
    assert [each[1] for each in packed] == ["a", "b"]
    assert codec_for(Ping).decode(unpack_envelope(packed[0][3]).payload) == Ping()


def test_large_integers_are_rounded_like_in_python() -> None:
    (packed,) = encode({"command_id": ["a"], "thing": ["x"], "count": [1], "ratio": [2**53 + 1], "label": ["a"]}, Sample)
    assert codec_for(Sample).decode(unpack_envelope(packed[3]).payload).ratio == float(2**53 + 1)


@pytest.mark.parametrize("command", [Preset, Huge, Long, Classes])
def test_ambiguous_checks_are_left_to_the_model(command: type[Command[None]]) -> None:
    columns = {"command_id": ["a"]} | ({"note": ["a]"]} if command is Classes else {})
    (packed,) = encode(columns, command, dispatcher=Offline(max_payload=200))
    with pytest.raises(InvalidCommand) as caught:
        Offline(max_payload=200).connection.builder.of_item(
            codec_for(command).validate({n: v[0] for n, v in columns.items() if n == "note"})
        )
    assert why(packed) == caught.value.message
