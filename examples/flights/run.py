"""One run: watch the bus while the commands are sent and applied, show how it goes, kill a worker on the way.

`lite` (plain Python) and `pipeline` (Spark) send the commands and compare the results.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from command_bus import CommandBus, Stats
from examples.flights.fleet import Fleet
from examples.flights.report import Comparison
from examples.flights.stage import Stalled
from examples.flights.verdict import Check

__all__ = ["BACKLOG", "Closing", "Departure", "Options", "Reading", "Result", "Voyage"]

BACKLOG = 50_000  # commands that may wait; the producer is held up beyond
_LOOK = 0.1  # seconds between looks at the bus
_KILL_AT = 1 / 3  # of the commands completed
_STALLED = 60.0  # seconds without progress after which the run is given up

Departure = tuple[int, int, int | None]
"""What the picture shows of a flight: the scheduled minute on New York's clock, the delay, the minutes in the air if they are known."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run: what to send, and how.

    Attributes:
        sample: Send the flights of so many aircraft; None: of all.
        days: Send the flights of so many days; None: of all.
        seed: Chooses the aircraft of a sample.
        url: The server; None takes the environment's or an embedded one.
        out: The folder for logs and pictures.
        kill: Whether a worker is killed on the way.
        fail_tasks: Whether each of Spark's tasks is killed once in mid-write.
        dashboard: Whether the dashboard is served at the end.
    """

    sample: int | None = None
    days: int | None = None
    seed: int = 2013
    workers: int = 2
    concurrency: int = 128
    url: str | None = None
    out: Path = Path("examples/flights/out")
    kill: bool = True
    fail_tasks: bool = False
    dashboard: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of the run at a moment, `at` seconds after its start."""

    at: float
    dispatched: int
    completed: int
    waiting: int
    in_work: int


@dataclass(slots=True)
class Result:
    """All that the report and the picture need.

    Attributes:
        seconds: From the first dispatch until everything was settled.
        killed_at: When a worker was killed, in seconds after the start; None if none was.
        remarks: What else is worth a line.
    """

    commands: int
    comparison: Comparison
    checks: list[Check]
    departures: Sequence[Departure]
    seconds: float
    server: str
    readings: list[Reading] = field(default_factory=list)
    killed_at: float | None = None
    remarks: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """Whether everything holds."""
        return all(check.holds for check in self.checks)


Closing = Callable[[Result, CommandBus], Awaitable[None]]
"""What is done with the result while the bus is still open and its workers run."""


class Voyage:
    """The part of a run in which commands are under way.

    Attributes:
        readings: What was seen, ten times a second.
        killed_at: When a worker was killed, in seconds after the start.
    """

    def __init__(self, bus: CommandBus, fleet: Fleet, commands: int, *, kill: bool) -> None:
        self.commands = commands
        self.readings: list[Reading] = []
        self.killed_at: float | None = None
        self._bus = bus
        self._fleet = fleet
        self._kill = kill
        self._began = 0.0

    async def sail(self, sending: Coroutine[Any, Any, object], console: Console) -> Stats:
        """Send, and return when all that was sent is settled.

        Raises:
            Stalled: Nothing was completed for a minute.
            WorkerEnded: A worker ended by itself.
        """
        self._began = time.monotonic()
        with _progress(console) as progress:
            sent = progress.add_task("dispatched", total=self.commands, note="")
            done = progress.add_task("completed", total=self.commands, note="")
            try:
                async with asyncio.TaskGroup() as tasks:
                    producer = tasks.create_task(sending, name="dispatch")
                    watch = tasks.create_task(self._watch(producer, progress, sent, done, console), name="watch")
            except ExceptionGroup as group:
                raise group.exceptions[0] from None
        await self._bus.wait_idle(timeout=_STALLED)
        return watch.result()

    async def _watch(
        self, producer: asyncio.Task[object], progress: Progress, sent: TaskID, done: TaskID, console: Console
    ) -> Stats:
        """Watch and show the bus until all is settled, and kill a worker when it is time."""
        moved = time.monotonic()
        while True:
            self._fleet.check()
            everything_sent = producer.done()
            stats = await self._bus.stats()
            now = time.monotonic()
            reading = Reading(now - self._began, stats.accepted, stats.completed, stats.depth, stats.in_flight)
            if not self.readings or (reading.dispatched, reading.completed) != _counts(self.readings[-1]):
                moved = now
            elif now - moved > _STALLED:
                raise Stalled(f"nothing was accepted or completed for {_STALLED:.0f} s: {stats}")
            self.readings.append(reading)
            progress.update(sent, completed=reading.dispatched, note=f"{reading.waiting:,} waiting")
            progress.update(
                done, completed=reading.completed, note=f"{_rate(self.readings):,.0f}/s, {reading.in_work} aircraft in work"
            )
            if everything_sent and stats.depth == 0:
                return stats
            if self._kill and stats.in_flight > 0 and stats.completed >= _KILL_AT * self.commands:
                self._kill = False
                self.killed_at = now - self._began
                pid = await self._fleet.kill_one()
                console.print(f"worker process {pid} killed with SIGKILL in mid-run, another started in its place")
            await asyncio.sleep(_LOOK)


def _counts(reading: Reading) -> tuple[int, int]:
    return reading.dispatched, reading.completed


def _rate(readings: Sequence[Reading], window: float = 2.0) -> float:
    """Return the commands completed per second, over the last seconds."""
    last = readings[-1]
    first = next(reading for reading in readings if reading.at >= last.at - window)
    return (last.completed - first.completed) / (last.at - first.at) if last.at > first.at else 0.0


def _progress(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description:>10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    return Progress(*columns, console=console)
