"""How answers look: tables that line up, short times, and nothing in them that a terminal would obey.

Names and messages come from whoever sends commands. They are shown as text, never as markup, and what cannot be printed is escaped.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["console", "counted", "duration", "fields", "moment", "shown", "since", "table"]

_WIDE = 140  # columns where nobody says how wide it is: in a pipe nothing is cut off


def console() -> Console:
    """Standard output."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDE
    return Console(width=width, highlight=False, soft_wrap=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table; a column whose heading ends with `#` has numbers."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, show_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column.removesuffix("#").upper(), justify="right" if column.endswith("#") else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(shown(cell)) for cell in row))
    return made


def fields(pairs: Iterable[tuple[str, Any]]) -> Table:
    """Names and values, one pair a line; None is left out."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, show_edge=False, show_header=False, padding=(0, 2, 0, 0))
    made.add_column(style="bold")
    made.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None:
            made.add_row(Text(name), Text(shown(value)))
    return made


def shown(value: Any) -> str:
    """A cell: numbers with separators, None as a dash, control characters escaped."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def duration(seconds: float | None) -> str:
    """`0.4 s`, `12 s`, `5 min`, `3 h 20 min`, `4 d`; a dash for None."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 2 * 86400:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
    return f"{seconds / 86400:.0f} d"


def counted(count: int, one: str, many: str) -> str:
    """`1 letter`, `2,000 letters`."""
    return f"{count:,} {one if count == 1 else many}"


def moment(ms: int | None) -> str:
    """A stored time as UTC."""
    if not ms:
        return "-"
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def since(ms: int | None) -> str:
    """A stored time and how long ago that is."""
    if not ms:
        return "-"
    ago = time.time() - ms / 1000
    return f"{moment(ms)} ({duration(abs(ago))} {'ago' if ago >= 0 else 'from now'})"
