"""Formats of output for people: aligned tables, lists of fields, durations and times.

Names and messages come from those who send commands. They are shown as text, never as markup, and characters that cannot be printed are escaped.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import time
import unicodedata
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import typer

from command_bus.admin.json_data import to_jsonable, utc_time
from command_bus.cli.options import Answer
from command_bus.cli.terminal import SafeText, echo, escape, escape_json, format_value
from command_bus.clock import format_duration

_WIDE = 140  # columns where the width is unknown, as in a pipe
_GAP = 2  # columns between two columns of a table
_NARROWEST = 4  # columns


def format_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> SafeText:
    """Return a table. Columns whose heading ends with `#` have numbers, and are aligned to the right."""
    right = [column.endswith("#") for column in columns]
    heads = [column.removesuffix("#").upper() for column in columns]
    head, *body = _laid_out([heads, *([_cell(cell) for cell in row] for row in rows)], right)
    return SafeText("\n".join([*(typer.style(line, bold=True) for line in head), *(line for lines in body for line in lines)]))


def format_fields(pairs: Iterable[tuple[str, Any]]) -> SafeText:
    """Return names and values, one pair per line, without those that are None."""
    rows = [[escape(name), format_value(value)] for name, value in pairs if value is not None]
    width = max((len(name) for name, _ in rows), default=0)
    lines = (line for lines in _laid_out(rows, [False, False]) for line in lines)
    return SafeText("\n".join(typer.style(line[:width], bold=True) + line[width:] for line in lines))


@contextmanager
def full_screen() -> Generator[Callable[[str], None]]:
    """Take over the terminal's screen while the block runs. Yields a function that shows as much of a text as fits."""

    def show(text: str) -> None:
        whole = text if isinstance(text, SafeText) else escape(text)
        lines = whole.split("\n")[: shutil.get_terminal_size().lines - 1]
        echo(SafeText("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J"), newline=False)

    echo(SafeText("\x1b[?1049h\x1b[?25l"), newline=False)  # the other screen, no cursor
    try:
        yield show
    finally:
        echo(SafeText("\x1b[?25h\x1b[?1049l"), newline=False)


def _laid_out(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[list[str]]:
    """Return the lines of each row; cells that are wider than their column are folded."""
    widths = _fitted([max(map(_columns, cells)) for cells in zip(*rows, strict=True)])
    laid: list[list[str]] = []
    for row in rows:
        folded = [_folded(cell, width) for cell, width in zip(row, widths, strict=True)]
        height = max(map(len, folded))
        cells = [
            [_padded(line, width, at_right) for line in [*lines, *[""] * (height - len(lines))]]
            for lines, width, at_right in zip(folded, widths, right, strict=True)
        ]
        laid.append([(" " * _GAP).join(line).rstrip() for line in zip(*cells, strict=True)])
    return laid


def _fitted(widths: list[int]) -> list[int]:
    """Return widths that fit the terminal: the widest columns are narrowed first."""
    spare = _terminal() - _GAP * (len(widths) - 1)
    while sum(widths) > spare and max(widths) > _NARROWEST:
        widest = max(widths)
        widths[widths.index(widest)] = max(
            widest - (sum(widths) - spare), max((w for w in widths if w < widest), default=0) - 1, _NARROWEST
        )
    return widths


def _terminal() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDE


def _folded(cell: str, width: int) -> list[str]:
    lines = cell.split("\n")
    if all(_columns(line) <= width for line in lines):
        return lines
    letters = width if _columns(cell) <= max(map(len, lines)) else max(width // 2, 1)  # a character takes two columns at most
    return [part for line in lines for part in textwrap.wrap(line, letters, break_on_hyphens=False) or [""]]


def _cell(value: Any) -> str:
    """Return a cell, which is one line: a second line could pass for a row."""
    return escape(format_value(value))


def _padded(line: str, width: int, at_right: bool) -> str:
    room = " " * (width - _columns(line))
    return room + line if at_right else line + room


def _columns(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return max(map(len, text.split("\n")))
    return max(sum(_column(letter) for letter in line) for line in text.split("\n"))


def _column(letter: str) -> int:
    return 0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def pluralize(count: int, one: str, many: str) -> str:
    """Return a count with its noun: `1 letter`, `2,000 letters`."""
    return f"{count:,} {one if count == 1 else many}"


def format_time(ms: int | None) -> str:
    """Return a stored time in UTC; one that no calendar has is shown in ms."""
    if not ms:
        return "-"
    at = utc_time(ms)
    return f"{ms:,} ms, which is no time" if at is None else at.strftime("%Y-%m-%d %H:%M:%SZ")


def format_time_and_age(ms: int | None) -> str:
    """Return a stored time and how long ago it was."""
    if not ms or utc_time(ms) is None:
        return format_time(ms)
    ago = time.time() - ms / 1000
    return f"{format_time(ms)} ({format_duration(abs(ago))} {'ago' if ago >= 0 else 'from now'})"


def to_json(value: Any, *, indent: int | None = 2) -> SafeText:
    """Return a value as JSON. Types that JSON lacks are written as pydantic would write them, or else as text."""
    return escape_json(json.dumps(to_jsonable(value), indent=indent, ensure_ascii=False))


T = TypeVar("T")


def split(done: dict[str, bool], yes: str, no: str, why: str) -> Answer:
    """Answer with what a change did to each of several, in two lists of JSON.

    Args:
        done: Whether it was changed, by name.
        yes: The word for those that were.
        no: The key of the others in JSON.
        why: Stands for people behind each of the others.
    """
    data = {key: [name for name, changed in done.items() if changed is wanted] for key, wanted in ((yes, True), (no, False))}
    return Answer(data, (f"{name}: {yes if changed else why}" for name, changed in done.items()), all(done.values()))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield a table, as `format_table` makes it: only if it is printed."""
    yield format_table(columns, rows)


def listing(
    key: str, found: Sequence[T], limit: int, columns: Sequence[str], row: Callable[[T], Sequence[Any]], empty: str | None = None
) -> Answer:
    """Answer with the first of what was found, and how many there are.

    Args:
        key: Name of the list in JSON.
        found: All of it, in order.
        limit: How many are printed.
        columns: Heads of the table, as `format_table` takes them.
        row: Returns the cells of one.
        empty: Stands instead of a table without rows.
    """
    shown = found[:limit]

    def text() -> Iterator[str]:
        yield empty if empty and not found else format_table(columns, map(row, shown))
        if len(found) > limit:
            yield f"the first {limit:,} of {len(found):,}"

    return Answer({key: shown, "count": len(found)}, text())
