"""The verdict: what the bus says, what the aircraft say, what the table says; all three must agree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from rich.console import Console
from rich.table import Table

from command_bus import Stats
from examples.flights.data import Census
from examples.flights.dispatching import Tally
from examples.flights.model import Aircraft

__all__ = ["Check", "Comparison", "checks", "compare", "print_census", "print_difference", "print_findings", "print_verdict"]


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


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the reconciliation."""

    what: str
    value: int
    wanted: str
    holds: bool


def checks(commands: int, tally: Tally, stats: Stats, comparison: Comparison, *, repeats_allowed: int) -> list[Check]:
    """Everything that must hold after the run."""

    def equal(what: str, value: int, wanted: int) -> Check:
        return Check(what, value, f"{wanted:,}", value == wanted)

    repeats = comparison.repeats
    return [
        equal("commands accepted (producer)", tally.accepted, commands),
        equal("commands accepted (server)", stats.accepted, commands),
        equal("duplicates refused", tally.duplicates, tally.resent),
        equal("completed", stats.completed, commands),
        equal("rejected", stats.rejected, 0),
        equal("dead-lettered", stats.dead_lettered, 0),
        equal("left behind", stats.depth, 0),
        equal("out of order, twice or overlapping", comparison.violations, 0),
        Check("delivered again after the kill, and skipped", repeats, f"at most {repeats_allowed:,}", repeats <= repeats_allowed),
        equal("aircraft that agree with the table", comparison.agreeing, len(comparison.expected)),
        equal("aircraft that differ", len(comparison.differing), 0),
    ]


def print_census(console: Console, whole: Census, chosen: Census) -> None:
    """What the table holds, what is missing in it and what becomes of that."""
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
        "A cancelled flight is nothing that happens to an aircraft, and no flight without a tail number left the ground. "
        "Commands go out in the order of what really happened, all aircraft interleaved."
    )


def print_verdict(console: Console, lines: Iterable[Check]) -> None:
    """The reconciliation."""
    table = Table(title="Reconciliation", title_justify="left")
    table.add_column("")
    table.add_column("found", justify="right")
    table.add_column("wanted", justify="right")
    table.add_column("")
    for line in lines:
        table.add_row(line.what, f"{line.value:,}", line.wanted, "[green]ok[/]" if line.holds else "[bold red]WRONG[/]")
    console.print(table)


def print_difference(console: Console, comparison: Comparison) -> None:
    """The first aircraft that differs, field by field."""
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
    """What the aircraft's states tell, besides that they are right."""
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
