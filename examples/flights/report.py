"""The verdict: what the bus says, what the aircraft say, what the table says; all three must agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from rich.console import Console
from rich.table import Table

from command_bus import Stats
from examples.flights.data import Census
from examples.flights.model import Aircraft
from examples.flights.verdict import Check, equal, within

__all__ = ["Comparison", "compare", "print_census", "print_difference", "print_findings", "state_checks"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every aircraft's state beside the one computed from the table, in order of tail number."""

    expected: Mapping[str, Aircraft]
    found: Mapping[str, Aircraft]
    differing: tuple[str, ...]

    @property
    def agreeing(self) -> int:
        """Aircraft whose state is exactly the expected one."""
        return len(self.expected) - len(self.differing)

    @property
    def violations(self) -> int:
        """Commands that a handler saw out of order, twice, or under an older fence."""
        return sum(aircraft.violations for aircraft in self.found.values())

    @property
    def repeats(self) -> int:
        """Commands that were delivered again after they had been applied."""
        return sum(aircraft.repeats for aircraft in self.found.values())


def compare(expected: Mapping[str, Aircraft], found: Mapping[str, Aircraft]) -> Comparison:
    """Compare all aircraft; one that is missing on either side differs."""
    tails = sorted({*expected, *found})
    return Comparison(expected, found, tuple(tail for tail in tails if expected.get(tail) != found.get(tail)))


def state_checks(commands: int, stats: Stats, comparison: Comparison, *, repeats_allowed: int) -> list[Check]:
    """Return what must hold of the bus and of the aircraft, with any sender."""
    return [
        equal("the bus", "completed", stats.completed, commands),
        equal("the bus", "rejected", stats.rejected, 0),
        equal("the bus", "dead-lettered", stats.dead_lettered, 0),
        equal("the bus", "left behind", stats.depth, 0),
        equal("the workers", "out of order, twice or overlapping", comparison.violations, 0),
        within("the workers", "delivered again after the kill, and skipped", comparison.repeats, most=repeats_allowed),
        equal("the aircraft", "agree with the table", comparison.agreeing, len(comparison.expected)),
        equal("the aircraft", "differ", len(comparison.differing), 0),
    ]


def print_census(console: Console, whole: Census, chosen: Census, order: str) -> None:
    """Print what the table holds, what is missing in it, and in which order it is sent."""
    table = Table(title="The table of flights", title_justify="left", caption_justify="left")
    table.add_column("")
    table.add_column("whole year", justify="right")
    if chosen != whole:
        table.add_column("this run", justify="right")
    table.add_column("sent")

    def row(name: str, field: str, sent: str) -> None:
        counts = [whole] if chosen == whole else [whole, chosen]
        table.add_row(name, *(f"{getattr(census, field):,}" for census in counts), sent)

    row("flights", "flights", "")
    row("  cancelled: no departure", "cancelled", "nothing")
    row("    without tail number", "without_tail", "nothing")
    row("  left, no landing known", "unlanded", "Depart")
    row("  left and landed", "arrivals", "Depart, Arrive")
    row("aircraft", "aircraft", "the entities")
    row("commands", "commands", "")
    console.print(table)
    console.print(
        f"A cancelled flight is nothing that happens to an aircraft, and no flight without a tail number left the ground. {order}"
    )


def print_difference(console: Console, comparison: Comparison) -> None:
    """Print the first aircraft that differs, field by field."""
    tail = comparison.differing[0]
    found, expected = comparison.found.get(tail), comparison.expected.get(tail)
    table = Table(
        title=f"The first of {len(comparison.differing):,} aircraft that differ: {tail}", title_justify="left", title_style="red"
    )
    table.add_column("")
    table.add_column("through the bus", justify="right")
    table.add_column("from the table", justify="right")
    for item in fields(Aircraft):
        ours, theirs = (str(getattr(side, item.name)) if side is not None else "missing" for side in (found, expected))
        table.add_row(item.name, ours, theirs, style="bold red" if item.compare and ours != theirs else "")
    console.print(table)


def print_findings(console: Console, found: Mapping[str, Aircraft]) -> None:
    """Print findings from the aircraft's states."""
    if not found:
        return
    names = ("flights", "minutes", "distance", "gaps", "elsewhere")
    flights, minutes, distance, gaps, elsewhere = (sum(getattr(each, name) for each in found.values()) for name in names)
    tail, busiest = max(sorted(found.items()), key=lambda item: item[1].flights)
    console.print(
        f"{flights:,} flights, {minutes / 60:,.0f} hours in the air, {distance / 1e6:,.1f} million miles. "
        f"Busiest: {tail} with {busiest.flights:,} flights and {busiest.distance:,} miles.\n"
        f"{gaps:,} times on the ground, {elsewhere:,} of them end at another airport than they began: "
        "the table has the flights out of New York only, the way back is not in it."
    )
