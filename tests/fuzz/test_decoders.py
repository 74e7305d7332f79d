"""Whatever the bytes, each reader gives a value or its one typed error, in bounded time and memory. `decode.py` looks for longer."""

from __future__ import annotations

import struct
import time
import tracemalloc

import pytest
from hypothesis import example, given, settings

from command_bus.serialization.envelope import WireEnvelope, pack_envelope
from tests.fuzz.announcements import records
from tests.fuzz.bytestrings import anything, crowds
from tests.fuzz.decode import Comparisons, readers, seeds

READERS = readers()
SEEDS = seeds()
MIB = 1024 * 1024
HUGE = {
    "claims of 4 GiB": b"\x9c\x01" + b"\xdd\xff\xff\xff\xff" * 1000,
    "claims within a payload": b"\x96\x01\xa1c\xa1n\xa1t\xa1e\xc6" + struct.pack(">I", 5000) + b"\xdd\x7f\xff\xff\xff" * 1000,
    "a payload of claims": b"\x81\xa6values" + b"\xdd\x00\x01\x86\xa0" * 1000,
    "a million levels": b"\x91" * MIB,
    "many empty maps": b"\xdd" + struct.pack(">I", 99_999) + b"\x80" * 99_999,
    "many numbers for one field": b"\x82\xa3box\xa1a\xa6values\xdd" + struct.pack(">I", 99_999) + b"\x01" * 99_999,
    "a long text": b"\x95\x01\xdb" + struct.pack(">I", MIB - 16) + b"x" * (MIB - 16),
    "zeros": bytes(MIB),
    "more than the limit": bytes(8 * MIB),
}


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=150)
@given(anything(SEEDS))
def test_any_bytes(name: str, data: bytes) -> None:
    with Comparisons() as comparisons:
        READERS[name](data)
    comparisons.check(data)


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=60)
@given(crowds())
def test_members_with_equal_hashes(name: str, data: bytes) -> None:
    with Comparisons() as comparisons:
        READERS[name](data)
        READERS[name](pack_envelope(WireEnvelope("c-1", "Fuzzed", "box", "a", data)))
    comparisons.check(data + data)


NOWHERE = (
    b'{"entity": null, "key": null, "delivery": "at_least_once", "schema": {}, '
    b'"reply": {"$defs": {"A": {"properties": {"a": {"unknown": {"$ref": "nothing"}}}}}}}'
)
"""A reference to nothing, where no schema is read."""


@settings(max_examples=300)
@given(records())
@example(NOWHERE)
def test_any_announcement(data: bytes) -> None:
    READERS["announcement"](data)


@pytest.mark.parametrize("name", READERS)
def test_valid_bytes_are_read_and_cut_ones_refused(name: str) -> None:
    assert any(READERS[name](seed) is not None for seed in SEEDS)
    for seed in SEEDS:
        for end in range(len(seed)):
            READERS[name](seed[:end])


@pytest.mark.parametrize("data", HUGE.values(), ids=HUGE.keys())
@pytest.mark.parametrize("name", READERS)
def test_time_and_memory_are_bounded(name: str, data: bytes) -> None:
    READERS[name](b"")  # what is made once
    tracemalloc.start()
    began = time.perf_counter()
    try:
        READERS[name](data)
        took = time.perf_counter() - began
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert took < 10
    assert peak < 8 * MIB + 128 * min(len(data), MIB)
