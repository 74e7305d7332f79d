"""Commands that come at a time: schedules and delayed commands. Their memory, and how late a thousand a second of them start.

Lateness is from the planned moment to the first line of the handler, by the machine's one clock. One worker runs them, in this process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta

from benchmarks.case import Case
from benchmarks.cases.memory import used
from benchmarks.cases.messages import Note
from benchmarks.figures import Sample
from benchmarks.ground import NAMESPACE, Ground
from benchmarks.protocol import quantile
from command_bus import CommandBus, CommandContext, Envelope, HandlerRegistry, every

__all__ = ["ALL"]

_RATE = 1000
"""Due in a second."""
_ENTITIES = 1000
_AT_ONCE = 200
_BATCH = 1000
_LEAD = 2.0
"""Seconds between the last preparation and the first moment."""
_DAY = 86_400.0
_ROOM = 2_000_000


class Lateness:
    """The worker's side: notes how late each command starts."""

    def __init__(self, count: int) -> None:
        self.seconds: list[float] = []
        self.done = asyncio.Event()
        self.registry = HandlerRegistry()
        self._count = count
        self._spent = 0.0

        @self.registry.handles(Note)
        async def note(command: Note, context: CommandContext) -> int:
            self._note(time.time() - _planned(context.command_id))
            return command.number

    def _note(self, late: float) -> None:
        if not self.seconds:
            self._spent = time.process_time()
        self.seconds.append(late)
        if len(self.seconds) >= self._count:
            self.done.set()

    def sample(self, began: float) -> dict[str, float]:
        """Return the quantiles, how many started in a second, and processor time since the first."""
        return {
            "worker_us": (time.process_time() - self._spent) / len(self.seconds) * 1e6,
            "per_s": len(self.seconds) / (time.time() - began),
            "p50_ms": quantile(self.seconds, 0.5) * 1000,
            "p99_ms": quantile(self.seconds, 0.99) * 1000,
        }


def _planned(command_id: str) -> float:
    """Return the moment that a command id ends with."""
    return datetime.fromisoformat(command_id.rpartition("@")[2]).timestamp()


async def _together(work: Iterable[Callable[[], Awaitable[object]]]) -> None:
    """Do it, so many at a time."""
    left = iter(work)

    async def some() -> None:
        for each in left:
            await each()

    await asyncio.gather(*(some() for _ in range(_AT_ONCE)))


async def _put(bus: CommandBus, count: int, period: float, start: datetime) -> None:
    """Put schedules whose ticks are spread evenly over a period."""

    def one(number: int) -> Callable[[], Awaitable[object]]:
        command = Note(entity=f"e{number % _ENTITIES}", number=number)
        first = start + timedelta(seconds=period * number / count)
        return lambda: bus.schedules.put(f"poll-{number:06d}", command, every(period), start=first)

    await _together(map(one, range(count)))


def schedules_stored(ground: Ground) -> Sample:
    """Measure bytes of a schedule that waits."""
    count = ground.count(100_000, least=1000)

    async def work() -> float:
        async with CommandBus(ground.url, namespace=NAMESPACE) as bus:
            await _put(bus, 1, _DAY, datetime.now(UTC) + timedelta(days=1))
            empty = used(ground)
            await _put(bus, count, _DAY, datetime.now(UTC) + timedelta(days=1))
            return (used(ground) - empty) / count

    return {"bytes_each": asyncio.run(work())}


def schedules_fired(ground: Ground) -> Sample:
    """Measure how late the firings of a thousand schedules a second start, with ten thousand schedules."""
    period = 10.0
    count = ground.count(20_000, least=2000)

    async def work() -> Sample:
        late = Lateness(count)
        async with CommandBus(ground.url, namespace=NAMESPACE, registry=late.registry) as bus:
            start = datetime.now(UTC) + timedelta(seconds=_LEAD + period * _RATE / 500)
            await _put(bus, int(period * _RATE), period, start)
            async with bus.worker():
                await asyncio.wait_for(late.done.wait(), 600)
            return late.sample(start.timestamp())

    return asyncio.run(work())


def delayed(ground: Ground) -> Sample:
    """Measure bytes of a delayed command of a million, and how late a thousand a second of more of them start."""
    stored, count = ground.count(1_000_000, least=1000), ground.count(20_000, least=2000)

    async def work() -> Sample:
        late = Lateness(count)
        async with CommandBus(
            ground.url, namespace=NAMESPACE, registry=late.registry, max_depth=_ROOM, max_total_depth=_ROOM
        ) as bus:
            await _delay(bus, 1, datetime.now(UTC) + timedelta(days=2), "first")
            empty = used(ground)
            await _delay(bus, stored, datetime.now(UTC) + timedelta(days=1), "far")
            each = (used(ground) - empty) / stored
            start = datetime.now(UTC) + timedelta(seconds=_LEAD + count / 5000)
            await _delay(bus, count, start, "near")
            async with bus.worker():
                await asyncio.wait_for(late.done.wait(), 600)
            return {"bytes_each": each, **late.sample(start.timestamp())}

    return asyncio.run(work())


async def _delay(bus: CommandBus, count: int, start: datetime, kind: str) -> None:
    """Send commands that become due evenly, a thousand a second."""
    for first in range(0, count, _BATCH):
        batch: list[Envelope[Note]] = []
        for number in range(first, min(first + _BATCH, count)):
            at = start + timedelta(seconds=number / _RATE)
            command = Note(entity=f"e{number % _ENTITIES}", number=number)
            batch.append(Envelope(command, at=at, command_id=f"{kind}-{number}@{at.isoformat()}"))
        await bus.dispatch_batch(batch)


ALL = [
    Case("schedules, memory of 100,000", "schedules", schedules_stored, most=1),
    Case("schedules, 1,000 firings a second", "schedules", schedules_fired, most=3),
    Case("delayed, 1,000 a second beside 1,000,000", "schedules", delayed, most=1),
]
