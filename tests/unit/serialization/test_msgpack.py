"""Values to bytes and back, and what is refused on the way out."""

from __future__ import annotations

import re
import struct
import threading
from collections import OrderedDict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from ipaddress import ip_address
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AnyUrl, PostgresDsn, SecretStr

from command_bus.errors import InvalidCommand, PayloadTooLarge
from command_bus.serialization.extensions import MAX_DECIMAL_EXPONENT
from command_bus.serialization.limits import PayloadLimits, Undecodable
from command_bus.serialization.msgpack import MAX_SET_NESTING, pack, pack_flat, unpack

offsets = st.integers(-86_399, 86_399).map(lambda seconds: timezone(timedelta(seconds=seconds)))
decimals = st.decimals(allow_nan=False).filter(lambda value: abs(value.adjusted()) <= MAX_DECIMAL_EXPONENT)
hashable_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.datetimes(),
    st.datetimes(timezones=offsets),
    st.dates(),
    st.times(),
    st.times(timezones=offsets),
    st.timedeltas(timedelta(days=-(10**8)), timedelta(days=10**8)),
    decimals,
    st.uuids(),
)
keys = st.one_of(hashable_scalars, st.tuples(hashable_scalars, st.tuples(hashable_scalars)))
values = st.recursive(
    st.one_of(hashable_scalars, st.frozensets(st.one_of(keys, st.frozensets(hashable_scalars)))),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner), st.dictionaries(keys, inner)),
    max_leaves=20,
)


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def nested_sets(levels: int) -> Any:
    value: Any = frozenset()
    for _ in range(levels - 1):
        value = frozenset({value})
    return value


class Color(Enum):
    RED = "red"
    DAY = date(2026, 1, 1)


class Level(IntEnum):
    LOW = 1


class Word(StrEnum):
    YES = "yes"


class Point(NamedTuple):
    x: int
    y: int


@given(values)
def test_values_come_back_equal(value: Any) -> None:
    assert unpack(pack(value)) == value


@given(st.datetimes(timezones=offsets), st.times(timezones=offsets))
def test_offsets_are_kept(moment: datetime, clock: time) -> None:
    found = unpack(pack([moment, clock]))
    assert [found[0].utcoffset(), found[1].utcoffset()] == [moment.utcoffset(), clock.utcoffset()]
    assert found[0].replace(tzinfo=None) == moment.replace(tzinfo=None)


@given(st.frozensets(keys), st.randoms())
def test_equal_sets_give_equal_bytes(members: frozenset[Any], random: Any) -> None:
    shuffled = list(members)
    random.shuffle(shuffled)
    assert pack(set(shuffled)) == pack(members)


@given(values)
def test_what_can_be_packed_under_limits_can_be_unpacked_under_them(value: Any) -> None:
    limits = PayloadLimits(max_bytes=300, max_nesting=3, max_items=4)
    try:
        data = pack(value, limits)
    except InvalidCommand:
        return
    assert unpack(data, limits) == value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, (2,)), [1, [2]]),
        (Point(1, 2), [1, 2]),
        (deque([1]), [1]),
        (OrderedDict(a=1), {"a": 1}),
        (bytearray(b"x"), b"x"),
        (Color.RED, "red"),
        (Color.DAY, date(2026, 1, 1)),
        (Level.LOW, 1),
        (Word.YES, "yes"),
        ({Color.RED: {Color.DAY}}, {"red": {date(2026, 1, 1)}}),
        (PurePosixPath("/tmp/x"), "/tmp/x"),
        (AnyUrl("https://example.org/a"), "https://example.org/a"),
        (PostgresDsn("postgres://u@h/db"), "postgres://u@h/db"),
        (ip_address("::1"), "::1"),
        (Fraction(1, 3), "1/3"),
        (re.compile("a+"), "a+"),
        (SecretStr("s3cret"), "s3cret"),
        (datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/Berlin")), datetime(2026, 6, 30, 22, tzinfo=UTC)),
        (datetime(2026, 7, 1, fold=1), datetime(2026, 7, 1)),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=23))), datetime.min.replace(tzinfo=timezone(timedelta(hours=23)))),
        (
            datetime.max.replace(tzinfo=timezone(timedelta(hours=-23))),
            datetime.max.replace(tzinfo=timezone(timedelta(hours=-23))),
        ),
        ({1: "a", (1, 2): "b", frozenset({1}): "c", None: "d"}, {1: "a", (1, 2): "b", frozenset({1}): "c", None: "d"}),
    ],
)
def test_what_comes_back_of_other_types(value: Any, expected: Any) -> None:
    found = unpack(pack(value))
    assert found == expected
    assert type(found) is type(expected)


def test_a_set_comes_back_as_a_set_and_frozen_inside_another() -> None:
    found = unpack(pack({"s": {frozenset({(1, 2)})}}))["s"]
    assert type(found) is set
    assert all(type(member) is frozenset and type(next(iter(member))) is tuple for member in found)


