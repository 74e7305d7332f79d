"""Messages that may be packed without pydantic's serializer."""

from __future__ import annotations

from collections import deque
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import cached_property
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    create_model,
    field_serializer,
    model_serializer,
    model_validator,
)

from command_bus.messages.message import Command, EntityId
from command_bus.serialization.models import codec_for
from command_bus.serialization.msgpack import unpack
from command_bus.serialization.schemas import Packing, packing_of_fields, wire_validator

FLAT, DIRECT, SERIALIZED = Packing.FLAT, Packing.DIRECT, Packing.SERIALIZED


class Color(Enum):
    RED = "red"


class Ranges(Enum):
    LOW = (0, 1)


class Inner(BaseModel):
    x: int


@pytest.mark.parametrize(
    ("annotation", "packing"),
    [
        (int, FLAT),
        (str | None, FLAT),
        (bool | float | bytes, FLAT),
        (date | datetime | Decimal | UUID, FLAT),
        (Color, FLAT),
        (Ranges, SERIALIZED),
        (Literal["a", Color.RED], FLAT),
        (Annotated[str, Field(min_length=1), AfterValidator(str.strip)], FLAT),
        (list[int], DIRECT),
        (dict[str, tuple[int, ...]], DIRECT),
        (set[frozenset[UUID]] | deque[int], DIRECT),
        (list, SERIALIZED),
        (dict[str, Any], SERIALIZED),
        (Any, SERIALIZED),
        (Inner, SERIALIZED),
        (Inner | None, SERIALIZED),
        (list[Inner], SERIALIZED),
        (dict[str, Inner], SERIALIZED),
        (tuple[int, Inner], SERIALIZED),
        (int | Inner, SERIALIZED),
        (Annotated[int, PlainSerializer(str)], SERIALIZED),
        (list[Annotated[int, PlainSerializer(str)]], SERIALIZED),
        (Annotated[int, Field(exclude=True)], SERIALIZED),
    ],
)
def test_packing_by_field(annotation: Any, packing: Packing) -> None:
    model = create_model("Model", field=(annotation, ...))
    assert packing_of_fields(model.__pydantic_core_schema__) is packing


class Extra(Command[None]):
    model_config = ConfigDict(extra="allow")
    a: int


class FieldSerializer(Command[None]):
    a: int

    @field_serializer("a")
    def double(self, value: int) -> int:
        return value * 2


class ModelSerializer(Command[None]):
    a: int

    @model_serializer
    def dump(self) -> dict[str, Any]:
        return {"a": 1}


class Recursive(Command[None]):
    next: Recursive | None = None


class Validated(Command[None]):
    a: int

    @model_validator(mode="after")
    def check(self) -> Validated:
        return self


class Empty(Command[None]):
    pass


class Plain(Command[None], entity="thing"):
    key: EntityId


@pytest.mark.parametrize(
    ("message_type", "packing"),
    [
        (Extra, SERIALIZED),
        (FieldSerializer, SERIALIZED),
        (ModelSerializer, SERIALIZED),
        (Recursive, SERIALIZED),
        (Validated, FLAT),
        (Empty, FLAT),
        (Plain, FLAT),
    ],
)
def test_packing_by_class(message_type: type[BaseModel], packing: Packing) -> None:
    assert packing_of_fields(message_type.__pydantic_core_schema__) is packing


class Cached(Command[None]):
    a: int

    @cached_property
    def twice(self) -> int:
        return self.a * 2


def test_a_cached_property_does_not_travel() -> None:
    message = Cached(a=1)
    before = codec_for(Cached).encode(message)
    assert message.twice == 2
    assert codec_for(Cached).encode(message) == before
    assert unpack(before) == {"a": 1}


def test_names_of_fields_are_not_taken_for_schemas() -> None:
    names = ("type", "strict", "schema_", "config", "default", "expected", "cls", "fields")
    fields: dict[str, Any] = dict.fromkeys(names, (tuple[int, ...], ...))
    model = create_model("Model", __config__=ConfigDict(strict=True), **fields)
    validator = wire_validator(model.__pydantic_core_schema__)
    assert validator.validate_python({name: [1] for name in names}).model_dump() == dict.fromkeys(names, (1,))


def test_the_schema_of_the_class_is_left_alone() -> None:
    before = repr(Plain.__pydantic_core_schema__)
    wire_validator(Plain.__pydantic_core_schema__)
    assert repr(Plain.__pydantic_core_schema__) == before
