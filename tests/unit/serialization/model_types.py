"""Types of fields for tests of the codecs."""

from __future__ import annotations

import collections
import dataclasses
import enum
import ipaddress
import pathlib
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypeVar
from uuid import UUID

from pydantic import (
    AnyUrl,
    BaseModel,
    BeforeValidator,
    ByteSize,
    Discriminator,
    Field,
    Json,
    PlainSerializer,
    PostgresDsn,
    RootModel,
    SecretStr,
    Tag,
)
from typing_extensions import TypedDict

from command_bus.messages.message import Command, EntityId

__all__ = [
    "CARD",
    "HERE",
    "REF",
    "TYPED",
    "AliasedCat",
    "AliasedDog",
    "Box",
    "Cat",
    "Color",
    "Data",
    "Deposit",
    "Dog",
    "Everything",
    "Item",
    "Level",
    "Pair",
    "Ranges",
    "Record",
    "T",
    "Tree",
    "shape_of",
]


T = TypeVar("T")


class Deposit(Command[int], entity="account"):
    account_id: EntityId
    amount: int


class Color(enum.Enum):
    RED = "red"
    TWO = 2


class Ranges(enum.Enum):
    LOW = (0, 1)
    HIGH = (date(2026, 1, 1), None)
    ODD = object()


class Level(enum.IntEnum):
    LOW = 1


class Pair(NamedTuple):
    a: int
    b: str = "x"


class Record(TypedDict):
    a: int
    b: NotRequired[date]


@dataclasses.dataclass
class Data:
    y: int
    t: tuple[int, ...] = ()


class Item(BaseModel):
    x: int
    day: date | None = None
    tags: frozenset[str] = frozenset()


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class AliasedCat(BaseModel):
    kind: Literal["cat"] = Field(alias="Kind")
    lives: int


class AliasedDog(BaseModel):
    kind: Literal["dog"] = Field(alias="Kind")
    name: str


class Box(BaseModel, Generic[T]):
    content: T


def shape_of(value: Any) -> str:
    return str(value["kind"] if isinstance(value, dict) else value.kind)


HERE = timezone(timedelta(hours=2))


REF = UUID("12345678-1234-5678-1234-567812345678")


TYPED: list[tuple[Any, Any]] = [
    (int, 5),
    (float, 1.5),
    (float, 1),
    (bool, True),
    (str, "Grüße"),
    (bytes, b"\x00"),
    (datetime, datetime(2026, 1, 1, tzinfo=HERE)),
    (datetime, datetime(2026, 1, 1)),
    (date, date(2026, 1, 1)),
    (time, time(1, 2, 3)),
    (timedelta, timedelta(days=1)),
    (Decimal, Decimal("1.50")),
    (Fraction, Fraction(1, 3)),
    (UUID, REF),
    (Color, Color.TWO),
    (Level, Level.LOW),
    (Ranges, Ranges.LOW),
    (list[Ranges], [Ranges.HIGH, Ranges.LOW]),
    (Literal[Ranges.HIGH, Color.TWO], Ranges.HIGH),
    (Color | None, None),
    (Literal["a", Color.RED], Color.RED),
    (Literal["a", Color.RED], "a"),
    (int | UUID, REF),
    (int | UUID, 3),
    (str | date, "2026-01-01"),
    (str | date, date(2026, 1, 1)),
    (list[int] | set[int], {1}),
    (list[int] | set[int], [1]),
    (tuple[int, ...] | str, (1, 2)),
    (tuple[int, str], (1, "a")),
    (Pair, Pair(1)),
    (Record, {"a": 1, "b": date(2026, 1, 1)}),
    (Data, Data(1, (2,))),
    (Item, Item(x=1, day=date(2026, 1, 1), tags=frozenset({"t"}))),
    (list[Item], [Item(x=1)]),
    (dict[UUID, Item], {REF: Item(x=1)}),
    (dict[int, str], {1: "a"}),
    (dict[Color, int], {Color.RED: 1}),
    (dict[tuple[int, str], int], {(1, "a"): 2}),
    (dict[date, list[Decimal]], {date(2026, 1, 1): [Decimal(1)]}),
    (set[tuple[int, str]], {(1, "a")}),
    (set[Color], {Color.RED, Color.TWO}),
    (frozenset[frozenset[int]], frozenset({frozenset({1})})),
    (collections.deque[int], collections.deque([1])),
    (collections.OrderedDict[str, int], collections.OrderedDict(a=1)),
    (collections.Counter[str], collections.Counter("aab")),
    (collections.defaultdict[str, int], collections.defaultdict(int, a=1)),
    (Mapping[str, int], {"a": 1}),
    (Sequence[int], [1, 2]),
    (Cat | Dog, Dog(kind="dog", name="x")),
    (Annotated[Cat | Dog, Field(discriminator="kind")], Cat(kind="cat", lives=9)),
    (Annotated[AliasedCat | AliasedDog, Field(discriminator="kind")], AliasedCat(Kind="cat", lives=9)),
    (Annotated[Annotated[Cat, Tag("cat")] | Annotated[Dog, Tag("dog")], Discriminator(shape_of)], Dog(kind="dog", name="x")),
    (Box[tuple[int, ...]], Box[tuple[int, ...]](content=(1,))),
    (RootModel[list[int]], RootModel[list[int]]([1])),
    (ipaddress.IPv4Address, ipaddress.IPv4Address("1.2.3.4")),
    (ipaddress.IPv6Network, ipaddress.IPv6Network("::/64")),
    (pathlib.PurePosixPath, pathlib.PurePosixPath("/x")),
    (AnyUrl, AnyUrl("https://example.org/")),
    (PostgresDsn, PostgresDsn("postgres://u@h/db")),
    (SecretStr, SecretStr("s3cret")),
    (re.Pattern[str], re.compile("a+")),
    (ByteSize, ByteSize(5)),
    (Json[list[int]], "[1]"),
    (Annotated[int, PlainSerializer(str), BeforeValidator(int)], 5),
    (Any, {"a": [1, {"b": date(2026, 1, 1)}]}),
    (dict[str, Any], {"a": None, "b": {1, 2}}),
]


class Everything(Command[None]):
    number: int = 1
    ratio: float = 1.0
    flag: bool = True
    text: str = ""
    raw: bytes = b""
    when: datetime | None = None
    day: date | None = None
    price: Decimal = Decimal(1)
    ref: UUID = REF
    color: Color = Color.RED
    pair: tuple[int, str] = (1, "a")
    words: set[str] = Field(default_factory=set[str])
    item: Item | None = None
    data: Data | None = None
    ids: list[int] = Field(default_factory=list[int])
    counts: dict[str, int] = Field(default_factory=dict[str, int])
    either: int | UUID = 1


CARD = "4111-1111-1111-1111"


class Tree(Command[None]):
    value: int
    children: list[Tree] = Field(default_factory=list)
