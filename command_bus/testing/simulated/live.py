"""The simulated server for running event loops, and processes of it that can be killed without a last word.

Loops of several threads may share it: an application under `TestClient` and a `SyncCommandBus` have a loop each. A request is carried
out in the thread that sends it. Workers of one loop only listen at a time, because the others may stand still: a test that waits in
a blocking call blocks its own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, cast

from redis import Redis as SyncRedis
from redis import exceptions as redis_errors
from redis.asyncio import Redis

from command_bus.testing.simulated.client import WirePipe, WireRedis
from command_bus.testing.simulated.patching import TaskKeeper
from command_bus.testing.simulated.server import Link, Reply, Server
from command_bus.testing.simulated.store import Args

__all__ = ["PROCESS", "LiveServer", "Process"]

PROCESS: ContextVar[Process | None] = ContextVar("command_bus_testing_process", default=None)
"""The process that a task belongs to; its tasks inherit it."""


class LiveServer(Server):
    """A server in the time that `clock` tells, for the loops of several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock, _call_at)
        self.offset = time.time() - clock()
        self.working: asyncio.AbstractEventLoop | None = None
        """The loop whose workers listen; None: all."""
        self._lock = threading.RLock()

    def execute(self, link: Link, requests: list[Args], reply: Reply) -> None:
        """See `Server`."""
        with self._lock:
            super().execute(link, requests, reply)

    def cut(self, link: Link) -> None:
        """See `Server`."""
        with self._lock:
            super().cut(link)

    def let_work(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the workers of this loop listen, and those of others rest."""
        with self._lock:
            if self.working is not loop:
                self.working = loop
                self._feed()

    def listens(self, link: Link) -> bool:
        """See `Server`."""
        return bool(link.owner.listens)

    def _wake_up(self, link_id: int) -> None:
        with self._lock:
            super()._wake_up(link_id)


def _call_at(when: float, function: Callable[..., Any], *args: Any) -> None:
    asyncio.get_running_loop().call_at(when, function, *args)


class Process:
    """What stands for an operating system's process: connections that end together. Implements `ClientFactory`.

    Args:
        server: That it talks to.
        works: Whether it is a worker's, which rests while those of another loop work.
    """

    label = "in-memory server"
    lease_keeper = TaskKeeper

    def __init__(self, server: LiveServer, *, works: bool = False) -> None:
        self.server = server
        self.loop = asyncio._get_running_loop()  # noqa: SLF001 - as `get_running_loop`, and None for a test of the server alone
        self._works = works
        self.dead = False
        self.after: list[Callable[[], None]] = []
        """Called when a request was carried out, before anybody learns its answer."""
        self._open: set[asyncio.Future[Any]] = set()

    @property
    def listens(self) -> bool:
        """Whether a blocked read of it is to be served."""
        resting = self._works and self.server.working not in (None, self.loop)
        return not (self.dead or resting or (self.loop is not None and self.loop.is_closed()))

    def at(self, tag: str) -> Process:
        """See `ClientFactory`."""
        return self

    def commands(self) -> Redis:
        """See `ClientFactory`."""
        return WireRedis(_Wire(self))

    def pipe(self, block: float = 0.0) -> WirePipe:
        """See `ClientFactory`."""
        return WirePipe(_Wire(self))

    def thread(self, patience: float) -> SyncRedis:
        """An asynchronous one: the thread is a task here."""
        return cast("SyncRedis", WireRedis(_Wire(self)))

    def kill(self) -> None:
        """Nothing that it says from now on reaches the server, and no answer reaches it."""
        self.dead = True
        for future in list(self._open):
            if not future.done():
                future.set_exception(_gone())

    async def exchange(self, requests: list[list[bytes]]) -> list[Any]:
        """See `Wire`."""
        if self.dead:
            raise _gone()
        link = Link(self)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Any]] = loop.create_future()
        self._open.add(future)
        try:
            self.server.execute(link, requests, lambda answers: _told(loop, future, answers))
            for look in list(self.after):
                look()
            if self.dead and future.done() and future.exception() is None:
                raise _gone()
            return await future
        finally:
            self._open.discard(future)
            self.server.cut(link)


class _Wire:
    """Requests arrive at once."""

    def __init__(self, process: Process) -> None:
        self.exchange = process.exchange

    def close(self) -> None:
        """Nothing stays open between requests."""


def _told(loop: asyncio.AbstractEventLoop, future: asyncio.Future[list[Any]], answers: list[Any]) -> None:
    """Give a request its answers, from whichever thread they come."""

    def tell() -> None:
        if not future.done():
            future.set_result(answers)

    if asyncio._get_running_loop() is loop:  # noqa: SLF001 - as `get_running_loop`, for threads without one, too
        tell()
    else:
        with contextlib.suppress(RuntimeError):  # its loop has ended, and who waited with it
            loop.call_soon_threadsafe(tell)


def _gone() -> redis_errors.ConnectionError:
    return redis_errors.ConnectionError("this process was killed by the test")
