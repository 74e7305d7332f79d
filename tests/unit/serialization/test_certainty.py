"""Types whose values certainly come back as they were: those, and only those, are not read back before they are sent."""

from __future__ import annotations

import dataclasses
import enum
from collections import deque
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    TypeAdapter,
    create_model,
)

from command_bus.errors import BadResult, InvalidCommand
from command_bus.messages.message import Command, EntityId
from command_bus.serialization import models
from command_bus.serialization.certainty import certainty_of
from command_bus.serialization.models import codec_for, reply_codec_for


class Color(enum.Enum):
    RED = "red"


class Item(BaseModel):
    x: int
    day: date | None = None


class Base(BaseModel):
    x: int


class Derived(Base): ...


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Private(BaseModel):
    _x: int = PrivateAttr(0)


class Excluded(BaseModel):
    x: int = Field(1, exclude=True)


class Sloppy(BaseModel):
    x: int = None  # type: ignore[assignment]


class Tree(BaseModel):
    children: list[Tree] = []


@dataclasses.dataclass
class Point:
    x: int


CERTAIN: list[Any] = [
    int,
    str | None,
    int | float | bool | bytes | UUID | date | datetime,
    Decimal,
    Color,
    Color | int,
    Decimal | int,
    Literal["a", "b"],
    Literal[1, 2],
    EntityId,
    Annotated[int, Field(gt=0)],
    list[int],
    dict[UUID, tuple[int, ...]],
    set[frozenset[str]],
    Item,
    Item | None,
    list[Item] | int,
    Tree,
    Annotated[Cat | Dog, Field(discriminator="kind")],
]
UNCERTAIN: list[Any] = [
    Any,
    list,
    dict[str, Any],
    Color | str,
    Literal["a", Color.RED],
    Literal[1, True],
    list[int] | tuple[int, ...],
    set[int] | frozenset[int],
    Cat | Dog,
    Path,
    deque[int],
    Sequence[int],
    Point,
    Open,
    Private,
    Excluded,
    Annotated[int, AfterValidator(abs)],
    Annotated[int, BeforeValidator(abs)],
    list[Annotated[int, PlainSerializer(str)]],
]


@pytest.mark.parametrize("kind", CERTAIN, ids=range(len(CERTAIN)))
def test_a_type_is_certain(kind: Any) -> None:
    assert certainty_of(TypeAdapter(kind).core_schema) is not None


@pytest.mark.parametrize("kind", UNCERTAIN, ids=range(len(UNCERTAIN)))
def test_a_type_is_not_certain(kind: Any) -> None:
    assert certainty_of(TypeAdapter(kind).core_schema) is None


@pytest.mark.parametrize(("kind", "valid"), [(Item, True), (Sloppy, False), (Tree, True)], ids=str)
def test_defaults_are_looked_at(kind: Any, valid: bool) -> None:
    found = certainty_of(TypeAdapter(kind).core_schema)
    assert found is not None
    assert found.valid is valid


def test_a_class_that_others_derive_from_is_known() -> None:
    base, item = certainty_of(TypeAdapter(list[Base]).core_schema), certainty_of(TypeAdapter(list[Item]).core_schema)
    assert base is not None
    assert item is not None
    assert (base.has_derived(), item.has_derived()) == (True, False)


@pytest.fixture
def read_back(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what was read back before it was sent."""
    compared: list[Any] = []

    def noted(sent: Any, arrived: Any) -> str | None:
        compared.append(sent)
        return None

    monkeypatch.setattr(models, "difference", noted)
    return compared


def test_what_is_certain_is_not_read_back(read_back: list[Any]) -> None:
    class Plain(Command[list[Item]]):
        ref: UUID = Field(default_factory=uuid4)
        items: list[Item] = Field(default_factory=list[Item])
        at: datetime | None = None

    codec_for(Plain).encode(Plain(items=[Item(x=1)]))
    reply_codec_for(list[Item]).encode([Item(x=1)])
    assert not read_back
    codec_for(Plain).encode(Plain().model_copy(update={"at": None}))
    assert len(read_back) == 1
    codec_for(Plain).encode(Plain.model_construct(ref=uuid4(), items=[], at=None))
    assert len(read_back) == 2
    reply_codec_for(list[Base]).encode([Base(x=1)])
    assert len(read_back) == 3


def changed(message: Any, value: Any) -> Any:
    message.value.append(value)
    return message


@pytest.mark.parametrize(
    ("kind", "first", "smuggled"),
    [
        (list[int], [1], "x"),
        (list[int], [1], True),
        (list[Item], [Item(x=1)], Item.model_construct(x="x")),
        (list[Item], [Item(x=1)], Item.model_construct()),
        (list[Item], [Item(x=1)], {"x": 1}),
        (list[Annotated[int, Field(gt=0)]], [1], -1),
        (list[Color], [Color.RED], "red"),
    ],
)
def test_what_was_put_into_a_collection_later_is_checked(kind: Any, first: Any, smuggled: Any) -> None:
    """Also where the type is certain: nobody has validated that."""
    message_type: Any = create_model("Message", __base__=Command[None], value=(kind, ...))
    good = message_type(value=list(first))
    assert codec_for(message_type).decode(codec_for(message_type).encode(good)) == good
    with pytest.raises(InvalidCommand, match=r"^Message\.(value|x)"):
        codec_for(message_type).encode(changed(good, smuggled))


def test_a_reply_that_was_changed_later_is_checked() -> None:
    codec = reply_codec_for(list[Item])
    item = Item(x=1)
    item.x = "x"  # type: ignore[assignment]
    with pytest.raises(BadResult, match=r"0\.x: "):
        codec.encode([item])


def test_a_default_that_is_not_of_its_type_is_refused() -> None:
    class Sloppily(Command[None]):
        note: str = None  # type: ignore[assignment]

    with pytest.raises(InvalidCommand, match="note: Input should be a valid string"):
        codec_for(Sloppily).encode(Sloppily())


def test_a_cached_property_is_no_field() -> None:
    class Cached(Command[None]):
        values: list[int]

        @cached_property
        def total(self) -> int:
            return sum(self.values)

    message = Cached(values=[1, 2])
    assert message.total == 3
    assert codec_for(Cached).decode(codec_for(Cached).encode(message)) == message
    message.values.append("x")  # type: ignore[arg-type]
    with pytest.raises(InvalidCommand, match="values"):
        codec_for(Cached).encode(message)
