"""One run: read, start, dispatch, watch, kill, wait, compare.

Everything of a run bears its namespace, so that runs do not disturb each other or anything else on the server; all of it is
removed at the end.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as ConnectionLost
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from command_bus import BusSettings, CommandBus, Stats
from command_bus.embedded import EmbeddedServer
from examples.flights.data import Flight, census, movements
from examples.flights.dispatching import Tally, dispatch_all
from examples.flights.fleet import Fleet
from examples.flights.hangar import Hangar, state_key
from examples.flights.reference import expected
from examples.flights.report import Check, Comparison, checks, compare

__all__ = ["BACKLOG", "Options", "Reading", "Result", "Stalled", "run"]

_LEASE = 2.0  # seconds: short, so that a killed worker's aircraft are soon taken over
BACKLOG = 50_000  # commands that may wait; the producer is held up beyond
_CHUNK = 1_000
_LOOK = 0.1  # seconds between looks at the bus
_KILL_AT = 1 / 3  # of the commands completed
_STALLED = 60.0  # seconds without progress after which the run is given up


class Stalled(RuntimeError):
    """The bus completes nothing any more."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to run.

    Attributes:
        url: The server; None takes the environment's or the embedded one.
        out: The folder for logs and the picture.
        kill: Whether a worker is killed on the way.
    """

    workers: int = 2
    concurrency: int = 128
    url: str | None = None
    out: Path = Path("examples/flights/out")
    kill: bool = True


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
    """

    flights: Sequence[Flight]
    commands: int
    comparison: Comparison
    checks: list[Check]
    tally: Tally
    seconds: float
    server: str
    readings: list[Reading] = field(default_factory=list)
    killed_at: float | None = None

    @property
    def right(self) -> bool:
        """Whether everything holds."""
        return all(check.holds for check in self.checks)


async def run(flights: Sequence[Flight], options: Options, console: Console) -> Result:
    """Send the flights through the bus and compare what comes out.

    Raises:
        Refused: The bus refused a command for good.
        Stalled: Nothing was completed for a minute.
        WorkerEnded: A worker ended by itself.
    """
    async with AsyncExitStack() as stack:
        settings = _settings(options.url or _given_url() or stack.enter_context(EmbeddedServer.start()).url)
        client = await stack.enter_async_context(Redis.from_url(settings.server_url or ""))
        stack.push_async_callback(_remove_keys, client, settings.namespace)
        bus = await stack.enter_async_context(CommandBus(settings=settings))
        server = await _server_name(client)
        console.print(
            f"{server}; namespace {settings.namespace}; "
            f"{options.workers} worker processes × {options.concurrency} aircraft at a time"
        )
        fleet = await stack.enter_async_context(Fleet(options.workers, options.concurrency, _environment(settings), options.out))
        voyage = _Voyage(bus, fleet, census(flights).commands, kill=options.kill)
        stats = await voyage.sail(flights, console)
        wanted = expected(flights)
        comparison = compare(wanted, await Hangar(client, settings.namespace).load_all(sorted(wanted)))
        allowed = len(fleet.killed) * options.concurrency
        return Result(
            flights=flights,
            commands=voyage.commands,
            comparison=comparison,
            checks=checks(voyage.commands, voyage.tally, stats, comparison, repeats_allowed=allowed),
            tally=voyage.tally,
            seconds=voyage.readings[-1].at,
            server=server,
            readings=voyage.readings,
            killed_at=voyage.killed_at,
        )
    raise AssertionError("the stack swallows nothing")


def _given_url() -> str | None:
    """The server that the environment names.

    Without one the demo starts an embedded server of its own. `CommandBus()` would join the development server that all programs of
    this project share, and that one ends with whoever started it.
    """
    return BusSettings().server_url


def _settings(url: str) -> BusSettings:
    return BusSettings(
        url=url,
        namespace=f"flights-{os.urandom(4).hex()}",
        lease=_LEASE,
        max_total_depth=BACKLOG,
        dedup_window=120.0,
    )


