"""Payload and result of one command as typed columns: each shape of a field has its type, or stays JSON as text."""

from __future__ import annotations

import dataclasses
import enum
import io
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, JsonValue, RootModel, computed_field
from pydantic_core import from_json

from command_bus import Command, EntityId

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from command_bus.export.columns import MICROS, json_text, packed_json  # noqa: E402 - after the skip
from command_bus.export.typed import TypedColumns, column_type  # noqa: E402
from command_bus.serialization.json_schemas import fields_schema, reply_schema  # noqa: E402
from command_bus.serialization.limits import PayloadLimits  # noqa: E402
from command_bus.serialization.models import codec_for  # noqa: E402

T = TypeVar("T")
TEXT, INT, REAL, FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()


class Pair(NamedTuple):
    a: int
    b: str


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 2


class Mixed(enum.Enum):
    ONE = 1
    B = "b"


class Empty(BaseModel):
    pass


class Node(BaseModel):
    at: int
    below: list[Node] = []


class Numbers(RootModel[list[int]]):
    pass


class Box(BaseModel, Generic[T]):
    what: T


class Counted(BaseModel):
    a: int

    @computed_field
    def twice(self) -> int:
        return 2 * self.a


class Renamed(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    a: int = Field(alias="A-a")


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


@dataclasses.dataclass
class Plain:
    a: int
    at: datetime | None = None


CAT = pa.struct([("kind", TEXT), ("lives", INT)])
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
EAST = NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))
ID = UUID(int=7)

SHAPES: list[tuple[Any, Any, Any, Any]] = [
    (str, "a\0b", TEXT, "a\0b"),
    (int, 2**63 - 1, INT, 2**63 - 1),
    (int, 2**64 - 1, INT, None),  # a column of Spark has no such number
    (float, 1e300, REAL, 1e300),
    (bool, True, FLAG, True),
    (int | None, None, INT, None),
    (bytes, b"\xff", TEXT, "data:;base64,/w=="),
    (Decimal, Decimal("1.50"), TEXT, "1.50"),
    (UUID, ID, TEXT, str(ID)),
    (Colour, Colour.RED, TEXT, "red"),
    (Level, Level.HIGH, INT, 2),
    (Mixed, Mixed.ONE, TEXT, "1"),
    (Mixed, Mixed.B, TEXT, '"b"'),
    (Literal["a", "b"], "b", TEXT, "b"),
    (Literal["a", 1], 1, TEXT, "1"),
    (datetime, NOON, MICROS, NOON),
    (datetime, EAST, MICROS, NOON),
    (datetime, datetime(2026, 11, 21, 12), MICROS, NOON),  # one without a zone counts as UTC
    (datetime, datetime(1, 1, 1, tzinfo=EAST.tzinfo), MICROS, None),  # in UTC it has no year
    (date, date(1, 1, 1), TEXT, "0001-01-01"),
    (time, time(1, 2), TEXT, "01:02:00"),
    (timedelta, timedelta(hours=-1), TEXT, "-PT1H"),
    (set[int], {1}, pa.list_(INT), [1]),
    (frozenset[str], frozenset("a"), pa.list_(TEXT), ["a"]),
    (tuple[int, ...], (1, 2), pa.list_(INT), [1, 2]),
    (tuple[int, str], (1, "a"), TEXT, '[1,"a"]'),
    (Pair, Pair(1, "a"), TEXT, '[1,"a"]'),
    (list[list[int | None]], [[1, None], []], pa.list_(pa.list_(INT)), [[1, None], []]),
    (dict[str, list[int]], {"": [1]}, pa.map_(TEXT, pa.list_(INT)), [("", [1])]),
    (dict[int, str], {1: "a"}, TEXT, '{"1":"a"}'),
    (dict[date, int], {date(2026, 1, 2): 1}, pa.map_(TEXT, INT), [("2026-01-02", 1)]),
    (dict[str, Cat], {"a": Cat()}, pa.map_(TEXT, CAT), [("a", {"kind": "cat", "lives": 9})]),
    (int | str | None, 5, TEXT, "5"),
    (int | list[int], [1], TEXT, "[1]"),
    (Cat | Dog, Dog(), TEXT, '{"kind":"dog"}'),
    (Annotated[Cat | Dog, Field(discriminator="kind")], Dog(), TEXT, '{"kind":"dog"}'),
    (Cat | None, None, CAT, None),
    (Node, Node(at=1, below=[Node(at=2)]), pa.struct([("at", INT), ("below", pa.list_(TEXT))]), {"at": 1, "below": ['{"at":2,"below":[]}']}),
    (Empty, Empty(), TEXT, "{}"),
    (list[Empty], [Empty()], pa.list_(TEXT), ["{}"]),
    (Numbers, Numbers([1]), pa.list_(INT), [1]),
    (Box[int], Box[int](what=1), pa.struct([("what", INT)]), {"what": 1}),
    (Counted, Counted(a=1), pa.struct([("a", INT)]), {"a": 1}),
    (Renamed, Renamed.model_validate({"a": 1}), pa.struct([("a", INT)]), {"a": 1}),
    (Open, Open.model_validate({"a": 1, "z": 3}), TEXT, '{"a":1,"z":3}'),
    (Plain, Plain(1, NOON), pa.struct([("a", INT), ("at", MICROS)]), {"a": 1, "at": NOON}),
    (JsonValue, {"a": [1]}, TEXT, '{"a":[1]}'),
    (Any, [1], TEXT, "[1]"),
]  # fmt: skip


