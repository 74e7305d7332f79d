"""Kinds of values that programs carry: rows of the table *values × ways* (`test_values.py`).

A row is a name, an annotation and a function that makes a value of it. The value becomes the field `value` of a command, its reply, and the
argument and result of steps. A row whose command has more to it (a field that is excluded, say) also names a function that adds to the
namespace of the class. `outcome` is what every way must show: `same` value and class, `defined` (the class is refused) or `given` (the value
is refused); `either` of the same value and a refusal, as a way has it. Of two values of a row, the second may be of another outcome: write two rows.
"""

from __future__ import annotations

import dataclasses
import enum
import ipaddress
import pathlib
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    AnyUrl,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Discriminator,
    Field,
    FutureDatetime,
    Json,
    NaiveDatetime,
    PastDate,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    RootModel,
    SecretBytes,
    SecretStr,
    Tag,
    WrapValidator,
    computed_field,
    model_serializer,
    model_validator,
)
from typing_extensions import TypedDict

from tests.tables.derived import Day, Elapsed, Key, Low, Moment, Nameless, Paid, Precise, Red, Still, Token, Unpaid

__all__ = ["ROWS", "Row"]

Outcome = Literal["same", "defined", "given", "either"]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Row:
    """One kind of value."""

    name: str
    kind: Any
    make: Callable[[], Any]
    outcome: Outcome = "same"

    def __str__(self) -> str:
        return self.name


# What the rows are made of.


class Color(enum.Enum):
    RED = "red"
    TWO = 2


class Level(enum.IntEnum):
    LOW = 1


class Size(enum.StrEnum):
    BIG = "big"


class Span(enum.Enum):
    LOW = (0, 1)
    HIGH = (date(2026, 1, 1), None)


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Wide(enum.IntFlag):
    A, B, C, D, E, F, G, H, J = (2**bit for bit in range(9))


class Item(BaseModel):
    x: int
    day: date | None = None
    tags: frozenset[str] = frozenset()


class SpecialItem(Item):
    extra: int = 0


class OtherItem(Item): ...


class Plain(BaseModel):
    x: int


class Created(BaseModel):
    id: int


class Deleted(BaseModel):
    id: int


class Renamed(BaseModel):
    id: int
    name: str = ""


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    lives: int = 1


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Vector:
    x: int
    y: int = 0


@dataclasses.dataclass
class Point3(Point):
    z: int = 0


@dataclasses.dataclass
class Counted:
    x: int
    seen: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    x: int
    words: tuple[str, ...] = ()


class Pair(NamedTuple):
    a: int
    b: str = "x"


class Left(TypedDict):
    a: int


class Right(TypedDict):
    a: int


class Record(TypedDict, total=False):
    a: int
    b: date


class Box(BaseModel, Generic[T]):
    content: T


class Names(RootModel[list[str]]): ...


