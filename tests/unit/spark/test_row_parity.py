"""A row becomes the command that plain Python would send: for generated models and rows, the same ids, payloads, mailboxes and refusals."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PlainSerializer,
    computed_field,
    create_model,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import to_json

from command_bus import Command, CommandBusError, EntityId
from command_bus.messages.outgoing import Envelope
from command_bus.serialization.models import codec_for

pa = pytest.importorskip("pyarrow")

from command_bus.spark.writing.task_results import RowReject  # noqa: E402 - after the skip
from tests.unit.spark.encoders import Offline, encode, why  # noqa: E402

MODELS = SimpleNamespace()
"""Where a route finds the model of an example by its name."""
sys.modules[f"{__name__}_models"] = MODELS  # type: ignore[assignment]
EPOCH, EPOCH_DAY = datetime(1970, 1, 1, tzinfo=UTC), date(1970, 1, 1).toordinal()


class Unreadable:
    """A value that Arrow holds and Python does not."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw


def texts(values: list[Any]) -> Any:
    """Return text as Spark passes it, with any bytes."""
    raw = [None if value is None else value.raw if isinstance(value, Unreadable) else value.encode() for value in values]
    column = pa.array(raw, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(column), column.buffers(), column.null_count)


def days(values: list[Any]) -> Any:
    raw = [
        None if value is None else value.raw if isinstance(value, Unreadable) else value.toordinal() - EPOCH_DAY
        for value in values
    ]
    return pa.array(raw, pa.int32()).view(pa.date32())


def instants(zone: str | None) -> Callable[[list[Any]], Any]:
    def make(values: list[Any]) -> Any:
        raw = [None if value is None else value.raw if isinstance(value, Unreadable) else micros(value) for value in values]
        return pa.array(raw, pa.int64()).view(pa.timestamp("us", zone))

    return make


def micros(value: datetime) -> int:
    return (value.replace(tzinfo=value.tzinfo or UTC) - EPOCH) // timedelta(microseconds=1)


def of(kind: Any) -> Callable[[list[Any]], Any]:
    return lambda values: pa.array(values, kind)


class Place(BaseModel):
    city: str
    since: datetime | None = None


TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=6)
INT64 = st.one_of(st.integers(-3, 103), st.integers(-(2**63), 2**63 - 1))
FLOATS = st.one_of(st.floats(-10, 10), st.sampled_from([math.nan, math.inf, -0.0, 1e300]))
AWARE = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)).map(lambda value: value.replace(tzinfo=UTC))
NAIVE = st.datetimes()
BAD_TEXT = st.sampled_from([b"\xff", b"ok\x80", b"\xed\xa0\x80"]).map(Unreadable)
BAD_DAY = st.sampled_from([3_000_000, -720_000, 2**31 - 1]).map(Unreadable)
BAD_INSTANT = st.sampled_from([253_402_300_800_000_000, -(2**63), 2**63 - 1]).map(Unreadable)
PLACE = pa.struct([("city", pa.string()), ("since", pa.timestamp("us", "Europe/Berlin"))])


def upper(value: str) -> str:
    return value.upper()


def even(value: int) -> int:
    if value % 2:
        raise ValueError("odd")
    return value


@dataclass(frozen=True)
class Kind:
    """A field with its column."""

    annotation: Any
    values: st.SearchStrategy[Any]
    column: Callable[[list[Any]], Any]
    default: Any = None


