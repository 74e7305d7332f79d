"""Data of `test_equality.py`: pairs of values, and of commands of two releases, and whether they are equal."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, Literal, NamedTuple
from uuid import UUID

from pydantic import BaseModel, Field, RootModel, SecretBytes, SecretStr

from command_bus import Command, EntityId, upcasts
from command_bus.serialization.equality import canonical


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    BIG = 3


class Plain(Enum):
    ONE = 1


class Point(NamedTuple):
    x: int
    y: int = 0


@dataclass(frozen=True)
class Address:
    city: str
    country: str = "DE"
    tags: list[str] = field(default_factory=list)


class Money(BaseModel):
    amount: Decimal = Decimal(0)
    currency: str = "EUR"


class Line(BaseModel):
    money: Money = Money()
    notes: dict[str, str] = Field(default_factory=lambda: {"a": "b"})
    limit: int | None = 5
    flag: int | bool = 1


class Names(RootModel[list[str]]): ...


class Card(BaseModel):
    kind: Literal["card"] = "card"
    cents: int = 0


class Cash(BaseModel):
    kind: Literal["cash"] = "cash"
    cents: int = 0


@dataclass(frozen=True)
class Row:
    """A pair of values.

    Attributes:
        name: Its name.
        one: Makes the first.
        other: Makes the second.
        equal: Whether they are equal.
        text: Whether JSON has both.
        sent: Whether a command can have both: what it carries must come back as it is.
    """

    name: str
    one: Callable[[], Any]
    other: Callable[[], Any]
    equal: bool
    text: bool = False
    sent: bool = True


EAST, NIGHT = timezone(timedelta(hours=2)), timezone(timedelta(hours=-11))
_WORDS = [f"word{number}" for number in range(20)]
_TEXT = UUID(int=7)


def _equal(name: str, one: Any, other: Any, **more: Any) -> Row:
    return Row(name, lambda: one, lambda: other, equal=True, **more)


def _unequal(name: str, one: Any, other: Any, **more: Any) -> Row:
    return Row(name, lambda: one, lambda: other, equal=False, **more)


VALUES: tuple[Row, ...] = (
    _equal("the order of a map", {"a": 1, "b": [2]}, {"b": [2], "a": 1}, text=True),
    _equal("the order of a nested map", [{"a": {"x": 1, "y": 2}, "b": 1}], [{"b": 1, "a": {"y": 2, "x": 1}}], text=True),
    _equal("keys that are numbers", {1: "a", 20: "b"}, {20: "b", 1: "a"}),
    _equal("kinds of maps", OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
    _equal("a counter", Counter("aab"), {"b": 1, "a": 2}),
    _equal("the order of a set", set(_WORDS), {*_WORDS[10:], *_WORDS[:10]}),
    _equal("a frozen set", {1, 2}, frozenset([2, 1])),
    _equal("sets in sets", {frozenset("ab"), frozenset("cd")}, {frozenset("dc"), frozenset("ba")}),
    _equal("zeros of a decimal", Decimal("1.0"), Decimal("1.00")),
    _equal("an exponent", Decimal(100), Decimal("1E2")),
    _equal("a decimal's zero", Decimal("-0.00"), Decimal(0)),
    _equal("zeros of a decimal, nested", {"a": [Decimal("2.50")]}, {"a": [Decimal("2.5")]}),
    _equal("a negative zero", -0.0, 0.0),
    _equal("an instant", datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 14, tzinfo=EAST)),
    _equal("an instant of another day", datetime(2026, 1, 1, tzinfo=UTC), datetime(2025, 12, 31, 13, tzinfo=NIGHT)),
    _equal("a time of day", time(12, tzinfo=UTC), time(14, tzinfo=EAST)),
    _equal("a text enum", Color.RED, "red"),
    _equal("a whole enum", Size.BIG, 3),
    _equal("an enum", Plain.ONE, 1),
    _equal("enums as keys", {Color.RED: 1, Color.BLUE: 2}, {"blue": 2, "red": 1}),
    _equal("enums and texts as keys", {Color.RED: 1, "a": 2}, {"a": 2, "red": 1}, sent=False),
    _equal("a list and a tuple", [1, 2], (1, 2)),
    _equal("a deque", deque([1, 2]), [1, 2]),
    _equal("kinds of bytes", b"ab", bytearray(b"ab"), sent=False),
    _equal("a secret", SecretStr("x"), SecretStr("x")),
    _equal("a path", PurePosixPath("/a"), "/a"),
    _equal("a default of a model", Line(), Line(money=Money(), limit=5, notes={"a": "b"})),
    _equal("a model as a map", Line(money=Money(amount=Decimal(3))), {"money": {"amount": Decimal(3)}}),
    _equal("a default of a dataclass", Address("Bonn"), Address("Bonn", "DE", [])),
    _equal("a dataclass as a map", Address("Bonn", "AT"), {"country": "AT", "city": "Bonn"}),
    _equal("a default of a named tuple", Point(1), Point(1, 0)),
    _equal("a named tuple as a list", Point(1), [1]),
    _equal("a root model", Names(["a"]), ["a"]),
    _unequal("a number and its text", 1, "1", text=True),
    _unequal("a number and a flag", 1, True, text=True),
    _unequal("a whole and a broken number", 1, 1.0),
    _unequal("a flag and a broken number", True, 1.0),
    _unequal("a number and a decimal", 1, Decimal(1)),
    _unequal("a decimal and its text", Decimal(1), "1"),
    _unequal("bytes and text", b"1", "1"),
    _unequal("nothing and an empty text", None, "", text=True),
    _unequal("nothing and nought", None, 0, text=True),
    _unequal("an empty list and an empty map", [], {}, text=True),
    _unequal("a list and a set", [1], {1}),
    _unequal("the order of a list", [1, 2], [2, 1], text=True),
    _unequal("a list in a list", [[1], 2], [[1, 2]], text=True),
    _unequal("keys of other types", {1: "a"}, {"1": "a"}),
    _unequal("a value moved to the key", {"a": "b"}, {"b": "a"}, text=True),
    _unequal("a missing key", {"a": None}, {}, text=True),
    _unequal("flags in a set", {True, 2}, {1, 2}),
    _unequal("numbers, nested", {"a": [1]}, {"a": [True]}, text=True),
    _unequal("secrets", SecretStr("x"), SecretStr("y")),
    _unequal("secret bytes", SecretBytes(b"x"), SecretStr("x")),
    _unequal("a moment and a clock", datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1)),
    _unequal("a day and a moment", date(2026, 1, 1), datetime(2026, 1, 1)),
    _unequal("an instant on another clock", datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 12, tzinfo=EAST)),
    _unequal("a span and seconds", timedelta(seconds=1), 1),
    _unequal("a uuid and its text", _TEXT, str(_TEXT)),
    _unequal("no limit and the limit by default", Line(limit=None), Line()),
    _unequal("a flag and the number by default", Line(flag=True), Line()),
    _unequal("a default, changed within", Line(money=Money(currency="USD")), Line()),
    _unequal("members of a union", Card(cents=1), Cash(cents=1)),
    _unequal("members of a union, all by default", Card(), Cash()),
    _unequal("a default of a dataclass, changed", Address("Bonn"), Address("Bonn", tags=["a"])),
    _unequal("a default of a named tuple, changed", Point(1), Point(1, 1)),
)
ONLY_IN_STEPS: tuple[Row, ...] = (
    _equal("no number", float("nan"), float("nan")),
    _equal("a view of a map", MappingProxyType({"b": 1, "a": 2}), {"a": 2, "b": 1}),
    _unequal("an infinity", float("inf"), float("-inf")),
)
"""What no command may have."""


# Commands of two releases: the first class is the older one.


class Place(BaseModel):
    city: str


class PlaceWithZip(BaseModel):
    city: str
    zip: str = ""
    names: tuple[str, ...] = Field(default_factory=tuple)


class Pay(Command[None], entity="box", name="pay"):
    box: EntityId
    cents: int


class PayInCurrency(Command[None], entity="box", name="pay"):
    box: EntityId
    currency: str = "EUR"
    cents: int
    notes: list[str] = Field(default_factory=lambda: [""])


class Send(Command[None], entity="box", name="send"):
    box: EntityId
    to: Place
    also: list[Place] = Field(default_factory=list[Place])


class SendToZip(Command[None], entity="box", name="send"):
    box: EntityId
    also: list[PlaceWithZip] = Field(default=[])
    to: PlaceWithZip


class Book(Command[None], entity="box", name="book"):
    box: EntityId
    euros: int


class BookCents(Command[None], entity="box", name="book", version=2):
    box: EntityId
    cents: int


@upcasts(BookCents, since=1)
def cents_of_euros(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of version 2."""
    return {"box": fields["box"], "cents": 100 * fields["euros"]}


