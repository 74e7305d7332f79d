"""`print_listing`: the first of what was found, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from command_bus.cli.json_output import to_json
from command_bus.cli.terminal import echo

T = TypeVar("T")


def print_listing(
    key: str,
    found: Sequence[T],
    limit: int,
    columns: Sequence[str],
    row: Callable[[T], Sequence[Any]],
    *,
    as_json: bool,
    empty: str | None = None,
) -> None:
    """Print the first of what was found, and how many there are.

    Args:
        key: Of the list in JSON.
        found: All of it, in order.
        limit: How many are printed.
        columns: Heads of the table, as `format_table` takes them.
        row: Returns the cells of one.
        as_json: Whether JSON is printed.
        empty: Stands instead of a table without rows.
    """
    shown = found[:limit]
    if as_json:
        echo(to_json({key: shown, "count": len(found)}))
        return
    if not found and empty is not None:
        echo(empty)
        return
    from command_bus.cli.output import format_table

    echo(format_table(columns, map(row, shown)))
    if len(found) > limit:
        echo(f"the first {limit:,} of {len(found):,}")
