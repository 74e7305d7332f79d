"""Bytes that are likely to hurt a reader of MessagePack."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

__all__ = ["anything"]

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
    return st.one_of(st.binary(max_size=300), st.lists(_pieces, max_size=100).map(b"".join), changed, nested, claimed, within)
