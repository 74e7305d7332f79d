"""Columns become the bytes that a packer makes of their values."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command_bus.serialization.envelope import EnvelopeTemplate, WireEnvelope, packed_text
from command_bus.serialization.native import Packer

pa = pytest.importorskip("pyarrow")

from command_bus.spark.writing.packed_columns import (  # noqa: E402 - after the skip
    is_readable,
    joined,
    packed_binaries,
    packed_column,
    packed_texts,
)


def check(values: list[Any], kind: Any) -> None:
    """Compare a column, and a slice of a longer one, with its values packed one by one."""
    column = pa.array(values, kind)
    pack = Packer().pack
    wanted = [pack(value) for value in column.to_pylist()]
    for each in (column, pa.concat_arrays([column, column]).slice(len(column))):
        assert packed_column(each).to_pylist() == wanted


@settings(deadline=None, max_examples=200)
@given(st.data(), st.sampled_from([8, 16, 32, 64]), st.booleans())
def test_integers(data: Any, bits: int, signed: bool) -> None:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    ends = sorted((data.draw(st.integers(low, high)), data.draw(st.integers(low, high))))
    values = data.draw(st.lists(st.one_of(st.none(), st.integers(*ends)), max_size=30))
    check([*values, *ends], getattr(pa, f"{'' if signed else 'u'}int{bits}")())


@pytest.mark.parametrize(
    ("low", "high"), [(2**16, 2**32 - 1), (2**32, 2**63 - 1), (-(2**31), -(2**15) - 1), (-(2**63), -(2**31) - 1)]
)
def test_integers_of_one_size_and_their_neighbours(low: int, high: int) -> None:
    check([low, high, None, (low + high) // 2], pa.int64())
    check([max(low - 1, -(2**63)), high], pa.int64())
    check([low, min(high + 1, 2**63 - 1)], pa.int64())


def test_few_different_integers_in_many_rows() -> None:
    check([*range(-40, 300), None] * 4, pa.int64())


@given(st.lists(st.one_of(st.none(), st.floats(), st.sampled_from([0.0, -0.0, math.inf]))))
def test_floats(values: list[float | None]) -> None:
    check([None if value is None or math.isnan(value) else value for value in values], pa.float64())


@pytest.mark.parametrize("size", [0, 1, 31, 32, 255, 256, 65_535, 65_536])
def test_texts_and_bytes_of_all_sizes(size: int) -> None:
    check(["x" * size, None, "ü"], pa.string())
    check(["x" * size, None, "ü"], pa.large_string())
    check([b"x" * size, None, b"\xff"], pa.binary())
    check([b"x" * size, None, b"\xff"], pa.large_binary())


def test_the_others() -> None:
    check([True, None, False], pa.bool_())
    check([1.5, 0.1, None], pa.float32())
    for kind in (pa.int64(), pa.string(), pa.bool_(), pa.float64(), pa.binary()):
        check([], kind)
        check([None, None], kind)


def test_text_that_is_no_utf_8_is_found() -> None:
    raw = pa.array([b"ok", b"\xff"])
    assert not is_readable(pa.Array.from_buffers(pa.string(), 2, raw.buffers()))
    assert is_readable(pa.array(["ok", None, "ü"]))
    assert is_readable(raw)


@pytest.mark.parametrize("sign", [None, lambda data: data[-8:]])
def test_an_envelope_of_columns_is_that_of_its_template(sign: Any) -> None:
    template = EnvelopeTemplate(WireEnvelope("-", "bench.move", "aircraft", "-", b"", 4), sign)
    ids, entities, payloads = ["a", "b" * 40], ["N1", "é" * 20], [b"{}", b"x" * 300]
    head, name, tail = template.constants
    columns = [packed_texts(pa.array(ids)), name, packed_texts(pa.array(entities)), packed_binaries(pa.array(payloads))]
    found = template.signed(joined([head, *columns, tail]).to_pylist())
    rows = zip(ids, entities, payloads, strict=True)
    assert found == [template.pack(packed_text(one), packed_text(entity), payload) for one, entity, payload in rows]
