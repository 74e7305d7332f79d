"""Changes of commands, each with what `schema check` says of it.

    fits            nobody notices: old and new read what the other sends
    workers first   new workers read what old senders send, and old workers do not read what new senders send
    breaks          what waits, or a caller, is not read, or stands in another line
    cannot tell     the shapes cannot be compared

Several rows are faults of other tools that compare schemas; the row names the report.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from types import new_class
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from command_bus import Command, EntityId, EntityOf, Event, Message, Query, RetryPolicy, Unique, upcasts

Kind = type[Message[Any]]
Upcaster = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """A change.

    Attributes:
        old: The classes before.
        new: The classes after.
        verdict: The worst verdict.
        place: Where the first change of that verdict is: `NAME.FIELD`, or `NAME`.
        compares: What that change compares.
        is_read: Whether values that the verdict warns of are read for all that, with another meaning.
    """

    old: tuple[Kind, ...]
    new: tuple[Kind, ...]
    verdict: str
    place: str = ""
    compares: str = ""
    is_read: bool = False


def pay(fields: Mapping[str, Any] | None = None, *, name: str = "Pay", reply: Any = int, base: Any = Command, up: Upcaster | None = None,
        **arguments: Any) -> Kind:  # fmt: skip
    """Return a command of an account with these fields: each a type, or a type and a default."""
    given = {"account": EntityId, **(fields or {})}
    split = {field: each if isinstance(each, tuple) else (each,) for field, each in given.items()}

    def fill(body: dict[str, Any]) -> None:
        body["__module__"] = __name__
        body["__annotations__"] = {field: each[0] for field, each in split.items()}
        body |= {field: each[1] for field, each in split.items() if len(each) > 1}

    bases = (base if base is Event else base[reply],)
    kind: Kind = new_class(name, bases, {"entity": "account", **arguments}, fill)
    if up is not None:
        for since in range(1, kind.spec().version):
            upcasts(kind, since=since)(up)
    return kind


def x(old: Any, new: Any, verdict: str, compares: str = "", *, place: str = "Pay.x", is_read: bool = False) -> Row:
    """Return the change of the type of one field."""
    return Row((pay({"x": old}),), (pay({"x": new}),), verdict, "" if verdict == "fits" else place, compares, is_read)


def replies(old: Any, new: Any, verdict: str, place: str = "Pay.reply") -> Row:
    """Return the change of the type of a reply."""
    return Row(
        (pay(reply=old),), (pay(reply=new),), verdict, "" if verdict == "fits" else place, "" if verdict == "fits" else "replies"
    )


class Color(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Colors(enum.StrEnum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


class Line(BaseModel):
    sku: str


class Item(BaseModel):
    sku: str


class LineOfMany(BaseModel):
    sku: str
    count: int


class LineOfOne(BaseModel):
    sku: str
    count: int = 1


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    sku: str


class ClosedOfOne(BaseModel):
    model_config = ConfigDict(extra="forbid")
    sku: str
    count: int = 1


class Tree(BaseModel):
    name: str
    below: list[Tree] = []


class TreeOfNumbers(BaseModel):
    name: int
    below: list[TreeOfNumbers] = []


class Leaf(BaseModel):
    kind: Literal["leaf"] = "leaf"


class Branch(BaseModel):
    kind: Literal["branch"] = "branch"
    below: list[Annotated[Leaf | Branch, Field(discriminator="kind")]] = []


class BranchOfOne(BaseModel):
    kind: Literal["branch"] = "branch"
    below: list[Annotated[Leaf | BranchOfOne, Field(discriminator="kind")]] = []
    many: int


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]
    age: int


class YoungDog(BaseModel):
    kind: Literal["dog"]


def even(number: int) -> int:
    """Return an even number."""
    if number % 2:
        raise ValueError("odd")
    return number


def renamed(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with `cents` for `amount`."""
    return {"account": fields["account"], "cents": fields["amount"] * 100}