KINDS = [
    Kind(int, INT64, of(pa.int64()), 7),
    Kind(int, st.integers(-5, 5), of(pa.int8()), 2**70),
    Kind(Annotated[int, Field(ge=0, lt=100)], INT64, of(pa.int64()), -1),
    Kind(Annotated[int, Field(le=10**30)], INT64, of(pa.int64()), 1),
    Kind(Annotated[int, AfterValidator(even)], INT64, of(pa.int64()), 3),
    Kind(Annotated[int, PlainSerializer(lambda value: value + 1)], st.integers(-5, 5), of(pa.int64()), 3),
    Kind(float, FLOATS, of(pa.float64()), 0.5),
    Kind(float, INT64, of(pa.int64()), 1),
    Kind(Annotated[float, Field(gt=-1.5, le=100)], st.floats(width=32), of(pa.float32()), 0.5),
    Kind(Annotated[float, Field(ge=2**53 + 1)], INT64, of(pa.int64()), 0.5),
    Kind(Annotated[float, Field(allow_inf_nan=True)], FLOATS, of(pa.float64()), math.inf),
    Kind(str, st.one_of(TEXT, BAD_TEXT), texts, "ü" * 90),
    Kind(Annotated[str, Field(min_length=1, max_length=4)], st.one_of(TEXT, BAD_TEXT), texts, ""),
    Kind(Annotated[str, Field(pattern=r"^[a-cé ]{0,3}$")], st.text("abcdé \n", max_size=4), texts, "x"),
    Kind(Annotated[str, Field(pattern=r"^[a-z&&[ae]]$")], st.sampled_from(["a", "b", "b]", "&]", "a]"]), texts, "x"),
    Kind(Annotated[str, BeforeValidator(upper)], TEXT, texts, "low"),
    Kind(bool, st.booleans(), of(pa.bool_()), True),
    Kind(bytes, st.binary(max_size=4), of(pa.binary()), b"\xff"),
    Kind(Decimal, st.decimals(-9999, 9999, places=2), of(pa.decimal128(10, 2)), Decimal("1.5")),
    Kind(date, st.one_of(st.dates(), BAD_DAY), days, date(2026, 1, 1)),
    Kind(datetime, st.one_of(AWARE, BAD_INSTANT), instants("Europe/Berlin"), None),
    Kind(datetime, st.one_of(AWARE, BAD_INSTANT), instants("America/New_York"), None),
    Kind(datetime, st.one_of(NAIVE, BAD_INSTANT), instants(None), None),
    Kind(timedelta, st.timedeltas(timedelta(-9999), timedelta(9999)), of(pa.duration("us")), None),
    Kind(list[int], st.lists(st.one_of(INT64, st.none()), max_size=3), of(pa.list_(pa.int64())), None),
    Kind(list[datetime], st.lists(AWARE, max_size=2), of(pa.list_(pa.timestamp("us", "Asia/Tokyo"))), None),
    Kind(dict[str, float], st.dictionaries(TEXT, FLOATS, max_size=2), of(pa.map_(pa.string(), pa.float64())), None),
    Kind(Place, st.fixed_dictionaries({"city": TEXT, "since": st.one_of(AWARE, st.none())}), of(PLACE), None),
]  # fmt: skip
ENTITIES = [
    Kind(EntityId, st.one_of(TEXT, BAD_TEXT), texts),
    Kind(EntityId, INT64, of(pa.int64())),
    Kind(Annotated[EntityId, Field(description="said more of")], TEXT, texts),
    Kind(Annotated[EntityId, AfterValidator(lambda value: value.lower())], st.sampled_from(["abc", "ABC", "x"]), texts),
    Kind(
        Annotated[EntityId, BeforeValidator(lambda value: value and value.strip())], st.sampled_from(["abc", "abc ", ""]), texts
    ),
    Kind(Annotated[EntityId, BeforeValidator(str)], st.integers(0, 3), of(pa.int64())),
    Kind(Annotated[EntityId, BeforeValidator(str)], st.dates(), days),
]


class Lower:
    @field_validator("key", check_fields=False)
    @classmethod
    def _lower(cls, value: Any) -> Any:
        if value == "bad1":
            raise ValueError("a bad one")
        return value.lower() if isinstance(value, str) else value


class Turned:
    @model_validator(mode="after")
    def _turned(self) -> Any:
        if isinstance(self.key, str):  # type: ignore[attr-defined]
            self.__dict__["key"] = self.key.lower()  # type: ignore[attr-defined]
        return self


class Whole:
    @model_serializer(mode="wrap")
    def _whole(self, handler: Any) -> Any:
        return {name: value for name, value in handler(self).items() if name != "f0"} | {"extra": 1}


class Single:
    @field_serializer("f0", check_fields=False)
    def _single(self, value: Any) -> Any:
        # Not str(): equal instants may differ in their repr, by fold or by the object that means UTC.
        return [to_json(value, bytes_mode="base64", inf_nan_mode="strings", serialize_unknown=True).decode()]


class Computed:
    @computed_field  # type: ignore[prop-decorator]
    @property
    def doubled(self) -> int:
        return 2


class Posted:
    def model_post_init(self, _: Any) -> None:
        self.__dict__["f0"] = None


