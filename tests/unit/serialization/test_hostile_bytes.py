"""Whatever the bytes: one exception, no word of the data, time and memory in proportion to their size."""

from __future__ import annotations

import struct
import time
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_bus.serialization.dead_letter import DeadLetterRecord
from command_bus.serialization.envelope import WireEnvelope, pack_envelope, unpack_envelope
from command_bus.serialization.extensions import DATE, DECIMAL, SET, TIME, UUID_CODE
from command_bus.serialization.limits import PayloadLimits, Undecodable
from command_bus.serialization.msgpack import pack, unpack
from command_bus.serialization.native import ExtType, Packer
from command_bus.serialization.reply import Failed, pack_reply, unpack_reply

MIB = 1024 * 1024


def ext(code: int, body: bytes) -> bytes:
    return bytes(Packer().pack(ExtType(code, body)))


def sets_within_sets(levels: int) -> bytes:
    parts, length = [b"\x90"], 1
    for _ in range(levels):  # from the innermost out
        parts.append(b"\x91\xc9" + struct.pack(">Ib", length, SET))
        length += len(parts[-1])
    return b"".join(reversed(parts))


BAD = {
    "empty": (b"", "cut short"),
    "garbage": (b"\x17\x03\x03 not ours", "bytes after the end"),
    "reserved byte": (b"\xc1", "not MessagePack"),
    "reserved byte inside": (b"\x92\x01\xc1", "not MessagePack"),
    "truncated map": (b"\x82\xa1a\x01", "cut short"),
    "truncated text": (b"\xa5ab", "cut short"),
    "trailing bytes": (b"\x01\x02", "bytes after the end"),
    "text not UTF-8": (b"\xa2\xff\xfe", "text that is not UTF-8"),
    "key not UTF-8": (b"\x81\xa1\xff\x01", "text that is not UTF-8"),
    "array of 4 GiB": (b"\xdd\xff\xff\xff\xff", "a length beyond"),
    "map of 4 GiB": (b"\xdf\xff\xff\xff\xff", "a length beyond"),
    "text of 4 GiB": (b"\xdb\xff\xff\xff\xff", "cut short"),
    "bytes of 4 GiB": (b"\xc6\xff\xff\xff\xff", "cut short"),
    "extension of 4 GiB": (b"\xc9\xff\xff\xff\xff\x01", "a length beyond"),
    "a million nested arrays": (b"\x91" * 1_000_000, "nested too deeply"),
    "a million nested maps": (b"\x81\xa0" * 500_000, "nested too deeply"),
    "nested just below what C refuses": (b"\x91" * 1000 + b"\x01", "nested deeper than 64 levels"),
    "many arrays that claim much": (b"\xdd\x00\x01\x86\xa0" * 1000 + bytes(100_000), "cut short"),
    "an array of too many": (b"\xdd" + struct.pack(">I", 200_000) + bytes(200_000), "a length beyond"),
    "unknown extension": (ext(85, b"a"), "unknown extension type 85"),
    "unknown negative extension": (b"\xd4\x80a", "unknown extension type -128"),
    "unknown extension deep inside": (b"\x91" * 20 + ext(85, b"a"), "unknown extension type 85"),
    "short date": (ext(DATE, b"abc"), f"a malformed extension of type {DATE}"),
    "date beyond the calendar": (ext(DATE, b"\x7f\xff\xff\xff"), f"a malformed extension of type {DATE}"),
    "time beyond its day": (ext(TIME, struct.pack(">q", 86_400_000_000)), f"a malformed extension of type {TIME}"),
    "time before its day": (ext(TIME, struct.pack(">q", -1)), f"a malformed extension of type {TIME}"),
    "short uuid": (ext(UUID_CODE, b"abc"), f"a malformed extension of type {UUID_CODE}"),
    "decimal that is text": (ext(DECIMAL, b"twelve"), f"a malformed extension of type {DECIMAL}"),
    "decimal that would fill memory": (ext(DECIMAL, b"1E+999999999"), f"a malformed extension of type {DECIMAL}"),
    "long decimal": (ext(DECIMAL, b"1" * 100_000), f"a malformed extension of type {DECIMAL}"),
    "set of maps": (ext(SET, b"\x91\x81\xa1a\x01"), "a map key or a member of a set"),
    "set that is a map": (ext(SET, b"\x80"), "a set that is not an array"),
    "set that is empty bytes": (ext(SET, b""), "cut short"),
    "set with bytes after the end": (ext(SET, b"\x90\x90"), "bytes after the end"),
    "set that claims much": (ext(SET, b"\xdd\xff\xff\xff\xff"), "a length beyond"),
    "sets within sets": (sets_within_sets(300), "sets nested deeper than 8"),
    "many sets within sets": (sets_within_sets(100_000)[-MIB:], ""),
    "map as a key": (b"\x81\x81\xa1a\x01\x02", "a map key or a member of a set"),
    "timestamp out of range": (b"\xd7\xff" + b"\xff" * 8, "malformed"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_bytes_are_refused_with_a_reason(name: str) -> None:
    data, reason = BAD[name]
    with pytest.raises(Undecodable) as caught:
        unpack(data)
    assert reason in caught.value.reason
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    "header",
    [b"\x91", b"\xdc\x00\x01", b"\xdd\x00\x00\x00\x01", b"\x81\xa1k", b"\xde\x00\x01\xa1k", b"\xdf\x00\x00\x00\x01\xa1k"],
)
def test_nesting_in_whatever_form_is_counted(header: bytes) -> None:
    unpack(header * 64 + b"\x01")
    with pytest.raises(Undecodable, match="deeper than 64"):
        unpack(header * 65 + b"\x01")


def test_size_comes_first() -> None:
    with pytest.raises(Undecodable, match="1048577 bytes, the limit is 1048576"):
        unpack(bytes(MIB + 1))


def amplifying() -> dict[str, bytes]:
    """Large inputs that are meant to be expensive."""
    modulus = (1 << 61) - 1
    uuids = b"".join(ext(UUID_CODE, (5 + step * modulus).to_bytes(16, "big")) for step in range(50_000))
    decimals = b"".join(ext(DECIMAL, str(7 + step * modulus).encode()) for step in range(30_000))
    count = struct.pack(">I", 50_000)
    return {
        "empty maps": b"\xdd" + struct.pack(">I", 99_999) + b"\x80" * 99_999,
        "many arrays of empty maps": b"\x9a" + (b"\xdc" + struct.pack(">H", 60_000) + b"\x80" * 60_000) * 10,
        "maps with keys that are not text": b"\xdc" + struct.pack(">H", 60_000) + b"\x81\x01\x01" * 60_000,
        "empty sets": b"\xdc" + struct.pack(">H", 60_000) + ext(SET, b"\x90") * 60_000,
        "claims of much": (b"\xdd\x00\x01\x86\xa0" * 1000).ljust(MIB, b"\x00"),
        "claims of much, just not suspicious": (b"\xdd\x00\x01\x80\x00" * 60).ljust(99_000, b"\x00"),
        "set of uuids with one hash": ext(SET, b"\xdd" + count + uuids),
        "keys with one hash": b"\xdf" + count + b"".join(uuids[at : at + 18] + b"\x01" for at in range(0, len(uuids), 18)),
        "set of decimals with one hash": ext(SET, b"\xdd" + struct.pack(">I", 30_000) + decimals),
        "tuples as keys": b"\xdd" + struct.pack(">I", 90_000) + b"\x81\x91\x01\x01" * 90_000,
    }


@pytest.mark.parametrize("name", amplifying())
def test_time_and_memory_are_bounded(name: str) -> None:
    data = amplifying()[name]
    started = time.perf_counter()
    with suppress(Undecodable):
        unpack(data, PayloadLimits(max_bytes=2 * MIB))
    assert time.perf_counter() - started < 10  # most take well under a second; unguarded, equal hashes take minutes


CLAIMS = b"\xdd\x00\x01\x86\xa0" * 1000 + bytes(100_000)


@pytest.mark.parametrize("data", [CLAIMS, b"\xdd\x7f\xff\xff\xff" * 1000, ext(SET, CLAIMS), b"\x81" + CLAIMS])
def test_claimed_lengths_reserve_no_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Undecodable):
            unpack(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB


def test_equal_members_of_a_foreign_set_are_no_attack() -> None:
    assert unpack(ext(SET, b"\x93\x01\x01\x02")) == {1, 2}


SECRET = "4111-1111-1111-1111"


@pytest.mark.parametrize(
    "data",
    [
        pack({"card": SECRET})[:-2],
        pack({"card": SECRET}) + SECRET.encode(),
        pack(SECRET).replace(b"4", b"\xff", 1),
        ext(DECIMAL, SECRET.encode()),
        ext(99, SECRET.encode()),
        ext(SET, SECRET.encode()),
        b"\x81\x81" + pack(SECRET) + b"\x01\x01",
    ],
)
def test_the_text_never_contains_the_data(data: bytes) -> None:
    for read in (unpack, unpack_envelope, unpack_reply, DeadLetterRecord.unpack):
        with pytest.raises(Undecodable) as caught:
            read(data)
        assert "4111" not in str(caught.value)
        assert "1111" not in repr(caught.value)


def only_undecodable(data: bytes) -> None:
    for read in (unpack, unpack_envelope, unpack_reply, DeadLetterRecord.unpack):
        with suppress(Undecodable):
            read(data)


containers = st.sampled_from(
    [b"\x81", b"\x91", b"\x9f", b"\xdc\x00\x05", b"\xc7\x05\x08", b"\xd6\x08", b"\xd5\x03", b"\xa3", b"\xd7\xff", b"\xc1"]
)


@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    only_undecodable(data)


@given(st.lists(st.one_of(containers, st.binary(min_size=1, max_size=3)), max_size=150).map(b"".join))
def test_bytes_that_look_like_messagepack(data: bytes) -> None:
    only_undecodable(data)


VALID = [
    pack({"a": [1, {"b": {1, frozenset({2})}}], "n": {1: 2}}),
    pack_envelope(WireEnvelope("c-1", "Deposit", "account", "a-17", b"\x80", 1, 5, "inbox", "c", "d", {"a": "b"})),
    pack_reply("c-1", Failed("ValueError", "no", 3)),
    DeadLetterRecord(reason="failed", headers={"a": "b"}).pack(),
]


@given(st.sampled_from(VALID), st.integers(0, 400), st.binary(max_size=4), st.integers(0, 4))
def test_valid_bytes_with_a_fault(data: bytes, place: int, inserted: bytes, removed: int) -> None:
    at = place % len(data)
    only_undecodable(data[:at] + inserted + data[at + removed :])


@pytest.mark.parametrize("data", VALID)
def test_valid_bytes_cut_anywhere(data: bytes) -> None:
    for end in range(len(data)):
        only_undecodable(data[:end])
        with pytest.raises(Undecodable):
            unpack(data[:end])


def test_running_out_of_memory_is_not_blamed_on_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any, **__: Any) -> Any:
        raise MemoryError

    for module in ("msgpack", "envelope", "reply"):
        monkeypatch.setattr(f"command_bus.serialization.{module}.unpackb", exhausted)
    for read in (unpack, unpack_envelope, unpack_reply):
        with pytest.raises(MemoryError):
            read(b"\x80")
