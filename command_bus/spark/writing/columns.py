"""Arrow columns into Python values, the same in every session: instants are in UTC, whatever zone the session shows them in.

Arrow holds more than Python does: text that is no UTF-8 (a binary column cast to text), dates past the year 9999 (milliseconds that
were read as seconds). One such value makes the conversion of its whole column fail. The column is then read value by value, and the
unreadable ones are marked, so that only their own rows are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Batches = Iterator[pa.RecordBatch]

_SHOWN = 200  # characters of a value


@dataclass(frozen=True, slots=True, eq=False)
class Unreadable:
    """A value that Python cannot hold.

    Attributes:
        reason: What is wrong, as the end of a sentence that begins with the column.
        shown: The value as text, as far as possible.
    """

    reason: str
    shown: str

    def message(self, column: str) -> str:
        """Return the error message."""
        return f"column {column!r} {self.reason}"


def column_values(column: pa.Array) -> tuple[list[Any], dict[int, Unreadable]]:
    """Return the values of a column, and by row those that Python cannot hold, in whose place is a text.

    Maps are dicts; instants are in UTC.
    """
    kind = _in_utc(column.type)
    if kind != column.type:
        column = column.view(kind)
    faults: dict[int, Unreadable] = {}
    try:
        values = column.to_pylist()
    except (ValueError, OverflowError, pa.ArrowException):  # a UnicodeDecodeError is a ValueError
        values, faults = _one_by_one(column)
    if pa.types.is_nested(kind):
        values = [value if index in faults else _plain(value, kind) for index, value in enumerate(values)]
    return values, faults


def batch_rows(batch: pa.RecordBatch) -> Iterator[tuple[dict[str, Any], str | None]]:
    """Yield the rows as plain values by column, each with an error if Python cannot hold one of its values."""
    names = batch.schema.names
    read = [column_values(column) for column in batch.columns]
    wrong: dict[int, str] = {}
    for name, (_, faults) in zip(names, read, strict=True):
        for index, fault in faults.items():
            wrong.setdefault(index, fault.message(name))
    rows = zip(*(values for values, _ in read), strict=True)
    return ((dict(zip(names, row, strict=True)), wrong.get(index)) for index, row in enumerate(rows))


def map_in_arrow(rows: DataFrame, work: Callable[[Batches], Batches], schema: str) -> DataFrame:
    """Apply `mapInArrow`, also to columns with a dot in their names, which PySpark takes for fields of structs."""
    names = rows.columns
    if not any("." in name or "`" in name for name in names):
        return rows.mapInArrow(work, schema)
    return rows.toDF(*(f"c{number}" for number in range(len(names)))).mapInArrow(_Renamed(work, tuple(names)), schema)


@dataclass(frozen=True)
class _Renamed:
    """Work on batches under their original column names."""

    work: Callable[[Batches], Batches]
    names: tuple[str, ...]

    def __call__(self, batches: Batches) -> Batches:
        return self.work(batch.rename_columns(list(self.names)) for batch in batches)


@lru_cache(maxsize=1024)
def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Return the type with its instants in UTC: the values are the same, since a zone only says how to show them."""
    types = pa.types
    if types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    if types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_in_utc(kind.value_type)))
    if types.is_struct(kind):
        return pa.struct([kind.field(i).with_type(_in_utc(kind.field(i).type)) for i in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_in_utc(kind.key_type)), kind.item_field.with_type(_in_utc(kind.item_type)), kind.keys_sorted
        )
    return kind


def _one_by_one(column: pa.Array) -> tuple[list[Any], dict[int, Unreadable]]:
    values: list[Any] = []
    faults: dict[int, Unreadable] = {}
    for index, cell in enumerate(column):
        try:
            values.append(cell.as_py())
        except (ValueError, OverflowError, pa.ArrowException) as error:
            faults[index] = Unreadable(_reason(error), _shown(cell))
            values.append(faults[index].shown)
    return values, faults


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "holds bytes that are no UTF-8 text"
    if isinstance(error, OverflowError) or "out of range" in str(error):
        return "holds a date or time outside the years 1 to 9999"
    return f"holds a value that cannot be read ({type(error).__name__})"


def _shown(cell: Any) -> str:
    if isinstance(cell, pa.StringScalar | pa.LargeStringScalar):
        return bytes(cell.as_buffer()).decode("utf-8", "backslashreplace")[:_SHOWN]
    try:
        return str(cell.value)[:_SHOWN]  # days, or units of the timestamp
    except (AttributeError, ValueError, OverflowError):
        return f"({cell.type})"


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return maps as dicts: Arrow returns lists of pairs."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {key: _plain(item, kind.item_type) for key, item in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_plain(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {kind.field(i).name: _plain(value[kind.field(i).name], kind.field(i).type) for i in range(kind.num_fields)}
    return value
