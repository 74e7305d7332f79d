"""Rules that must hold after a run, line by line, and whether they do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

__all__ = ["Check", "equal", "print_verdict", "within"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the reconciliation; `of` says whose figure it is."""

    of: str
    what: str
    value: int
    wanted: str
    holds: bool


def equal(of: str, what: str, value: int, wanted: int) -> Check:
    """Return a check that holds if the value is the wanted one."""
    return Check(of, what, value, f"{wanted:,}", value == wanted)


def within(of: str, what: str, value: int, least: int | None = None, most: int | None = None) -> Check:
    """Return a check that holds if the value is neither below `least` nor above `most`."""
    bounds = [f"{word} {bound:,}" for word, bound in (("at least", least), ("at most", most)) if bound is not None]
    holds = (least is None or value >= least) and (most is None or value <= most)
    return Check(of, what, value, ", ".join(bounds), holds)


def print_verdict(console: Console, lines: Iterable[Check]) -> None:
    """Print the reconciliation."""
    table = Table(title="Reconciliation", title_justify="left")
    table.add_column("")
    table.add_column("")
    table.add_column("found", justify="right")
    table.add_column("wanted", justify="right")
    table.add_column("")
    of = ""
    for line in lines:
        if line.of != of:
            table.add_section()
        first, of = line.of if line.of != of else "", line.of
        table.add_row(first, line.what, f"{line.value:,}", line.wanted, "[green]ok[/]" if line.holds else "[bold red]WRONG[/]")
    console.print(table)
