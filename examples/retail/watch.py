"""The view of a run while it lasts: readings for the picture, bars for the terminal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from command_bus import CommandBus, Stats
from examples.flights.fleet import Fleet
from examples.flights.stage import Stalled

__all__ = ["QueryFailed", "Reading", "Watch"]

_LOOK = 0.1  # seconds
_STALLED = 60.0


class QueryFailed(RuntimeError):
    """The streaming query ended by itself."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of the run at a moment, `at` seconds after its start."""

    at: float
    arrived: int
    dispatched: int
    applied: int
    waiting: int
    parked: int


@dataclass(slots=True)
class Watch:
    """Looks at the bus ten times a second, until it is cancelled.

    Attributes:
        backlog: Commands that may wait.
        rows: Rows that arrive in all.
        purchases: Rows that are commands.
        arrived: Rows so far; the feeder counts them.
        readings: Readings of the bus.
        marks: Times of what happened, for the picture.
    """

    bus: CommandBus
    fleet: Fleet
    console: Console
    backlog: int
    rows: int
    purchases: int
    arrived: int = 0
    readings: list[Reading] = field(default_factory=list[Reading])
    marks: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    _began: float = field(default_factory=time.monotonic)
    _looked: asyncio.Event = field(default_factory=asyncio.Event)
    _stats: Stats | None = None

    def mark(self, what: str, text: str = "") -> None:
        """Note that something happened, and say it."""
        self.marks.append((time.monotonic() - self._began, what))
        if text:
            self.console.print(text)

    async def until(self, condition: Callable[[Stats], bool]) -> Stats:
        """Wait until a look at the bus shows it."""
        while True:
            await self._looked.wait()
            self._looked.clear()
            if self._stats is not None and condition(self._stats):
                return self._stats

    async def run(self) -> None:
        """Read and show the bus.

        Raises:
            Stalled: Nothing moved for a minute.
            WorkerEnded: A worker ended by itself.
        """
        columns = (
            TextColumn("{task.description:>10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )
        moved = time.monotonic()
        with Progress(*columns, console=self.console) as progress:
            arrived = progress.add_task("arrived", total=self.rows, note="")
            sent = progress.add_task("dispatched", total=self.purchases, note="")
            done = progress.add_task("applied", total=self.purchases, note="")
            while True:
                self.fleet.check()
                self._stats = stats = await self.bus.stats()
                now = time.monotonic()
                reading = Reading(
                    now - self._began, self.arrived, stats.accepted, stats.completed + stats.rejected, stats.depth, stats.parked
                )
                if not self.readings or _counts(reading) != _counts(self.readings[-1]):
                    moved = now
                elif now - moved > _STALLED:
                    raise Stalled(f"nothing moved for {_STALLED:.0f} s: {stats}")
                self.readings.append(reading)
                progress.update(arrived, completed=reading.arrived)
                progress.update(sent, completed=reading.dispatched, note=self._backlog(stats))
                progress.update(done, completed=reading.applied, note=f"{stats.parked} customers parked" if stats.parked else "")
                self._looked.set()
                await asyncio.sleep(_LOOK)

    def _backlog(self, stats: Stats) -> str:
        full = stats.depth >= self.backlog * 0.95
        return f"{stats.depth:,} waiting" + (": [yellow]the stream waits for the workers[/]" if full else "")


def _counts(reading: Reading) -> tuple[int, int, int, int]:
    return reading.arrived, reading.dispatched, reading.applied, reading.waiting
