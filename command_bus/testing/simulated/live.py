"""The simulated server within a running event loop, and processes of it that can be killed without a last word."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, cast

from redis import Redis as SyncRedis
from redis import exceptions as redis_errors
from redis.asyncio import Redis

from command_bus.testing.simulated.client import WiredPipe, WiredRedis
from command_bus.testing.simulated.server import Link, Server

__all__ = ["PROCESS", "Process", "live_server"]

PROCESS: ContextVar[Process | None] = ContextVar("command_bus_testing_process", default=None)
"""The process that a task belongs to; its tasks inherit it."""


def live_server(clock: Callable[[], float]) -> Server:
    """A server in the time of the running loop, which `clock` tells."""
    loop = asyncio.get_running_loop()
    server = Server(clock, loop.call_at)
    server.offset = time.time() - clock()
    return server


class Process:
    """What stands for an operating system's process: connections that end together. Implements `ClientFactory`.

    Args:
        server: That it talks to.
    """

    label = "in-memory server"

    def __init__(self, server: Server) -> None:
        self.server = server
        self.dead = False
        self.after: list[Callable[[], None]] = []
        """Called when a request was carried out, before anybody learns its answer."""
        self._open: set[asyncio.Future[Any]] = set()

    def at(self, tag: str) -> Process:
        """See `ClientFactory`."""
        return self

    def commands(self) -> Redis:
        """See `ClientFactory`."""
        return WiredRedis(_Wire(self))

    def pipe(self, block: float = 0.0) -> WiredPipe:
        """See `ClientFactory`."""
        return WiredPipe(_Wire(self))

    def thread(self, patience: float) -> SyncRedis:
        """An asynchronous one: the thread is a task here."""
        return cast("SyncRedis", WiredRedis(_Wire(self)))

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
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._open.add(future)
        try:
            self.server.execute(link, requests, lambda answers: None if future.done() else future.set_result(answers))
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


def _gone() -> redis_errors.ConnectionError:
    return redis_errors.ConnectionError("this process was killed by the test")