NEWEST: tuple[type[Command[Any]], ...] = (PayInCurrency, SendToZip, BookCents)
RELEASES: tuple[Row, ...] = (
    _equal("a new field with a default", Pay(box="b", cents=1), PayInCurrency(box="b", cents=1)),
    _equal(
        "a new field with its default given", Pay(box="b", cents=1), PayInCurrency(box="b", cents=1, currency="EUR", notes=[""])
    ),
    _unequal("a new field with another value", Pay(box="b", cents=1), PayInCurrency(box="b", cents=1, currency="USD")),
    _unequal("another value beside a new field", Pay(box="b", cents=1), PayInCurrency(box="b", cents=2)),
    _equal(
        "new fields of a nested model",
        Send(box="b", to=Place(city="Bonn"), also=[Place(city="Ulm")]),
        SendToZip(box="b", to=PlaceWithZip(city="Bonn"), also=[PlaceWithZip(city="Ulm")]),
    ),
    _unequal(
        "a new field of a nested model with a value",
        Send(box="b", to=Place(city="Bonn")),
        SendToZip(box="b", to=PlaceWithZip(city="Bonn", zip="1")),
    ),
    _equal("another version", Book(box="b", euros=5), BookCents(box="b", cents=500)),
)


def all_forms() -> list[str]:
    """Return the canonical form of every value of the table."""
    rows = (*VALUES, *RELEASES, *ONLY_IN_STEPS)
    return [canonical(getattr(row, side)()).hex() for row in rows for side in ("one", "other")]