def test_the_timestamps_of_other_libraries_are_read() -> None:
    assert unpack(b"\xd6\xff" + struct.pack(">I", 1_700_000_000)) == datetime.fromtimestamp(1_700_000_000, UTC)


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        ({"a": [1, {"b": object()}]}, "a[1].b", "type object"),
        ({"f": len}, "f", "builtin_function_or_method"),
        ({"n": 2**64}, "n", "beyond 64 bits"),
        ({"n": {"m": -(2**63) - 1}}, "n.m", "beyond 64 bits"),
        ({"t": "a\ud800"}, "t", "surrogates"),
        ({"s": {1, frozenset({2**70})}}, "s{…}{…}", "beyond 64 bits"),
        ({"with space": object()}, "['with space']", "type object"),
        ({"d": {5: object()}}, "d[5]", "type object"),
        ({"d": {2**64: 1}}, "d (the key 18446744073709551616)", "beyond 64 bits"),
        ({"d": {(1, object()): 1}}, "d (the key tuple)[1]", "type object"),
        ({"d": {10**5000: 1}}, "d (the key int)", "beyond 64 bits"),
        ({"q": deque([1, 1j])}, "q[1]", "complex"),
        ({"t": timedelta.max}, "t", "292,000 years"),
        ({"t": time(1, tzinfo=ZoneInfo("Europe/Berlin"))}, "t", "send a datetime"),
        ({"t": datetime(2026, 1, 1, tzinfo=timezone(timedelta(microseconds=1)))}, "t", "whole seconds"),
        ({"d": Decimal(f"1E+{MAX_DECIMAL_EXPONENT + 1}")}, "d", "exponent"),
        ({"d": Decimal("1" * 20_000)}, "d", "characters"),
        ({"s": nested_sets(MAX_SET_NESTING + 1)}, "s{…}{…}{…}{…}{…}{…}{…}{…}", ""),
        ([object()], "[0]", "type object"),
        ({"a": 1, "b": [2, object(), 2**64], "c": object()}, "b[1]", "type object"),
        (object(), "the value", "type object"),
    ],
)
def test_what_cannot_be_sent_names_its_place(value: Any, path: str, reason: str) -> None:
    with pytest.raises(InvalidCommand) as caught:
        pack(value)
    assert caught.value.message.startswith(f"{path}: ") or (not reason and "sets nested" in caught.value.message)
    assert reason in caught.value.message


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidCommand, match="nested deeper than 64"):
        pack({"a": value})


def test_a_million_levels_are_refused_without_recursion() -> None:
    value = nested(1_000_000)
    with pytest.raises(InvalidCommand, match="nested deeper than 64"):
        pack({"a": value})
    while value:  # taken apart from outside: freeing it in one go is the interpreter's business
        value = value.pop()


def test_nesting_at_the_limit() -> None:
    assert unpack(pack(nested(64))) == nested(64)
    with pytest.raises(InvalidCommand, match="deeper than 64"):
        pack(nested(65))
    with pytest.raises(Undecodable, match="deeper than 64"):
        unpack(pack(nested(65), PayloadLimits(max_nesting=65)))
    assert unpack(pack(nested(500), PayloadLimits(max_nesting=512)), PayloadLimits(max_nesting=512)) == nested(500)


def test_nesting_inside_sets_and_keys_counts() -> None:
    limits = PayloadLimits(max_nesting=3)
    inside = {"k": {((1,),)}}  # map, set, tuple, tuple
    with pytest.raises(InvalidCommand, match="deeper than 3"):
        pack(inside, limits)
    with pytest.raises(Undecodable, match="deeper than 3"):
        unpack(pack(inside), limits)
    with pytest.raises(Undecodable, match="deeper than 3"):
        unpack(pack({((("x" * 9,),),): 1}), limits)


def test_sets_inside_sets_at_the_limit() -> None:
    assert unpack(pack(nested_sets(MAX_SET_NESTING))) == nested_sets(MAX_SET_NESTING)


def test_items_at_the_limit() -> None:
    limits = PayloadLimits(max_items=3)
    for make in (
        lambda n: list(range(n)),
        lambda n: set(range(n)),
        lambda n: {str(i): i for i in range(n)},
        lambda n: {i: i for i in range(n)},
    ):
        assert unpack(pack({"x": make(3)}, limits), limits) == {"x": make(3)}
        with pytest.raises(InvalidCommand, match="x: 4 items, the limit of one collection is 3"):
            pack({"x": make(4)}, limits)
        with pytest.raises(Undecodable, match=r"more than 3 items|a length beyond"):
            unpack(pack({"x": make(4)}), limits)


@pytest.mark.parametrize("packer", [pack, pack_flat])
def test_size_at_the_limit(packer: Any) -> None:
    assert len(packer("x" * 97, PayloadLimits(max_bytes=99))) == 99
    with pytest.raises(PayloadTooLarge) as caught:
        packer("x" * 98, PayloadLimits(max_bytes=99))
    assert (caught.value.size, caught.value.limit) == (100, 99)


def test_two_mebibytes_are_too_large() -> None:
    with pytest.raises(PayloadTooLarge, match="2097157 bytes packed, the limit is 1048576"):
        pack(b"x" * 2 * 1024 * 1024)


def test_text_that_looks_like_headers_is_no_nesting() -> None:
    text = "مرحبا" * 100  # every second byte could open an array or an extension
    assert unpack(pack({"text": text, "n": {1: text}})) == {"text": text, "n": {1: text}}


def test_threads_do_not_disturb_each_other() -> None:
    value = {"s": {uuid4() for _ in range(50)}, "d": [datetime.now(UTC)] * 20}
    expected = pack(value)
    wrong: list[bytes] = []

    def work() -> None:
        wrong.extend(data for data in (pack(value) for _ in range(50)) if data != expected)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong


def test_a_failure_leaves_nothing_behind() -> None:
    expected = pack({"a": {UUID(int=1)}})
    for _ in range(3):
        with pytest.raises(InvalidCommand):
            pack({"long": "x" * 1000, "a": {UUID(int=1), object()}})
        assert pack({"a": {UUID(int=1)}}) == expected
