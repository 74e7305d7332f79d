"""Members of maps and sets that share a hash, so that telling n of them apart takes n² comparisons. What is counted here is comparisons."""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import pytest
from pydantic import Field, TypeAdapter

from command_bus import Command, EntityId, InvalidCommand
from command_bus.serialization.extensions import DECIMAL, SET, UUID_CODE
from command_bus.serialization.limits import PayloadLimits, Undecodable
from command_bus.serialization.models import codec_for, reply_codec_for
from command_bus.serialization.msgpack import pack, unpack
from command_bus.serialization.native import ExtType, Packer

MODULUS = (1 << 61) - 1
"""Of the hashes of numbers."""


def ext(code: int, body: bytes) -> bytes:
    return bytes(Packer().pack(ExtType(code, body)))


def array(parts: list[bytes]) -> bytes:
    return b"\xdd" + struct.pack(">I", len(parts)) + b"".join(parts)


def table(keys: list[bytes]) -> bytes:
    return b"\xdf" + struct.pack(">I", len(keys)) + b"".join(key + b"\x01" for key in keys)


def a_set(parts: list[bytes]) -> bytes:
    return ext(SET, array(parts))


def alike(count: int, value: int = 5) -> list[UUID]:
    """Different UUIDs with one hash."""
    return [UUID(int=value + step * MODULUS) for step in range(count)]


def uuids(count: int, value: int = 5) -> list[bytes]:
    return [ext(UUID_CODE, each.bytes) for each in alike(count, value)]


def others(count: int) -> list[bytes]:
    return [ext(UUID_CODE, (1000 + 2**100 * step).to_bytes(16, "big")) for step in range(count)]


def nearly_equal(levels: int, width: int, last: int = 0) -> bytes:
    """Return sets within sets that differ in their last member alone: comparing two of them compares all."""
    if levels == 0:
        return uuids(last + 1)[last]
    return a_set([nearly_equal(levels - 1, width, each) for each in (*range(width - 1), width - 1 + last)])