def _environment(settings: BusSettings) -> dict[str, str]:
    """The same settings for the worker processes."""
    names = ("namespace", "lease", "dedup_window", "max_total_depth")
    own = {f"COMMAND_BUS_{name.upper()}": str(getattr(settings, name)) for name in names}
    return {**own, "COMMAND_BUS_URL": settings.server_url or ""}


class _Voyage:
    """The part of a run in which commands are under way."""

    def __init__(self, bus: CommandBus, fleet: Fleet, commands: int, *, kill: bool) -> None:
        self.commands = commands
        self.tally = Tally()
        self.readings: list[Reading] = []
        self.killed_at: float | None = None
        self._bus = bus
        self._fleet = fleet
        self._kill = kill
        self._began = 0.0

    async def sail(self, flights: Sequence[Flight], console: Console) -> Stats:
        """Dispatch everything and return when all of it is settled."""
        letters = movements(flights)
        gc.freeze()  # the table and its order stay: the collector need not look through them over and over, a second each time
        self._began = time.monotonic()
        with _progress(console) as progress:
            sent = progress.add_task("dispatched", total=self.commands, note="")
            done = progress.add_task("completed", total=self.commands, note="")
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(dispatch_all(self._bus, letters, self.tally, chunk=_CHUNK), name="dispatch")
                    watch = tasks.create_task(self._watch(progress, sent, done, console), name="watch")
            except ExceptionGroup as group:
                raise group.exceptions[0] from None
        await self._bus.wait_idle(timeout=_STALLED)
        return watch.result()

    async def _watch(self, progress: Progress, sent: TaskID, done: TaskID, console: Console) -> Stats:
        """Look at the bus until all is settled, show it, and kill a worker when the time has come."""
        moved = time.monotonic()
        while True:
            self._fleet.check()
            stats = await self._bus.stats()
            now = time.monotonic()
            if not self.readings or self.readings[-1].completed != stats.completed:
                moved = now
            elif now - moved > _STALLED:
                raise Stalled(f"nothing was completed for {_STALLED:.0f} s: {stats}")
            reading = Reading(now - self._began, self.tally.accepted, stats.completed, stats.depth, stats.in_flight)
            self.readings.append(reading)
            progress.update(sent, completed=reading.dispatched, note=f"{reading.waiting:,} waiting")
            progress.update(
                done, completed=reading.completed, note=f"{_rate(self.readings):,.0f}/s, {reading.in_work} aircraft in work"
            )
            if self.tally.done and stats.depth == 0:
                return stats
            if self._kill and stats.in_flight > 0 and stats.completed >= _KILL_AT * self.commands:
                self._kill = False
                self.killed_at = now - self._began
                pid = await self._fleet.kill_one()
                console.print(f"worker process {pid} killed with SIGKILL in mid-run, another started in its place")
            await asyncio.sleep(_LOOK)


def _rate(readings: Sequence[Reading], window: float = 2.0) -> float:
    """Commands completed per second, over the last seconds."""
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


async def _server_name(client: Redis) -> str:
    about = await client.info("server")
    name = f"Valkey {about['valkey_version']}" if "valkey_version" in about else f"Redis {about['redis_version']}"
    return f"{name}, redis-py {version('redis')}, command_bus {_own_version()}"


def _own_version() -> str:
    try:
        return version("command-bus")
    except PackageNotFoundError:
        return "from its source folder"


async def _remove_keys(client: Redis, namespace: str) -> None:
    """Remove what the run left on the server: the aircraft, and what the bus keeps for a while (dedup marks, counters)."""
    with suppress(ConnectionLost):  # a server that is gone has its own error, or none if it was embedded
        for pattern in (state_key(namespace, "*"), f"{{{namespace}:*"):
            names = [name async for name in client.scan_iter(match=pattern, count=2000)]
            for start in range(0, len(names), 2000):
                await client.unlink(*names[start : start + 2000])
