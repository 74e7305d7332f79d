"""Printed reports: the feed and its errors, the dead letters, the outcomes of the rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from command_bus import DeadLetter
from examples.retail.table import Row

__all__ = ["print_feed", "print_letters", "print_rejects"]


def print_feed(
    console: Console, rows: Sequence[Row], spoilt: Sequence[Row], slices: Sequence[Sequence[Row]], backlog: int
) -> None:
    """Print what will arrive."""
    table = Table(title="The feed", title_justify="left", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("purchases", f"{len(rows):,}")
    table.add_row("customers", f"{len({row.customer for row in rows}):,}")
    table.add_row("  rows equal to another in every column", f"{len(rows) - len({row[1:] for row in rows}):,}")
    table.add_row("rows that are no purchases", f"{len(spoilt):,}")
    table.add_row("slices in which all of it arrives", f"{len(slices):,}")
    table.add_row("  rows of a slice", f"{len(slices[0]):,}")
    table.add_row("commands that may wait", f"{backlog:,}")
    console.print(table)


def print_letters(console: Console, letters: Iterable[DeadLetter]) -> None:
    """Print the dead letters, as an operator sees them."""
    table = Table(title="Dead letters: their customers' later purchases wait behind them", title_justify="left")
    for name in ("customer", "line", "day", "dollars", "attempts", "why"):
        table.add_column(name, justify="right" if name in ("line", "dollars", "attempts") else "left")
    for letter in sorted(letters, key=lambda letter: letter.entity_id or ""):
        payload = letter.payload or {}
        why = f"{letter.error_type.rpartition('.')[-1]}: {letter.error_message}"
        table.add_row(
            letter.entity_id, *(str(payload.get(name, "?")) for name in ("line", "day", "dollars")), str(letter.attempts), why
        )
    console.print(table)


def print_rejects(console: Console, rejects: Iterable[Mapping[str, str]]) -> None:
    """Print the rows that the command's model refused, with its messages."""
    names = ("line", "customer", "day", "discs", "dollars")
    table = Table(title="Quarantined: rows that are no purchases", title_justify="left")
    for name in (*names, "why"):
        table.add_column(name)
    shown = [(json.loads(reject["row"]), reject["error"]) for reject in rejects]
    for row, why in sorted(shown, key=lambda item: str(item[0].get("line"))):
        table.add_row(*("NULL" if row.get(name) is None else str(row[name]) for name in names), why)
    console.print(table)
