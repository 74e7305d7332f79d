"""The processes of a test bus: one that sends, and workers of which each can die."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

from command_bus.bus import CommandBus
from command_bus.keywords import BusOptions
from command_bus.middleware import around_dispatch
from command_bus.monitor import Monitor
from command_bus.registry import HandlerRegistry
from command_bus.testing.clock import VirtualClock
from command_bus.testing.crashes import Crash, Crashing
from command_bus.testing.records import Recorder
from command_bus.testing.simulated.ground import TaskKeeper, rebind
from command_bus.testing.simulated.live import PROCESS, Process, live_server
from command_bus.testing.simulated.server import Server
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.lease_keeper import LeaseKeeper
from command_bus.worker import Worker

__all__ = ["Fleet", "keeper_for"]

_LOGGERS = ("command_bus.worker", "command_bus.transport")
_thread_keeper = LeaseKeeper  # under a name that `rebind` leaves alone


@dataclass(slots=True)
class _Member:
    """A worker and its process."""

    bus: CommandBus
    worker: Worker
    process: Process


class Fleet:
    """Opens, starts, replaces and closes.

    Args:
        clock: Whose time they live in.
        registry: Handlers, or None for the bus's.
        bus: The application's, or None.
        workers: How many.
        options: For a bus of our own.
    """

    def __init__(
        self, clock: VirtualClock, registry: HandlerRegistry | None, bus: CommandBus | None, workers: int, options: BusOptions
    ) -> None:
        if bus is not None and (options or bus.is_open):
            raise TypeError("a bus of your own brings its options, and must not be open yet")
        self.bus = bus or CommandBus("redis://in-memory", registry=registry, **options)
        self.recorder = Recorder()
        self.crashes: list[Crash] = []
        self.crashed = 0
        self._registry = registry or self.bus.registry
        self._middleware = self.bus.middleware
        self._workers = workers
        self._clock = clock
        self._server: Server | None = None
        self._members: list[_Member] = []
        self._ending: set[asyncio.Task[Any]] = set()
        self._starting = asyncio.Lock()
        self._undo = contextlib.ExitStack()

    def is_async(self, name: str) -> bool:
        """Whether a command's handler runs on the loop."""
        handler = self._registry.lookup(name)
        return handler is None or handler.is_async

    def monitor(self) -> Monitor:
        """Tells whether there is work left."""
        transport = self.bus.transport
        return Monitor(transport.operations, transport.keys)

    async def open(self) -> None:
        """Take over the clocks and open the sender's bus; idempotent."""
        async with self._starting:
            if self._server is not None:
                return
            self._clock.start()
            self._undo.callback(rebind("LeaseKeeper", LeaseKeeper, keeper_for))
            for name in _LOGGERS:
                logging.getLogger(name).addFilter(_spoken_by_the_living)
                self._undo.callback(logging.getLogger(name).removeFilter, _spoken_by_the_living)
            self._server = live_server(self._clock.time)
            self._adopt(self.bus, self.recorder, Process(self._server))
            await self.bus.open()

    async def start(self) -> None:
        """Have all workers run; idempotent."""
        await self.open()
        async with self._starting:
            while len(self._members) < self._workers:
                await self._add()

    async def close(self) -> None:
        """Stop what lives, see the end of what was killed, close the sender's bus."""
        members, self._members = self._members, []
        for member in members:
            await member.worker.stop()
            await member.bus.close()
        if self._ending:
            await asyncio.wait(self._ending)
        await self.bus.close()

    def release(self) -> None:
        """Give the application's bus and the package back as they were."""
        self._undo.close()

    def _adopt(self, bus: CommandBus, recorder: Recorder, process: Process) -> None:
        """Let a bus talk to our server and be noted; undone by `release`."""
        names = ("_clients", "_transport", "_closed", "_closing", "_opening", "_send", "_prepare", "middleware")
        before = {name: getattr(bus, name) for name in names}
        bus.middleware = layers = (recorder, *bus.middleware)
        bus._closing = None  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - as below
        bus._clients, bus._transport, bus._closed, bus._opening = process, None, False, asyncio.Lock()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the kit is a part of the package
        bus._send = around_dispatch(layers, bus._transmit)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - as above
        bus._prepare = around_dispatch(layers, bus._seal)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - as above
        for name, value in before.items():
            self._undo.callback(setattr, bus, name, value)

    async def _add(self) -> None:
        assert self._server is not None  # noqa: S101 - opened before
        process = Process(self._server)
        given = self.bus
        keys = KeySpace(given.settings.namespace, given.settings.shards)
        layer = Crashing(self.recorder, self.crashes, process, keys, partial(self._killed, process))
        bus = CommandBus(
            settings=given.settings, registry=self._registry, middleware=(layer, *self._middleware), lifespan=given.lifespan
        )
        bus.protection = given.protection
        bus._clients = process  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - as above
        member = _Member(bus, bus.worker(), process)
        surroundings = contextvars.copy_context()
        surroundings.run(PROCESS.set, process)
        await asyncio.get_running_loop().create_task(self._begin(member), name="command_bus.testing", context=surroundings)
        self._members.append(member)

    async def _begin(self, member: _Member) -> None:
        await member.bus.open()
        await member.worker.start()

    def _killed(self, process: Process) -> None:
        """A process has died: clear away what is left of it here, and put another in its place."""
        self.crashed += 1
        for member in self._members:
            if member.process is process:
                self._members.remove(member)
                self._later(self._bury(member))
                self._later(self.start())
                return

    def _later(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work, name="command_bus.testing")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _bury(self, member: _Member) -> None:
        await member.worker.stop(grace=0)
        await member.bus.close()


def _spoken_by_the_living(_record: logging.LogRecord) -> bool:
    """What remains of a dead process tries this and that until it is cleared away; nobody wants to read of it."""
    process = PROCESS.get()
    return process is None or not process.dead


def keeper_for(factory: Any, *arguments: Any, **options: Any) -> LeaseKeeper:
    """The keeper that fits a worker's server: a bus on a real one may run in the same test."""
    kind = TaskKeeper if isinstance(factory, Process) else _thread_keeper
    return kind(factory, *arguments, **options)