def typed(columns: TypedColumns, payloads: list[str | None], results: list[str | None] | None = None) -> list[dict[str, Any]]:
    """Return the rows as a Parquet file has them."""
    count = len(payloads)
    batch = pa.RecordBatch.from_pydict(
        {
            "command": [columns.command] * count,
            "status": ["completed"] * count,
            "payload": pa.array(payloads, TEXT),
            "result": pa.array(results or [None] * count, TEXT),
        }
    )
    file = io.BytesIO()
    pq.write_table(pa.Table.from_batches([columns.of(batch)]), file)
    rows: list[dict[str, Any]] = pq.read_table(file).to_pylist()
    return rows


@pytest.mark.parametrize(("annotation", "value", "arrow", "shown"), SHAPES, ids=lambda value: "")
def test_each_shape_of_a_field_has_its_type_or_is_json(annotation: Any, value: Any, arrow: Any, shown: Any) -> None:
    kind: Any = type(
        "Shape",
        (Command[annotation],),
        {"__annotations__": {"who": EntityId, "field": annotation}, "__module__": __name__},
        entity="who",
        name="Shape",
    )
    columns = TypedColumns("Shape", fields_schema(kind), reply_schema(kind.spec().reply))
    assert columns.types()["payload"].arrow == pa.struct([("who", TEXT), ("field", arrow)])
    packed = codec_for(kind).encode(kind(who="w", field=value), PayloadLimits())
    text = packed_json(packed)
    assert text is not None
    [row] = typed(columns, [text], [json_text(from_json(text)["field"])])
    assert row["payload"] == {"who": "w", "field": shown}
    assert row["result"] == shown


def test_a_value_of_another_release_is_null_and_its_neighbours_are_not() -> None:
    schema = {
        "type": "object",
        "properties": {
            "real": {"type": "number"},
            "whole": {"type": "integer"},
            "at": {"type": "string", "format": "date-time"},
            "items": {"type": "array", "items": {"type": "integer"}},
        },
    }
    rows = typed(
        TypedColumns("Old", schema, None),
        [
            '{"real":9007199254740993,"whole":"1","at":5,"items":[1,"a"],"renamed":1}',
            '{"real":"x","whole":1}',
            "[1]",
            '{"whole":1e3,"real":' + "9" * 400 + "}",
            None,
        ],
    )
    empty = dict.fromkeys(schema["properties"])
    assert [row["payload"] for row in rows] == [
        {"real": 9007199254740992.0, "whole": None, "at": None, "items": [1, None]},
        {**empty, "whole": 1},
        None,
        empty,
        None,
    ]


def test_without_a_schema_it_is_text() -> None:
    kind = column_type(None)
    assert (kind.arrow, kind.convert({"a": 2**70}), kind.convert(None)) == (TEXT, '{"a":1180591620717411303424}', None)