def moved(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of another entity."""
    return {**fields, "account": "a-0"}


def unchanged(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields as they are."""
    return fields


class Payment(Command[int], entity="account", name="Pay"):
    account: EntityId
    x: int


class ByX(Command[int], entity="account", name="Pay"):
    account: str
    x: EntityId


OTHER = Annotated[str, EntityOf("shop")]
BOUND = Annotated[int, Field(ge=0, le=9)]
ROWS: dict[str, Row] = {
    "nothing": Row((pay({"x": int}),), (pay({"x": int}),), "fits"),
    # Commands.
    "a new command": Row((pay(),), (pay(), pay(name="Refund")), "workers first", "Refund", "forward"),
    "a new event": Row((pay(),), (pay(), pay(name="Paid", base=Event)), "fits"),
    "a command is gone": Row((pay(), pay(name="Refund")), (pay(),), "breaks", "Refund", "backward"),
    "a command is renamed": Row((pay({"x": int}),), (pay({"x": int}, name="Payment"),), "breaks", "Pay", "backward"),
    "a class is renamed": Row((pay({"x": int}),), (Payment,), "fits"),
    "a query from a command": Row((pay(),), (pay(base=Query),), "breaks", "Pay", is_read=True),
    # Entities.
    "another entity type": Row((pay(),), (pay(entity="wallet"),), "breaks", "Pay"),
    "another field of the entity": Row((pay({"x": str}),), (ByX,), "breaks", "Pay"),
    "a further entity": Row((pay({"x": str}),), (pay({"x": OTHER}),), "breaks", "Pay"),
    "the same entities": Row((pay({"x": OTHER}),), (pay({"x": OTHER}),), "fits"),
    "across shards": Row((pay({"x": OTHER}),), (pay({"x": OTHER}, across_shards=True),), "breaks", "Pay", is_read=True),
    "a durable handler": Row((pay(),), (pay(durable=True),), "breaks", "Pay", is_read=True),
    # Fields.
    "a field with a default": Row((pay(),), (pay({"x": (int, 1)}),), "workers first", "Pay.x", "forward"),
    "a field without a default": Row((pay(),), (pay({"x": int}),), "breaks", "Pay.x", "backward"),
    "a field is gone": Row((pay({"x": int}),), (pay(),), "breaks", "Pay.x", "backward"),
    "a field is renamed": Row((pay({"x": int}),), (pay({"y": int}),), "breaks", "Pay.x", "backward"),
    "a default is gone": Row((pay({"x": (int, 1)}),), (pay({"x": int}),), "breaks", "Pay.x", "backward"),
    "a default comes": Row((pay({"x": int}),), (pay({"x": (int, 1)}),), "workers first", "Pay.x", "forward"),
    "another default": Row((pay({"x": (int, 1)}),), (pay({"x": (int, 2)}),), "fits"),
    # Types. bufbuild/buf#80, #609: names of types say nothing. oasdiff#1088, openapi-changes#247: NULL comes by way of anyOf.
    "an enum of another name": x(Color, Colour, "fits"),
    "a model of another name": x(Line, Item, "fits"),
    "an enum is a literal": x(Color, Literal["red", "blue"], "fits"),  # oasdiff#930, pydantic#9402: one value is `const`
    "a literal of one value": x(Literal["red"], Color, "workers first", "forward"),
    "a literal of one value is text": x(Literal["red"], str, "workers first", "forward"),
    "an enum gets a member": x(Color, Colors, "workers first", "forward"),  # schema-registry#601, apicurio-registry#2572
    "an enum loses a member": x(Colors, Color, "breaks", "backward"),
    "text is an enum": x(str, Color, "breaks", "backward"),
    "NULL too": x(int, int | None, "workers first", "forward"),
    "an enum, or NULL": x(Color, Color | None, "workers first", "forward"),
    "no NULL": x(int | None, int, "breaks", "backward"),
    "a union in another order": x(int | str, str | int, "fits"),  # erlavro#80
    "a wider union": x(int, int | str, "workers first", "forward"),  # openapi-diff#797
    "a narrower union": x(int | str, int, "breaks", "backward"),
    "a number from a whole one": x(int, float, "workers first", "forward"),
    "a whole number from any": x(float, int, "breaks", "backward"),
    "a decimal from a number": x(float, Decimal, "workers first", "forward", is_read=True),
    "a time from a text": x(str, datetime, "breaks", "backward"),
    "a time from a date": x(date, datetime, "breaks", "backward", is_read=True),
    "a list from a set": x(set[int], list[int], "cannot tell", "backward"),
    "bytes from a text": x(str, bytes, "breaks", "backward"),
    # Bounds.
    "a wider bound": x(BOUND, Annotated[int, Field(ge=0, le=10)], "workers first", "forward"),
    "a narrower bound": x(BOUND, Annotated[int, Field(ge=1, le=9)], "breaks", "backward"),
    "the same bound, said otherwise": x(BOUND, Annotated[int, Field(gt=-1, lt=10)], "fits"),  # buf#1389
    "a shorter text": x(Annotated[str, Field(max_length=9)], Annotated[str, Field(max_length=8)], "breaks", "backward"),
    "a least length of none": x(str, Annotated[str, Field(min_length=0)], "fits"),
    "a pattern": x(str, Annotated[str, Field(pattern="^a")], "cannot tell", "backward"),
    # Within. schema-registry#391, #253; openapi-diff#212, oasdiff#314: nested in a list, in a union.
    "a field of a model": x(list[Line], list[LineOfMany], "breaks", "backward", place="Pay.x.*.count"),
    "a default of a model": x(list[Line], list[LineOfOne], "fits"),
    "a default of a closed model": x(list[Closed], list[ClosedOfOne], "workers first", "forward", place="Pay.x.*.count"),
    "a model of itself": x(Tree, TreeOfNumbers, "breaks", "backward", place="Pay.x.name"),
    "a union in itself": x(Leaf | Branch, Leaf | Branch, "fits"),  # pydantic#8688, exca#142: by way of a union, no name comes back
    "a field of a union in itself": x(Branch, BranchOfOne, "breaks", "backward", place="Pay.x.many"),
    "an open model": x(Line, LineOfOne, "fits"),  # schema-registry#1458, #4292, apicurio-registry#2573, #1710: what a model sends is known
    "a longer tuple": x(tuple[str, int], tuple[str, int, bool], "breaks", "backward"),  # apicurio-registry#2882
    "a model among others": x(Line, Line | int, "workers first", "forward"),  # schema-registry#3140
    "a multiple": x(int, Annotated[int, Field(multiple_of=5)], "breaks", "backward"),  # oasdiff#1208
    "what is said of a field": x(int, Annotated[int, Field(title="X", description="…", examples=[3])], "fits"),  # asyncapi/diff#150
    "a model of a union": x(Annotated[Cat | YoungDog, Field(discriminator="kind")], Annotated[Cat | Dog, Field(discriminator="kind")], "breaks",
                            "backward", place="Pay.x.age"),
    "values of a map": x(dict[str, int], dict[str, str], "breaks", "backward", place="Pay.x.*"),
    "keys of a map": x(dict[str, int], dict[int, int], "breaks", "backward"),
    # What no schema shows.
    "a validator": x(int, Annotated[int, AfterValidator(even)], "breaks", "backward"),
    "the validator was there": x(Annotated[int, AfterValidator(even)], Annotated[int, AfterValidator(even)], "fits"),
    # Versions.
    "an upcaster": Row((pay({"amount": int}),), (pay({"cents": int}, version=2, up=renamed),), "workers first", "Pay", "forward"),
    "an upcaster that forgets": Row((pay({"amount": int}),), (pay({"cents": int}, version=2, up=unchanged),), "breaks", "Pay", "backward"),
    "an upcaster that raises": Row((pay({"euros": int}),), (pay({"cents": int}, version=2, up=renamed),), "breaks", "Pay", "backward"),
    "an upcaster to another entity": Row((pay(),), (pay(version=2, up=moved),), "breaks", "Pay.account", "backward"),
    "a version without upcasters": Row((pay({"x": int}),), (pay({"x": int}, version=2),), "breaks", "Pay", "backward"),
    "a version falls": Row((pay(version=2, up=dict),), (pay(),), "breaks", "Pay", "backward"),
    # Replies. oasdiff#610: a new choice is new to its reader.
    "a reply of another type": replies(int, str, "breaks"),
    "a reply in itself": replies(Tree, TreeOfNumbers, "breaks", "Pay.reply.name"),
    "a wider reply": replies(int, int | None, "breaks"),
    "a narrower reply": replies(int | None, int, "fits"),
    "a reply gets a field": replies(Line, LineOfOne, "fits"),
    "a reply loses a field": replies(LineOfMany, Line, "breaks", "Pay.reply.count"),
    "a reply loses a field with a default": replies(LineOfOne, Line, "fits"),
    "an enum of a reply gets a member": replies(Color, Colors, "breaks"),
    # Behaviour.
    "retries": Row((pay(),), (pay(retry=RetryPolicy(attempts=9)),), "fits"),
    "a unique key": Row((pay(),), (pay(unique=Unique("x")),), "fits"),
    "delivery": Row((pay(),), (pay(delivery="at_most_once"),), "fits"),
}  # fmt: skip
