"""Bytes that are likely to hurt a reader of MessagePack."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

__all__ = ["anything", "crowds"]

_MODULUS = (1 << 61) - 1
"""Of the hashes of numbers: what differs by a multiple of it has one hash."""

_HEADS = [
    b"\x81", b"\x91", b"\x9c", b"\x9d", b"\xdc", b"\xdd", b"\xde", b"\xdf", b"\xc4", b"\xc6",
    b"\xd9", b"\xdb", b"\xc7", b"\xc9", b"\xd6\x08", b"\xc1", b"\xc0",
]  # fmt: skip
_LENGTHS = [struct.pack(">I", size) for size in (0, 1, 255, 65_536, 2**31 - 1, 2**31, 2**32 - 1)]

_pieces = st.one_of(st.sampled_from(_HEADS), st.sampled_from(_LENGTHS), st.binary(min_size=1, max_size=3))


def _mutated(seed: bytes, changes: list[tuple[int, int, bytes]], end: int) -> bytes:
    data = seed
    for place, removed, inserted in changes:
        at = place % (len(data) + 1)
        data = data[:at] + inserted + data[at + removed :]
    return data[: end % (len(data) + 2)] if end else data


def _uuid(number: int) -> bytes:
    return b"\xd8\x07" + (number % 2**128).to_bytes(16, "big")


def _crowd(alike: int, others: int, form: str, around: int) -> bytes:
    """Return a map, set or list of which so many members have one hash; `around` sets or lists hold it, each with a neighbour."""
    members = [_uuid(5 + step * _MODULUS) for step in range(alike)] + [_uuid(7 + step * 2**90) for step in range(others)]
    if form == "tuples":
        members = [b"\x92\x01" + member for member in members]
    if form == "keys":
        return b"\xdf" + struct.pack(">I", len(members)) + b"".join(member + b"\x01" for member in members)
    body = b"\xdd" + struct.pack(">I", len(members)) + b"".join(members)
    for level in range(around):
        body = (b"\x92\x01" if level else b"") + (b"\xc9" + struct.pack(">I", len(body)) + b"\x08" + body)
    return body


def crowds(largest: int = 2000) -> st.SearchStrategy[bytes]:
    """Members of maps and sets with equal hashes, among others; alone, again and again, and within a payload."""
    some = st.one_of(st.integers(0, 40), st.integers(0, largest))
    crowd = st.builds(_crowd, some, some, st.sampled_from(["set", "keys", "tuples"]), st.integers(0, 4))
    often = st.builds(
        lambda one, times: b"\xdc" + struct.pack(">H", times) + one * times,
        st.builds(_crowd, st.integers(0, 60), st.integers(0, 9), st.sampled_from(["set", "keys", "tuples"]), st.integers(1, 4)),
        st.integers(1, 40),
    )
    fields = st.sampled_from([b"\xa6nested\x81\xa1a", b"\xa3ids", b"\xa5by_id"])
    within = st.builds(lambda field, inner: b"\x82\xa3box\xa1a" + field + inner, fields, st.one_of(crowd, often))
    return st.one_of(crowd, often, within)


def anything(seeds: list[bytes]) -> st.SearchStrategy[bytes]:
    """Arbitrary bytes; what looks like MessagePack; valid bytes changed, cut, or within one another; deep nesting; huge claims."""
    change = st.tuples(st.integers(0, 500), st.integers(0, 5), st.one_of(st.binary(max_size=4), st.sampled_from(_HEADS)))
    changed = st.builds(_mutated, st.sampled_from(seeds), st.lists(change, max_size=6), st.just(0) | st.integers(1, 500))
    nested = st.builds(
        lambda head, levels, tail: head * levels + tail, st.sampled_from(_HEADS), st.integers(1, 3000), st.binary(max_size=8)
    )
    claimed = st.builds(
        lambda head, size, tail: head + size + tail, st.sampled_from(_HEADS), st.sampled_from(_LENGTHS), st.binary(max_size=64)
    )
    within = st.builds(
        lambda seed, at, inner: seed[:at] + inner + seed[at:],
        st.sampled_from(seeds),
        st.integers(0, 200),
        st.one_of(nested, claimed),
    )
    pieces = st.lists(_pieces, max_size=100).map(b"".join)
    return st.one_of(st.binary(max_size=300), pieces, changed, nested, claimed, within, crowds())
