"""Fields against an announced JSON Schema: what is wrong is named, and no schema takes long."""

from __future__ import annotations

import time
from datetime import date, datetime
from datetime import time as day_time
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from command_bus import Command, EntityId
from command_bus.serialization.announced_schema import sound_schema
from command_bus.serialization.schema_check import SchemaCheck, schema_problems


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    sku: str
    count: Annotated[int, Field(gt=0, le=99)] = 1
    color: Color = Color.RED
    inner: Item | None = None


class Order(Command[list[Item]], entity="order"):
    order: EntityId
    at: datetime
    day: date = date(2026, 11, 21)
    hour: day_time = day_time(10)
    price: Decimal
    key: UUID
    items: list[Item]
    pair: tuple[int, str]
    tags: set[str] = set()  # noqa: RUF012 - a model copies it
    sizes: dict[str, float] = {}  # noqa: RUF012
    kind: Literal["a", "b"] = "a"
    always: Literal["x"] = "x"
    anything: Any = None
    note: Annotated[str, Field(max_length=3, pattern="^x")] | None = None


CHECK = SchemaCheck(Order.model_json_schema(by_alias=False))
GOOD: dict[str, Any] = {
    "order": "o",
    "at": "2026-11-21T10:00:00Z",
    "price": "1.5",
    "key": "0" * 32,
    "items": [{"sku": "s", "inner": {"sku": "t"}}],
    "pair": [1, "a"],
}


@pytest.mark.parametrize("more", [{}, {"note": None, "anything": [1], "order": 7}, {"day": "2026-11-22", "hour": "10:00:00"}])
def test_what_is_right_passes(more: dict[str, Any]) -> None:
    assert CHECK.problems({**GOOD, **more}) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"order": None}, "order is of type string, not null"),
        ({"order": True}, "order is of type string, not boolean"),
        ({"more": 1}, "more is unknown"),
        ({"kind": "c"}, "kind is one of 'a', 'b'"),
        ({"always": "y"}, "always is 'x'"),
        ({"items": {}}, "items is of type array, not object"),
        ({"items": [{}]}, "items.0.sku is missing"),
        ({"items": [{"sku": "s", "count": 0}]}, "items.0.count is above 0"),
        ({"items": [{"sku": "s", "count": 100}]}, "items.0.count is at most 99"),
        ({"items": [{"sku": "s", "count": 1.5}]}, "items.0.count is of type integer, not number"),
        ({"items": [{"sku": "s", "color": "pink"}]}, "items.0.color is one of 'red', 'blue'"),
        ({"items": [{"sku": "s", "inner": {"sku": 1}}]}, "items.0.inner.sku is of type string, not integer"),
        ({"pair": [1]}, "pair has at least 2"),
        ({"pair": [1, "a", 2]}, "pair has at most 2"),
        ({"pair": ["a", "b"]}, "pair.0 is of type integer"),
        ({"sizes": {"a": "b"}}, "sizes.a is of type number"),
        ({"note": "xxxx"}, "note has at most 3"),
        ({"note": "y"}, "note matches ^x"),
        ({"at": "yesterday"}, "at is of format date-time"),
        ({"day": "2026-13-01"}, "day is of format date"),
        ({"hour": "25:00"}, "hour is of format time"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], problem: str) -> None:
    found = CHECK.problems({**GOOD, **change})
    assert any(each.startswith(problem) for each in found), found


def test_what_is_missing_is_named() -> None:
    assert CHECK.problems({})[0] == "order is missing"


def test_all_that_is_wrong_is_named() -> None:
    schema = {"type": "string", "minLength": 3, "pattern": "^x"}
    assert schema_problems("a", schema) == ["the value has at least 3", "the value matches ^x"]


def test_all_of_and_one_of() -> None:
    schema = {"allOf": [{"minimum": 2}, {"maximum": 4}], "oneOf": [{"type": "integer"}, {"type": "null"}]}
    assert [schema_problems(value, schema) for value in (3, 1, 5, 3.5)] == [
        [],
        ["the value is at least 2"],
        ["the value is at most 4"],
        ["the value is of type integer, not number"],
    ]


@pytest.mark.timeout(10)  # it takes milliseconds
class TestHostileSchemas:
    def test_no_pattern_runs_in_an_engine_that_goes_back(self) -> None:
        """Asks first for what such an engine alone knows: from the second pattern it would not come back."""
        assert schema_problems("a", {"type": "string", "pattern": "^(?=b)"}) == []  # the worker may know it
        assert schema_problems("a" * 50_000 + "!", {"type": "string", "pattern": "^(a+)+$"}) == ["the value matches ^(a+)+$"]

    def test_choices_that_multiply_end_the_check(self) -> None:
        again = {"$ref": "#/$defs/A"}
        schema = {"$defs": {"A": {"anyOf": [{"items": again, "type": "array"}, {"items": again, "minItems": 1}]}}, **again}
        value: Any = "x"
        for _ in range(40):
            value = [value, 1]
        assert schema_problems(value, sound_schema(schema) or {}) == []

    def test_a_definition_that_leads_back_to_itself_ends_the_check(self) -> None:
        schema = {"$defs": {"A": {"allOf": [{"$ref": "#/$defs/A"}]}}, "$ref": "#/$defs/A"}
        assert schema_problems(1, sound_schema(schema) or {}) == []

    def test_values_may_be_as_deep_as_json_reads(self) -> None:
        schema = {"$defs": {"A": {"additionalProperties": {"$ref": "#/$defs/A"}}}, "$ref": "#/$defs/A"}
        value: Any = 1
        for _ in range(900):
            value = {"a": value}
        assert schema_problems(value, sound_schema(schema) or {}) == []

    def test_many_choices_and_many_patterns_end_the_check(self) -> None:
        names = [f"n{number}" for number in range(20_000)]
        schema = {"items": {"enum": names, "required": names}, "properties": {name: {"pattern": f"({name}+)+"} for name in names}}
        began = time.monotonic()
        assert schema_problems([names[-1]] * 20_000, schema) == []
        assert schema_problems(dict.fromkeys(names[:100], "-"), schema)[:1] == ["n0 matches (n0+)+"]
        assert time.monotonic() - began < 5

    def test_a_problem_is_short(self) -> None:
        assert len(schema_problems("x", {"enum": [f"n{number}" for number in range(20_000)]})[0]) < 1_100
