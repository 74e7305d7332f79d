"""Canonical forms and digests: values written otherwise have one digest, other values another."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_serializer

from command_bus import Command, EntityId
from command_bus.serialization.equality import NotPlain, canonical, digest, digest_of_head, is_same

HEAD = ("Deposit", "account", "a-17")
KEYS: Any = st.text(max_size=3) | st.integers(-3, 300) | st.booleans() | st.binary(max_size=2)
MOMENTS = st.datetimes(datetime(1902, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
SCALARS: Any = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.integers(0, 2)
    | st.floats(allow_nan=False)
    | st.sampled_from([0.0, 1.0, "1", b"1", Decimal(1)])
    | st.text(max_size=3)
    | st.binary(max_size=3)
    | st.decimals(-(10**9), 10**9, places=3)
    | MOMENTS
    | st.dates()
    | st.timedeltas(timedelta(-999), timedelta(999))
    | st.uuids()
)
VALUES: Any = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, min_size=2, max_size=4)
        | st.sets(KEYS)
    ),
    max_leaves=10,
)


def otherwise(value: Any, chance: random.Random) -> Any:
    """Return an equal value that is written otherwise."""
    if isinstance(value, dict):
        pairs = [(key, otherwise(part, chance)) for key, part in value.items()]
        chance.shuffle(pairs)
        return dict(pairs)
    if isinstance(value, list):
        return chance.choice([list, tuple])([otherwise(part, chance) for part in value])
    if isinstance(value, set):
        members = list(value)
        chance.shuffle(members)
        return chance.choice([set, frozenset])(members)
    if isinstance(value, Decimal):
        return value.quantize(Decimal(1).scaleb(-chance.randint(3, 6)))
    if isinstance(value, datetime):
        return value.astimezone(timezone(timedelta(minutes=chance.randint(-700, 700))))
    if isinstance(value, float) and value == 0:
        return -value
    return value


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal and of equal types, throughout."""
    if isinstance(one, dict) and isinstance(other, dict):
        pairs = list(other.items())
        for key, part in one.items():
            found = next((pair for pair in pairs if same(pair[0], key) and same(pair[1], part)), None)
            if found is None:
                return False
            pairs.remove(found)
        return not pairs
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, set) and isinstance(other, set):
        return len(one) == len(other) and all(any(same(each, member) for member in other) for each in one)
    return type(one) is type(other) and bool(one == other)


@given(VALUES, st.randoms(use_true_random=False))
def test_equal_values_have_one_form(value: Any, chance: random.Random) -> None:
    assert canonical(value) == canonical(otherwise(value, chance))


@given(VALUES, VALUES)
def test_other_values_have_another(one: Any, other: Any) -> None:
    assert (canonical(one) == canonical(other)) == same(one, other)


class Inner(BaseModel):
    count: int = 3
    names: list[str] = []


class Outer(Command[None], entity="box", version=3):
    box: EntityId
    value: Any = None
    inner: Inner = Inner()


@given(VALUES, VALUES, st.integers(2, 4), st.integers(2, 4))
def test_commands_are_told_apart_by_their_fields(one: Any, other: Any, count: int, number: int) -> None:
    first, second = (Outer(box="b", value=each, inner=Inner(count=size)) for each, size in ((one, count), (other, number)))
    assert (digest(HEAD, first) == digest(HEAD, second)) == (same(one, other) and count == number)


@pytest.mark.parametrize(
    ("known", "given", "expected"),
    [
        ("d1 01 aaaa 00000001", "d1 01 aaaa 00000001", True),
        ("d1 01 aaaa 00000001", "d1 01 aaaa 00000002", False),
        ("d1 01 aaaa 00000001", "d1 01 aaab 00000001", False),
        ("d1 01 aaaa 00000001", "d1 02 aaaa 00000002", True),
        ("d1 01 aaaa 00000001", "d1 02 aaab 00000001", False),
        ("d1 01 aaaa 00000000", "d1 01 aaaa 00000002", True),
        ("d1 01 aaaa 00000001", "d1 01 aaaa 00000000", True),
        ("d1 01 aaaa 00000000", "d1 01 aaab 00000002", False),
        ("17 01 aaaa 00000001", "d1 01 aaab 00000002", True),
        ("00 00 0000 00000000", "00 00 0000 00000000", True),
        ("00 00 0000 00000000", "d1 01 aaaa 00000001", False),
        ("d1 01 aaaa 00000001", "00 00 0000 00000000", False),
    ],
)
def test_what_digests_tell(known: str, given: str, expected: bool) -> None:
    assert is_same(bytes.fromhex(known), bytes.fromhex(given)) is expected


def test_a_digest_tells_heads_versions_and_values_apart() -> None:
    heads: list[tuple[Any, ...]] = [HEAD, ("Deposit", "accounta", "-17"), ("Deposit", None, None), ("Deposit", "", "")]
    digests = [digest(head, {}, 1) for head in heads] + [digest(HEAD, {}, 2), digest(HEAD, {"a": 1}, 1), digest_of_head(HEAD, 1)]
    assert len(set(digests)) == len(digests)
    assert {len(each) for each in digests} == {8}
    assert digest(HEAD, {"b": 1, "a": 2}, 1) == bytes.fromhex("d101001d97d65365")
    assert digest(HEAD, Outer(box="b")) == digest(HEAD, {"box": "b"}, 3)


@dataclass
class Counted:
    number: int = field(default_factory=lambda: 3)


def seven() -> int:
    return 7


FACTORIES: list[tuple[Callable[[], Any], bool]] = [
    (list, True),
    (lambda: ["a"], True),
    (lambda: {"a": Decimal("1.5")}, True),
    (Inner, True),
    (lambda: Inner(count=4), True),
    (Counted, True),
    (seven, True),
    (uuid4, False),
    (date.today, False),
    (lambda: datetime.now(UTC), False),
    (lambda: [uuid4() for _ in "ab"], False),
]


@pytest.mark.parametrize(("factory", "counts"), FACTORIES)
def test_a_factory_makes_a_default_if_it_can_make_only_one_value(factory: Callable[[], Any], counts: bool) -> None:
    class Made(BaseModel):
        value: Any = Field(default_factory=factory)

    assert (canonical(Made()) == canonical({})) is counts


def test_a_field_that_a_serializer_makes_data_of_counts_as_that() -> None:
    class Thing:
        def __init__(self, text: str) -> None:
            self.text = text

    class Holder(BaseModel, arbitrary_types_allowed=True):
        thing: Thing
        secret: Any = Field(default=None, exclude=True)

        @field_serializer("thing")
        def of_thing(self, thing: Thing) -> str:
            return thing.text

    assert canonical(Holder(thing=Thing("a"), secret=1)) == canonical({"thing": "a"})
    assert canonical([Holder(thing=Thing("a"))]) != canonical([Holder(thing=Thing("b"))])


@pytest.mark.parametrize("value", [object(), print, (each for each in "ab"), int, 2**64, range(3), "\ud800", [[UUID, 1]]])
def test_what_is_no_plain_data_is_refused(value: Any) -> None:
    with pytest.raises(NotPlain):
        canonical(value)


def test_what_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(NotPlain):
        canonical(value)