class Aliased(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    a: int = Field(alias="A")
    b: int = Field(validation_alias="B")
    c: int = Field(serialization_alias="C")


class Hidden(BaseModel):
    x: int
    secret: int = Field(0, exclude=True)


class Unreadable(BaseModel):
    x: int
    secret: int = Field(exclude=True)


class Computed(BaseModel):
    x: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.x


class Private(BaseModel):
    x: int
    _seen: int = PrivateAttr(0)

    def saw(self, seen: int) -> Private:
        self._seen = seen
        return self


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    x: int
    words: tuple[str, ...] = ()


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: int


class Made(BaseModel):
    words: list[str] = Field(default_factory=list[str])
    at: datetime = Field(default_factory=lambda: datetime(2026, 1, 1, tzinfo=UTC))


class Total(BaseModel):
    """Its validator changes what it has made each time."""

    x: int

    @model_validator(mode="after")
    def grow(self) -> Total:
        self.__dict__["x"] += 1
        return self


class Sorted(BaseModel):
    words: list[str]

    @model_validator(mode="after")
    def order(self) -> Sorted:
        self.words.sort()
        return self


class AsText(BaseModel):
    x: int

    @model_serializer
    def text(self) -> str:
        return str(self.x)


class Lax(BaseModel):
    when: datetime
    amount: Decimal
    flag: bool


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


class Worth(BaseModel):
    model_config = ConfigDict(allow_inf_nan=True)
    value: float


def kind_of(value: Any) -> str:
    return str(value["kind"] if isinstance(value, dict) else value.kind)


def cents(euros: int) -> int:
    return euros * 100


def trimmed(text: Any, handler: Any) -> Any:
    return handler(text.strip() if isinstance(text, str) else text)


HERE = timezone(timedelta(hours=2))
BERLIN = ZoneInfo("Europe/Berlin")
REF = UUID("12345678-1234-5678-1234-567812345678")
SHOUTED = Annotated[str, AfterValidator(str.upper)]
EUROS = Annotated[int, BeforeValidator(cents)]


def row(kind: Any, value: Any, outcome: Outcome = "same", name: str = "") -> Row:
    """Return the row of a value; a function makes one anew each time."""
    shown = name or f"{getattr(kind, '__name__', None) or kind} {value!r}"
    return Row(shown[:70], kind, value if callable(value) else lambda: value, outcome)


ROWS: list[Row] = [
    # Scalars.
    row(int, 5),
    row(int, 2**64 - 1),
    row(int, 10**30, "given"),
    row(int, lambda: 10**5000, "given", "int of 5,001 digits"),
    row(float, 1.5),
    row(float, -0.0),
    row(Worth, lambda: Worth(value=float("nan")), name="NaN in a model"),
    row(Worth, lambda: Worth(value=float("-inf")), name="infinity in a model"),
    row(bool, True),
    row(str, "Grüße"),
    row(str, lambda: "\ud800", "given", "lone surrogate"),
    row(bytes, b"\x00\xff"),
    row(type(None), None),
    row(datetime, datetime(2026, 1, 1, 1, 2, 3, 4, tzinfo=HERE)),
    row(datetime, datetime(2026, 1, 1)),
    row(datetime, lambda: datetime(2026, 7, 1, tzinfo=BERLIN), name="datetime in a named zone"),
    row(datetime, lambda: datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN), name="datetime in the second of two hours"),
    row(datetime, datetime.max.replace(tzinfo=HERE)),
    row(datetime, Moment(2026, 1, 1, tzinfo=HERE), "either", "a derived datetime"),
    row(datetime, Moment(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN), "either", "a derived datetime in the second of two hours"),
    row(datetime, Precise(2026, 1, 1), "given", "a derived datetime with nanoseconds"),
    row(list[datetime], [Moment(2026, 1, 1), Precise(2026, 1, 1)], "given", "a list of derived datetimes"),
    row(Annotated[datetime, AfterValidator(lambda value: value)], Moment(2026, 1, 1), "either", "a derived datetime that is read back"),
    row(dict[str, Any], {"a": Precise(2026, 1, 1)}, "given", "a derived datetime with nanoseconds under Any"),
    row(date, Day(2026, 1, 1), "either", "a derived date"),
    row(timedelta, Elapsed(1), "either", "a derived timedelta"),
    row(UUID, Key(int=1), "either", "a derived UUID"),
    row(Annotated[bytes, AfterValidator(lambda value: value)], Token(b"x"), "either", "derived bytes that are read back"),
    row(NaiveDatetime, datetime(2026, 1, 1)),
    row(FutureDatetime, lambda: datetime.now(UTC) + timedelta(seconds=0.4), name="FutureDatetime"),
    row(PastDate, date(2026, 1, 1)),
    row(date, date(2026, 1, 1)),
    row(time, time(1, 2, 3, tzinfo=HERE)),
    row(time, lambda: time(1, tzinfo=BERLIN), "given", "time in a named zone"),
    row(timedelta, timedelta(days=-1, microseconds=1)),
    row(Decimal, Decimal("1.50")),
    row(Decimal, Decimal("-0")),
    row(Fraction, Fraction(1, 3)),
    row(UUID, REF),
    row(Color, Color.TWO),
    row(Level, Level.LOW),
    row(Size, Size.BIG),
    row(Span, Span.HIGH),
    row(Rights, Rights.READ | Rights.WRITE),
    row(Rights, Rights(0)),
    row(Wide, Wide.A | Wide.J),
    row(Nameless, Nameless.ONE, "given", "an enum of objects"),
    row(Literal["a", Color.RED], Color.RED),
    row(complex, 1j, "given"),
    # Text of other types.
    row(pathlib.PurePosixPath, pathlib.PurePosixPath("/x")),
    row(ipaddress.IPv4Address, ipaddress.IPv4Address("1.2.3.4")),
    row(AnyUrl, AnyUrl("https://example.org/")),
    row(re.Pattern[str], re.compile("a+")),
    row(re.Pattern[str], re.compile("a+", re.IGNORECASE), "given"),
    row(SecretStr, SecretStr("s3cret")),
    row(SecretBytes, SecretBytes(b"s3cret")),
    row(ByteSize, ByteSize(5)),
    # Collections.
    row(list[int], [1, 2]),
    row(tuple[int, str], (1, "a")),
    row(tuple[int, ...], (1, 2)),
    row(set[tuple[int, str]], {(1, "a")}),
    row(frozenset[frozenset[int]], frozenset({frozenset({1})})),
    row(frozenset[Frozen], lambda: frozenset([Frozen(x=1)]), "given", "a set of models"),
    row(set[Still], lambda: {Still(1)}, "given", "a set of dataclasses"),
    row(dict[Still, int], lambda: {Still(1): 1}, "given", "a map whose keys are dataclasses"),
    row(set[Pair], {Pair(1)}),
    row(deque[int], deque([1])),
    row(OrderedDict[str, int], OrderedDict(b=1, a=2)),
    row(Counter[str], Counter("aab")),
    row(defaultdict[str, int], defaultdict(int, a=1), "either"),  # a signal has no types of its items
    row(Mapping[str, int], {"a": 1}),
    row(Sequence[int], [1, 2]),
    row(Sequence[int], (1, 2), "given"),
    row(dict[int, str], {1: "a", 2: "b"}),
    row(dict[UUID, int], {REF: 1}),
    row(dict[date, int], {date(2026, 1, 1): 1}),
    row(dict[Color, int], {Color.RED: 1, Color.TWO: 2}),
    row(dict[tuple[int, str], int], {(1, "a"): 2}),
    row(dict[float, int], {1.5: 1, -0.0: 2}),
    # Anything.
    row(Any, {"a": [1, {"b": date(2026, 1, 1)}]}),
    row(Any, (1, 2), "given"),
    row(Any, {"a": (1,)}, "given"),
    row(Any, lambda: Point(1), "given", "a dataclass under Any"),
    row(Any, lambda: Item(x=1), "given", "a model under Any"),
    row(Any, Color.RED, "given"),
    row(Any, frozenset({1}), "given"),
    row(Any, {1, 2}),
    row(dict[str, Any], {"a": None, "b": {1, 2}}),
    row(dict[str, object], {"a": Decimal(1), "b": REF}),
    # Models.
    row(Item, lambda: Item(x=1, day=date(2026, 1, 1), tags=frozenset({"t"})), name="a model with a set"),
    row(Item, lambda: SpecialItem(x=1, extra=5), "given", "a derived model with a field more"),
    row(Item, lambda: OtherItem(x=1), "given", "a derived model without one"),
    row(list[Item], lambda: [Item(x=1), SpecialItem(x=2)], "given", "a derived model in a list"),
    row(Item | None, lambda: Item(x=1), name="a model or None"),
    row(dict[UUID, Item], lambda: {REF: Item(x=1)}, name="a map of models"),
    row(Plain, lambda: Plain(x=1), name="a model that nothing derives from"),
    row(Plain, lambda: Plain.model_construct(x="text"), "given", "model_construct with another type"),
    row(Plain, Plain.model_construct, "given", "model_construct without a field"),
    row(Plain, lambda: Plain(x=1).model_copy(update={"x": "text"}), "given", "model_copy with another type"),
    row(Plain, lambda: Plain(x=1).model_copy(update={"x": 2}), name="model_copy"),
    row(Plain, lambda: Plain(x=1).model_copy(update={"y": 2}), name="model_copy with what is no field"),
    row(Frozen, lambda: Frozen(x=1, words=("a",)), name="a frozen model"),
    row(Box[int], lambda: Box[int](content=1), name="a generic model"),
    row(Box[tuple[int, ...]], lambda: Box[tuple[int, ...]](content=(1,)), name="a generic model of tuples"),
    row(Box, lambda: Box[int](content=1), "given", "a generic model where its arguments are left open"),
    row(Names, lambda: Names(["a"]), name="a RootModel"),
    row(Aliased, lambda: Aliased.model_validate({"A": 1, "B": 2, "c": 3}), name="aliases of three kinds"),
    row(Hidden, lambda: Hidden.model_validate({"x": 1}), name="an excluded field at its default"),
    row(Hidden, lambda: Hidden(x=1, secret=2), "given", "an excluded field"),
    row(Unreadable, lambda: Unreadable(x=1, secret=2), "defined", "an excluded field without a default"),
    row(Computed, lambda: Computed(x=1), name="a computed field"),
    row(Private, lambda: Private(x=1), name="a private attribute at its default"),
    row(Private, lambda: Private(x=1).saw(5), "given", "a private attribute"),
    row(Open, lambda: Open(x=1), name="a model that allows more, without"),
    row(Open, lambda: Open.model_validate({"x": 1, "y": (1,)}), "given", "extra fields that change"),
    row(Open, lambda: Open.model_validate({"x": 1, "y": "z"}), name="extra fields"),
    row(Made, Made, name="default factories"),
    row(Total, lambda: Total(x=1), "given", "a model whose validator changes it each time"),
    row(Sorted, lambda: Sorted(words=["b", "a"]), name="a model whose validator sorts"),
    row(AsText, lambda: AsText(x=1), "given", "a model that is written as text"),
    row(Lax, lambda: Lax.model_validate({"when": "2026-01-01T00:00:00Z", "amount": "1.50", "flag": 1}), name="a lax model"),
    row(Tree, lambda: Tree(value=1, children=[Tree(value=2)]), name="a recursive model"),
    # Dataclasses, records.
    row(Point, lambda: Point(1, 2), name="a dataclass"),
    row(Point, lambda: Point3(1, 2, 3), "given", "a derived dataclass"),
    row(Slotted, lambda: Slotted(1, ("a",)), name="a dataclass with slots"),
    row(Counted, lambda: Counted(1), "either", "a field that the constructor leaves out"),
    row(Pair, Pair(1)),
    row(Record, {"a": 1, "b": date(2026, 1, 1)}),
    # Unions.
    row(int | str, "5"),
    row(int | float, 1.0),
    row(bool | int, 1),
    row(int | bool, True),
    row(str | bytes, b"a"),
    row(int | UUID, REF),
    row(str | date, "2026-01-01"),
    row(date | datetime, datetime(2026, 1, 1)),
    row(datetime | date, date(2026, 1, 1)),
    row(str | UUID, str(REF)),
    row(list[int] | tuple[int, ...], [1]),
    row(list[int] | tuple[int, ...], (1,), "given"),
    row(set[int] | frozenset[int], frozenset({1}), "given"),
    row(list[int] | set[int], {1}),
    row(Color | str, "red"),
    row(Color | str, Color.RED, "given"),
    row(Color | Size, Size.BIG),
    row(str | pathlib.PurePosixPath, lambda: pathlib.PurePosixPath("x"), "given", "a path or text"),
    row(Created | Deleted, lambda: Created(id=1), "defined", "two models with the same fields"),
    row(Created | Deleted | None, lambda: Deleted(id=1), "defined", "two models with the same fields, or None"),
    row(list[Created | Deleted], lambda: [Deleted(id=1)], "defined", "a list of two models with the same fields"),
    row(Point | Vector, lambda: Vector(1), "defined", "two dataclasses with the same fields"),
    row(Left | Right, {"a": 1}, name="two records with the same fields"),
    row(Created | Renamed, lambda: Renamed(id=1, name="n"), name="two models, one with a field more"),
    row(Created | Point, lambda: Point(1), name="a model or a dataclass"),
    row(Cat | Dog, Dog, name="models told apart by a literal"),
    row(Annotated[Cat | Dog, Field(discriminator="kind")], Dog, name="a discriminated union"),
    row(Annotated[Paid | Unpaid, Field(discriminator="kind")], Unpaid, name="a union told apart by an enum"),
    row(Annotated[Paid | Unpaid, Field(discriminator="kind")], Paid, name="a union told apart by an enum with a number"),
    row(Annotated[Unpaid | Red, Field(discriminator="kind")], Unpaid, "given", "an enum's value is another's tag"),
    row(Annotated[Low | Unpaid, Field(discriminator="kind")], Low, "given", "a union told apart by an enum of tuples"),
    row(
        Annotated[Annotated[Cat, Tag("cat")] | Annotated[Dog, Tag("dog")], Discriminator(kind_of)],
        Dog,
        name="a union with a function that discriminates",
    ),
    row(Literal["red"] | Color, Color.RED, "given"),
    # Validators and serializers.
    row(EUROS, 5, "given", "a validator before, euros to cents"),
    row(SHOUTED, "loud", name="a validator after that is idempotent"),
    row(Annotated[str, WrapValidator(trimmed)], " a ", name="a validator around"),
    row(Annotated[int, AfterValidator(lambda value: value + 1)], 1, "given", "a validator after that adds one"),
    row(Annotated[Any, PlainValidator(str)], 5, name="a validator instead"),
    row(Annotated[int, PlainSerializer(str), BeforeValidator(int)], 5, name="a serializer and its validator"),
    row(Annotated[int, PlainSerializer(str)], 5, "given", "a serializer without its validator"),
    row(Json[list[int]], "[1]", name="Json"),
    row(Annotated[int, Field(gt=0)], 5, name="a constrained int"),
]  # fmt: skip
