"""Whole Arrow columns as MessagePack: each row has the bytes that a `Packer` would make of its value, and Python sees no row.

A value is a header and its bytes. Headers are taken from a table by the length of the text, and numbers from tables of their pairs of
bytes, so that all the work is Arrow's. What no table has (integers of different sizes, texts above 65,535 bytes) is packed value by value.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import repeat
from typing import Any

import pyarrow as pa

from command_bus.errors import InvalidCommand
from command_bus.messages.policies import Priority
from command_bus.serialization.native import Packer
from command_bus.spark.writing.columns import column_values
from command_bus.spark.writing.field_checks import FieldPlan, is_text, pc
from command_bus.transport.flows import flow_of, tenant_of

_TABLE = 0x10000
_SMALL = 0x100
_WIDE = (  # least and greatest integer, their first byte, and the bits of each pair of bytes behind it
    (2**16, 2**32 - 1, b"\xce", (16, 0)),
    (2**32, 2**63 - 1, b"\xcf", (48, 32, 16, 0)),
    (-(2**31), -(2**15) - 1, b"\xd2", (16, 0)),
    (-(2**63), -(2**31) - 1, b"\xd3", (48, 32, 16, 0)),
)
_NIL = pa.scalar(b"\xc0", pa.binary())
_SEPARATOR = pa.scalar(b"", pa.binary())


def packed_column(column: pa.Array) -> pa.Array:
    """Return a column of texts, bytes, integers, floats or booleans as MessagePack, NULL as nil. Texts must be readable (`is_readable`)."""
    kind = column.type
    if pa.types.is_integer(kind):
        packed = _packed_integers(column)
    elif pa.types.is_floating(kind):
        bits = column.cast(pa.float64()).view(pa.int64())
        packed = joined([b"\xcb", *_pairs(bits, (48, 32, 16, 0))])
    elif pa.types.is_boolean(kind):
        packed = pa.array([b"\xc2", b"\xc3"], pa.binary()).take(column.cast(pa.int8()))
    elif is_text(kind):
        packed = packed_texts(column)
    else:
        packed = packed_binaries(column)
    return packed.fill_null(_NIL) if packed.null_count else packed


def packed_texts(column: pa.Array) -> pa.Array:
    """Return texts as MessagePack; NULL stays NULL."""
    return _with_headers(column.cast(pa.string()).cast(pa.binary()), _text_header)


def packed_binaries(column: pa.Array) -> pa.Array:
    """Return bytes as MessagePack; NULL stays NULL."""
    return _with_headers(column.cast(pa.binary()), _binary_header)


def joined(parts: Sequence[bytes | pa.Array]) -> pa.Array:
    """Return the parts of each row, joined; bytes are the same in every row. At least one part is a column."""
    whole: list[Any] = []
    constant = b""
    for part in parts:
        if isinstance(part, bytes):
            constant += part
            continue
        if constant:
            whole.append(pa.scalar(constant, pa.binary()))
            constant = b""
        whole.append(part)
    if constant:
        whole.append(pa.scalar(constant, pa.binary()))
    return pc.binary_join_element_wise(*whole, _SEPARATOR)


def is_readable(column: pa.Array) -> bool:
    """Return whether all texts of a column are UTF-8."""
    if not is_text(column.type):
        return True
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _with_headers(column: pa.Array, header: Callable[[int], bytes]) -> pa.Array:
    sizes = pc.binary_length(column)
    longest = pc.max(sizes).as_py() or 0
    if longest >= _TABLE:
        return joined([_packed_each(sizes, header), column])
    return joined([_headers(header, _SMALL if longest < _SMALL else _TABLE).take(sizes), column])


def _packed_integers(column: pa.Array) -> pa.Array:
    """Return integers in their shortest forms."""
    bounds = pc.min_max(column).as_py()
    low, high = bounds["min"], bounds["max"]
    if low is None:  # all are NULL
        return pa.nulls(len(column), pa.binary())
    if high < 2**63:
        column = column.cast(pa.int64())
        if high - low < len(column) // 2:  # a table of all of them is soon made
            pack = Packer(buf_size=64).pack
            return pa.array(list(map(pack, range(low, high + 1))), pa.binary()).take(pc.subtract(column, low))
        for least, greatest, first, bits in _WIDE:
            if least <= low and high <= greatest:
                return joined([first, *_pairs(column, bits)])
    return _packed_each(column, Packer(buf_size=64).pack)


def _packed_each(column: pa.Array, pack: Callable[[int], bytes]) -> pa.Array:
    values: Iterable[int | None] = column.to_pylist()
    return pa.array([None if value is None else pack(value) for value in values], pa.binary())


def _pairs(column: pa.Array, bits: Sequence[int]) -> list[pa.Array]:
    """Return the bytes of 64-bit integers, two at a time, the most significant first."""
    table = _byte_pairs()
    return [table.take(pc.bit_wise_and(pc.shift_right(column, shift), 0xFFFF)).cast(pa.binary()) for shift in bits]


@cache
def _byte_pairs() -> pa.Array:
    """Return the two bytes of each number below 65,536."""
    numbers = array("H", range(_TABLE))
    if sys.byteorder == "little":
        numbers.byteswap()
    return pa.Array.from_buffers(pa.binary(2), _TABLE, [None, pa.py_buffer(numbers.tobytes())])


@cache
def _headers(header: Callable[[int], bytes], count: int) -> pa.Array:
    """Return the headers of all sizes below `count`."""
    return pa.array(list(map(header, range(count))), pa.binary())


def _text_header(size: int) -> bytes:
    return bytes([0xA0 | size]) if size < 32 else _sized(size, b"\xd9\xda\xdb")


def _binary_header(size: int) -> bytes:
    return _sized(size, b"\xc4\xc5\xc6")


def _sized(size: int, kinds: bytes) -> bytes:
    """Return a header with a size of one, two or four bytes."""
    width = 1 if size < _SMALL else 2 if size < _TABLE else 4
    return kinds[width // 2 : width // 2 + 1] + size.to_bytes(width, "big")


class RowFlows:
    """The flows of one command's rows.

    Args:
        priority: What all these rows have.
        tenant: The field that names the tenant, or None.
    """

    def __init__(self, priority: Priority, tenant: FieldPlan | None) -> None:
        self._priority: Priority = priority
        self._tenant = tenant

    def of(self, tenant: str) -> str:
        """Return the flow of a tenant; that of none is empty."""
        return flow_of(self._priority, tenant)

    def of_columns(self, columns: Mapping[str, pa.Array]) -> Iterable[str]:
        """Return the flow of each row; all have passed `mask`. Where all have the same there is no end."""
        field = self._tenant
        if field is None:
            return repeat(self.of(""))
        column = columns.get(field.name)
        if column is None:
            return repeat(self.of(tenant_of(field.default)))
        keys = column.dictionary_encode()
        flows: dict[int | None, str] = {
            index: self.of(tenant_of(value)) for index, value in enumerate(keys.dictionary.to_pylist())
        }
        flows[None] = self.of("")
        return [flows[index] for index in keys.indices.to_pylist()]

    def mask(self, columns: Mapping[str, pa.Array], rows: int) -> pa.Array | None:
        """Return which of so many rows name a tenant or none; None if all do."""
        field = self._tenant
        if field is None:
            return None
        column = columns.get(field.name)
        if column is None:
            return None if _is_tenant(field.default) else pa.repeat(pa.scalar(False), rows)
        keys = column.dictionary_encode()
        values, faults = column_values(keys.dictionary)
        fit = [index not in faults and _is_tenant(value) for index, value in enumerate(values)]
        return None if all(fit) else pa.array(fit, pa.bool_()).take(keys.indices).fill_null(True)


def _is_tenant(value: Any) -> bool:
    try:
        tenant_of(value)
    except InvalidCommand:
        return False
    return True