FLOODS = {
    "a set, half of it": lambda: a_set(uuids(500) + others(500)),
    "a small part of a set": lambda: a_set(uuids(100) + others(2000)),
    "a small set": lambda: a_set(uuids(40)),
    "keys of a map": lambda: table(uuids(500) + others(500)),
    "keys of maps in a list": lambda: array([table(uuids(40))] * 20),
    "sets in a list": lambda: array([a_set(uuids(900))] * 20),
    "decimals": lambda: a_set([ext(DECIMAL, str(7 + step * MODULUS).encode()) for step in range(100)]),
    "tuples in a set": lambda: a_set([b"\x92\x01" + each for each in uuids(100)]),
    "tuples of numbers": lambda: a_set(
        [b"\x92" + b"".join(b"\xcf" + struct.pack(">Q", part * MODULUS) for part in (x, y)) for x in range(8) for y in range(8)]
    ),
    "tuples as keys": lambda: table([b"\x92\x01" + each for each in uuids(100)]),
    "sets within sets, all small": lambda: nearly_equal(3, 20),
    "sets within sets within sets, tiny": lambda: nearly_equal(5, 6),
    "sets within sets as keys": lambda: table([b"\x91" + nearly_equal(2, 20, each) for each in range(20)]),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_is_refused(name: str) -> None:
    with pytest.raises(Undecodable, match="equal hashes"):
        unpack(FLOODS[name]())


@pytest.fixture
def comparisons(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many UUIDs were compared."""
    counted = [0]
    compare: Callable[[UUID, object], bool] = UUID.__eq__

    def counting(self: UUID, other: object) -> bool:
        counted[0] += 1
        return compare(self, other)

    monkeypatch.setattr(UUID, "__eq__", counting)
    return counted


WORST = {
    "groups of all sizes": lambda: a_set([each for size in range(1, 33) for each in uuids(size, size * 2**40)]),
    "groups as large as they may be": lambda: a_set([each for group in range(60) for each in uuids(32, group * 2**40)]),
    "sets as large as they may be": lambda: array([a_set(uuids(32))] * 60),
    "maps as large as they may be": lambda: array([table(uuids(32))] * 60),
    **FLOODS,
}


@pytest.mark.parametrize("name", WORST)
def test_comparisons_are_bounded_by_the_size(name: str, comparisons: list[int]) -> None:
    data = WORST[name]()
    try:
        unpack(data)
    except Undecodable:
        assert name in FLOODS
    members = len(data) // 18 + 1
    assert comparisons[0] <= 40 * members


INNOCENT: dict[str, Any] = {
    "powers of two, whose hashes repeat every 61": {2.0**power for power in range(-1074, 1024)},
    "integers with few hashes": {step * MODULUS for step in range(8)} | set(range(100)),
    "coordinates, where -1 and -2 have one hash": {(x, y, z) for x in range(-3, 4) for y in range(-3, 4) for z in range(-3, 4)},
    "a corner of them": {(x, y, z) for x in (-1, -2) for y in (-1, -2) for z in (-1, -2)},
    "shapes": {frozenset((x + dx, y) for x in (-1, -2) for y in (-1, -2)) for dx in range(4)},
    "decimals": {Decimal(step) / 4 for step in range(3000)} | {Decimal(2) ** step for step in range(-100, 100)},
    "many ids": {UUID(int=step * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128) for step in range(3000)},
    "keys": {(step, UUID(int=step)): step for step in range(300)},
    "texts": {f"text {step}" for step in range(3000)},
}


@pytest.mark.parametrize("name", INNOCENT)
def test_what_is_no_flood_is_read(name: str) -> None:
    assert unpack(pack({"it": INNOCENT[name]})) == {"it": INNOCENT[name]}


def test_the_same_member_again_and_again_is_no_flood() -> None:
    assert unpack(a_set(uuids(1) * 500 + others(10))) == unpack(a_set(uuids(1) + others(10)))


# Lists that a model makes sets of, and texts that it makes keys of.


class Holds(Command[set[UUID]], entity="box"):
    box: EntityId
    ids: set[UUID] = Field(default_factory=set)
    shares: frozenset[Decimal] = Field(default_factory=frozenset)
    parts: set[Fraction] = Field(default_factory=set)
    anything: set[Any] = Field(default_factory=set)
    by_id: dict[UUID, int] = Field(default_factory=dict)
    pairs: set[tuple[str, UUID]] = Field(default_factory=set)
    numbers: set[tuple[int, int]] = Field(default_factory=set)
    shapes: set[frozenset[UUID]] = Field(default_factory=set)
    either: set[int] | set[UUID] = Field(default_factory=set)
    names: set[str] = Field(default_factory=set)


SPREAD = [UUID(int=step * 2**64 + step) for step in range(200)]
ALIKE = alike(100)
FIELDS: dict[str, tuple[Any, Any]] = {
    "ids": ([str(each) for each in ALIKE], [str(each) for each in SPREAD]),
    "shares": ([str(step * MODULUS) for step in range(100)], [str(step) for step in range(100)]),
    "parts": ([str(step * MODULUS) for step in range(100)], [f"1/{step}" for step in range(1, 100)]),
    "anything": (ALIKE, SPREAD),
    "by_id": ({str(each): 1 for each in ALIKE}, {str(each): 1 for each in SPREAD}),
    "pairs": ([["a", str(each)] for each in ALIKE], [["a", str(each)] for each in SPREAD]),
    "numbers": (
        [[x * MODULUS, y * MODULUS] for x in range(8) for y in range(8)],
        [[x, y] for x in range(-8, 8) for y in range(-8, 8)],
    ),
    "shapes": (
        [[str(each) for each in (*ALIKE[:31], last)] for last in ALIKE[31:63]],
        [[str(each), str(SPREAD[0])] for each in SPREAD[1:]],
    ),
    "either": (None, [str(each) for each in SPREAD]),
    "names": (None, [f"name {step}" for step in range(200)]),
}


@pytest.mark.parametrize("field", [field for field, (flood, _) in FIELDS.items() if flood is not None])
def test_a_flood_that_only_the_model_makes_is_refused(field: str) -> None:
    flood, _ = FIELDS[field]
    with pytest.raises(InvalidCommand, match="equal hashes"):
        codec_for(Holds).decode(pack({"box": "a", field: flood}))


def test_a_flood_is_refused_before_the_set_is_made(comparisons: list[int]) -> None:
    bad = [str(each) for each in alike(2000)]
    for members in (bad, [*bad, "no uuid"], [*bad, 7]):
        with pytest.raises(InvalidCommand):
            codec_for(Holds).decode(pack({"box": "a", "ids": members}))
    with pytest.raises(InvalidCommand):
        codec_for(Holds).decode(pack({"box": "a", "either": bad}))
    assert comparisons[0] < 10_000


@pytest.mark.parametrize("field", FIELDS)
def test_a_model_reads_what_is_no_flood(field: str) -> None:
    _, innocent = FIELDS[field]
    kind: Any = Holds.model_fields[field].annotation
    found = codec_for(Holds).decode(pack({"box": "a", field: innocent}))
    assert getattr(found, field) == TypeAdapter(kind).validate_python(innocent, strict=False)


def test_what_a_model_refuses_it_refuses_with_its_place() -> None:
    with pytest.raises(InvalidCommand, match=r"ids\.60: Input should be a valid UUID"):
        codec_for(Holds).decode(pack({"box": "a", "ids": [*map(str, SPREAD[:60]), "no uuid"]}))


def test_a_reply_may_not_flood_its_caller() -> None:
    with pytest.raises(Exception, match="equal hashes"):
        reply_codec_for(set[UUID]).decode(pack([str(each) for each in ALIKE]), PayloadLimits())
