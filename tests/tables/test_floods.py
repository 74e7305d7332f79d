"""Carries out the table of `floods.py`."""

from __future__ import annotations

import json
from random import Random
from typing import Any
from uuid import UUID

import pytest
from pydantic import ConfigDict, create_model

from command_bus import Command, EntityId
from command_bus.errors import InvalidCommand
from command_bus.serialization.json_fields import json_fields_of
from command_bus.serialization.json_forms import read_json
from command_bus.serialization.models import codec_for
from tests.tables.floods import DOORS, HOLDERS

MODULUS = (1 << 61) - 1
ALIKE = [5 + step * MODULUS for step in range(100)]
_RANDOM = Random(7)
DIFFERENT = [_RANDOM.getrandbits(100) for _ in range(100)]


class Base(Command[None], entity="box"):
    box: EntityId


class Lax(Command[None], entity="box"):
    model_config = ConfigDict(strict=False)
    box: EntityId


def forms(numbers: list[int], how: str) -> Any:
    one: dict[str, Any] = {
        "number": int,
        "text": str,
        "uuid": lambda number: str(UUID(int=number)),
        "pair": lambda number: [number, 1],
        "key": str,
        "uuid key": lambda number: str(UUID(int=number)),
        "pair key": lambda number: f"[{number},1]",
    }
    if how == "number in a map":
        return {"a": numbers}
    made = [one[how](number) for number in numbers]
    return dict.fromkeys(made, 1) if "key" in how else made


def taken(door: str, field: str, numbers: list[int]) -> bool:
    """Return whether a door makes a command of a field with these members."""
    kind, how = HOLDERS[field]
    base: type[Command[Any]] = Lax if door == "lax" else Base
    fields: dict[str, Any] = {field: (kind, ...)}
    made: Any = create_model("Made", __base__=base, **fields)
    if door == "lax" and how == "number":
        how = "text"
    given = {"box": "a", field: forms(numbers, how)}
    if door == "text":
        given = read_json(json.dumps(given))
    try:
        wire = given if door == "lax" else json_fields_of(made).wire(given)
        codec_for(made).validate(wire)
    except InvalidCommand:
        return False
    return True


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("field", HOLDERS)
def test_members_of_one_hash_are_refused(field: str, door: str) -> None:
    assert not taken(door, field, ALIKE)


@pytest.mark.parametrize("field", HOLDERS)
def test_members_that_nobody_chose_are_taken(field: str) -> None:
    assert taken("class", field, DIFFERENT)
