"""Reads that all open pages share, so that two hundred of them cost the server what one costs.

`SharedReads` keeps answers for a moment. `Pulse` reads the figures of the namespace every two seconds while a page is open, and once a
minute for the plots for as long as the dashboard is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple, TypeVar

from command_bus.admin.info import Stats
from command_bus.bus import CommandBus
from command_bus.clock import mono
from command_bus.errors import CommandBusError
from command_bus.integrations.web import counted

T = TypeVar("T")
_FRESH = 1.0
_KEPT = 200


class SharedReads:
    """Keeps answers for a second, and lets those who ask meanwhile wait for the same one.

    Args:
        fresh: Seconds for which an answer is kept.
    """

    def __init__(self, fresh: float = _FRESH) -> None:
        self._fresh = fresh
        self._answers: dict[Hashable, tuple[float, asyncio.Task[Any]]] = {}

    async def get(self, key: Hashable, read: Callable[[], Awaitable[T]], fresh: float | None = None) -> T:
        """Return the answer of `read`, or one to the same key of a moment ago, at most `fresh` seconds."""
        now = mono()
        self._answers = (
            {each: kept for each, kept in self._answers.items() if _is_fresh(kept, now)} if self._is_full else self._answers
        )
        kept = self._answers.get(key)
        if kept is None or not _is_fresh(kept, now):
            kept = now + (self._fresh if fresh is None else fresh), asyncio.ensure_future(_done(read))
            self._answers[key] = kept
        answer: T = await asyncio.shield(kept[1])
        return answer

    def forget(self) -> None:
        """Read again what is asked for next: something was changed."""
        self._answers.clear()

    @property
    def _is_full(self) -> bool:
        return len(self._answers) >= _KEPT


def _is_fresh(kept: tuple[float, asyncio.Task[Any]], now: float) -> bool:
    until, task = kept
    failed = task.done() and (task.cancelled() or task.exception() is not None)
    return now < until and not failed


async def _done(read: Callable[[], Awaitable[T]]) -> T:
    return await read()


_EVERY = 2.0
_TREND_EVERY = 20.0
"""Seconds between two tries to write the figures of a minute: another dashboard may have done it, or be gone. Also between beats without a page."""
_log = logging.getLogger("command_bus.dashboard")


class Beat(NamedTuple):
    """The figures of a moment.

    Attributes:
        number: Counts the beats.
        stats: None if the server did not answer.
    """

    number: int
    stats: Stats | None

    def facts(self) -> dict[str, Any]:
        """Return what pages show without being read again, and `version`, which changes with what they show."""
        if self.stats is None:
            return {"away": True, "version": ""}
        stats = self.stats
        figures = {
            "parked": stats.parked,
            "dead_letters": stats.dead_letters,
            "depth": stats.depth,
            "in_flight": stats.in_flight,
            "workers": len(stats.workers),
        }
        moving = [*figures.values(), stats.settled, stats.accepted, stats.paused, stats.limited, stats.suspended, stats.delayed]
        version = hashlib.sha256(json.dumps(moving).encode()).hexdigest()[:12]
        return {"away": False, "version": version, **figures}


class Pulse:
    """Reads the figures while somebody listens.

    Args:
        bus: Open.
        every: Seconds between two beats.
        on_change: Called before a beat is sent that brings other figures: what was read before is old.
    """

    def __init__(self, bus: CommandBus, every: float = _EVERY, on_change: Callable[[], None] | None = None) -> None:
        self._bus = bus
        self._every = every
        self._on_change = on_change
        self._users = Counter[str]()
        self._woken = asyncio.Event()
        self._is_well = True
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Condition()
        self._trend_due = 0.0
        self.last = Beat(0, None)

    @property
    def listeners(self) -> int:
        """How many listen."""
        return self._users["listeners"]

    def listening(self) -> AbstractAsyncContextManager[None]:
        """Beat for as long as the block runs."""
        return self._beating("listeners")

    def keeping(self) -> AbstractAsyncContextManager[None]:
        """Keep the figures of each minute for as long as the block runs, whether or not a page is open."""
        return self._beating("keepers")

    @asynccontextmanager
    async def _beating(self, kind: str) -> AsyncGenerator[None]:
        try:
            with counted(self._users, kind):
                self._begin()
                yield
        finally:
            await self._end_unused()

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="command_bus.dashboard.pulse")
        elif self.listeners == 1:  # it may beat slowly
            self._woken.set()

    async def _end_unused(self) -> None:
        if not self._users.total() and self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def beat(self, behind: int, timeout: float) -> Beat | None:
        """Return the last beat once it comes behind a number; None if there was none in time."""
        try:
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait_for(lambda: self.last.number > behind)
        except TimeoutError:
            return None
        return self.last

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            await self._look()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), self._every if self.listeners else _TREND_EVERY)

    async def _look(self) -> None:
        stats: Stats | None = None
        try:
            async with asyncio.timeout(self._every * 2):
                stats = await self._bus.stats()
            if mono() >= self._trend_due:
                self._trend_due = mono() + _TREND_EVERY
                await self._bus.trends.keep(stats)
            self._is_well = True
        except (CommandBusError, TimeoutError) as error:
            _log.debug("no figures: %s", error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next beat may be well
            _log.log(logging.ERROR if self._is_well else logging.DEBUG, "no figures", exc_info=error)
            self._is_well = False
        before, beat = self.last.facts()["version"], Beat(self.last.number + 1, stats)
        if self._on_change is not None and beat.facts()["version"] != before:
            self._on_change()
        async with self._changed:
            self.last = beat
            self._changed.notify_all()