MANNERS: list[dict[str, Any]] = [{}, {}, {"validate_default": True}, {"exclude": True}, {"alias": "other"}]
BASES: list[Any] = [None, None, None, None, Lower, Turned, Whole, Single, Computed, Posted]


@dataclass(frozen=True)
class Example:
    """A model with its rows; a field without a column takes its default."""

    model: type[Command[None]]
    rows: list[dict[str, Any]]
    columns: dict[str, Any]


@st.composite
def examples(draw: Any) -> Example:
    kinds = {"key": draw(st.sampled_from(ENTITIES))}
    kinds |= {f"f{number}": kind for number, kind in enumerate(draw(st.lists(st.sampled_from(KINDS), max_size=3)))}
    fields: dict[str, Any] = {}
    fed = dict(kinds)
    for name, kind in kinds.items():
        nullable = name != "key" and draw(st.booleans())
        annotation = kind.annotation | None if nullable else kind.annotation
        if name != "key" and draw(st.booleans()):
            fields[name] = (annotation, Field(kind.default, **draw(st.sampled_from(MANNERS))))
            if draw(st.booleans()):
                del fed[name]
        else:
            fields[name] = (annotation, ...)
    base = draw(st.sampled_from(BASES))
    bases = (Command[None],) if base is None else (base, Command[None])
    MODELS.Generated = create_model("Generated", __base__=bases, __cls_kwargs__={"entity": "thing"}, **fields)
    ids = st.one_of(st.just("id"), TEXT, st.none(), BAD_TEXT)
    strategies = {name: st.one_of(kind.values, kind.values, st.none()) for name, kind in fed.items()}
    rows = draw(st.lists(st.fixed_dictionaries({"command_id": ids, **strategies}), min_size=1, max_size=6))
    columns = {name: kind.column([row[name] for row in rows]) for name, kind in fed.items()}
    return Example(MODELS.Generated, rows, {"command_id": texts([row["command_id"] for row in rows]), **columns})


def expected(example: Example, dispatcher: Offline, row: dict[str, Any]) -> Any:
    """Return what plain Python makes of a row: what a dispatcher packs, or how its refusal may begin."""
    unread = [name for name, value in row.items() if isinstance(value, Unreadable)]
    if unread:
        return tuple(f"column {name!r} holds" for name in unread)
    if not row["command_id"]:
        return ("its command id is NULL or empty",)
    if row["key"] is None:
        return ("key is null", "Generated: ", "its command has another entity id than column 'key'")
    fields = {name: value for name, value in row.items() if name != "command_id"}
    try:
        message = codec_for(example.model).validate(fields)
        _, packed = dispatcher.pack(Envelope(message, command_id=row["command_id"]))
    except CommandBusError as error:
        return (error.message,)
    if str(row["key"]) != packed[4]:
        return ("its command has another entity id than column 'key'",)
    return packed


@pytest.mark.promise("A row is what Python would send")
@settings(deadline=None, max_examples=250, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(examples(), st.sampled_from([64, 100, 300, 1024 * 1024]))
def test_a_row_becomes_what_plain_python_would_send(example: Example, most: int) -> None:
    agree(example, most)


@pytest.mark.parametrize("kind", KINDS, ids=range(len(KINDS)))
def test_a_default_without_a_column_is_sent_as_plain_python_would(kind: Kind) -> None:
    fields: dict[str, Any] = {"key": (EntityId, ...), "f0": (kind.annotation, Field(kind.default))}
    MODELS.Generated = create_model("Generated", __base__=Command[None], __cls_kwargs__={"entity": "thing"}, **fields)
    agree(Example(MODELS.Generated, [{"command_id": "id", "key": "a"}], {"command_id": texts(["id"]), "key": texts(["a"])}), 1024)


def agree(example: Example, most: int) -> None:
    dispatcher = Offline(keep=True, max_payload=most)
    found = encode(example.columns, f"{__name__}_models:Generated", dispatcher=dispatcher)
    assert len(found) == len(example.rows)
    for row, packed in zip(example.rows, found, strict=True):
        wanted = expected(example, dispatcher, row)
        if all(isinstance(each, str) for each in wanted):
            assert isinstance(packed, RowReject), row
            assert why(packed).startswith(wanted)
        else:
            assert packed == wanted
