"""The processes of a test bus: those that send, and workers of which each can die, on every event loop that uses the bus."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from typing import Any

from command_bus.admin.statistics import Statistics
from command_bus.bus import BusOptions, CommandBus
from command_bus.errors import EntitiesStopped
from command_bus.handlers.registry import HandlerRegistry
from command_bus.middleware import Middleware
from command_bus.session import Session
from command_bus.testing.claims import Claims
from command_bus.testing.clock import VirtualClock
from command_bus.testing.crashes import Crash
from command_bus.testing.records import Recorder
from command_bus.testing.simulated.live import PROCESS, LiveServer, Process
from command_bus.testing.workers import Script, Stage

__all__ = ["Fleet"]

_FAREWELL = 20.0  # seconds for the end of what runs in another thread
_LOGGERS = ("command_bus.worker", "command_bus.transport")


class Fleet:
    """Opens, starts, replaces and closes. Implements `SessionHook`.

    Args:
        clock: Whose time they live in.
        registry: Handlers, or None for those of the buses.
        bus: The application's, or None.
        workers: How many per namespace.
        options: For a bus of our own.

    Raises:
        TypeError: The bus is open, or comes with options.
    """

    def __init__(
        self, clock: VirtualClock, registry: HandlerRegistry | None, bus: CommandBus | None, workers: int, options: BusOptions
    ) -> None:
        if bus is not None and options:
            raise TypeError("a bus of your own brings its options: give a bus, or options")
        self.bus = bus or CommandBus("redis://in-memory", registry=registry, **options)
        self.recorder = Recorder()
        self.crashes: list[Crash] = []
        self.claims = Claims(self, self.recorder)
        self.claims.one(self.bus)
        self._script = Script(LiveServer(clock.time), self.recorder, self.crashes, workers)
        self._registry = registry if bus is None or registry is not None else bus.registry
        self._layers: dict[CommandBus, tuple[Middleware, ...]] = {self.bus: self.bus.middleware}
        self._clock = clock
        self._stages: dict[asyncio.AbstractEventLoop, Stage] = {}
        self._twins: dict[asyncio.AbstractEventLoop, CommandBus] = {}
        self._begun = False
        self._undo = contextlib.ExitStack()

    @property
    def crashed(self) -> int:
        """Workers that died."""
        return self._script.crashed

    def is_async(self, name: str) -> bool:
        """Whether a command's handler runs on the loop."""
        found = (self._handlers(bus).lookup(name) for bus in self._layers)
        handler = next((handler for handler in found if handler is not None), None)
        return handler is None or handler.is_async

    async def busy(self) -> bool:
        """Whether there is work left that no operator has to move."""
        for bus in self._stage().buses:
            with contextlib.suppress(EntitiesStopped):
                if await Statistics(bus.session).busy():
                    return True
        return False

    async def sender(self) -> CommandBus:
        """The bus, open on this loop; or one like it, if it is open on another. Idempotent."""
        loop = asyncio.get_running_loop()
        if self.claims.loop_of(self.bus) in (None, loop):
            await self.bus.open()
            return self.bus
        if loop not in self._twins:
            given = self.bus
            layers = self._layers[given]
            twin = self._twins[loop] = CommandBus(
                settings=given.settings, registry=given.registry, middleware=layers, cipher=given.cipher
            )
            self.claims.one(twin)
        await self._twins[loop].open()
        return self._twins[loop]

    async def start(self, *, stays: bool = True) -> None:
        """Have all workers run on this loop; idempotent.

        Args:
            stays: Until `close`, not only until the last bus of this loop is closed.
        """
        self._begin()
        if stays:
            await self.sender()
        stage = self._stage()
        stage.stays |= stays
        self._script.server.let_work(stage.loop)
        seen: set[str] = set()
        for bus in list(self._layers):
            if bus.settings.namespace not in seen:
                seen.add(bus.settings.namespace)
                await stage.start(bus, self._handlers(bus), self._layers[bus])

    async def close(self) -> None:
        """Stop the workers of this loop, and close the test's own bus if it is open here."""
        loop = asyncio.get_running_loop()
        stage = self._stages.pop(loop, None)
        if stage is not None:
            await stage.close()
        twin = self._twins.pop(loop, None)
        if twin is not None:
            await twin.close()
        if self.claims.loop_of(self.bus) is loop:
            await self.bus.close()

    def release(self) -> None:
        """Give the buses and the package back as they were; loops of other threads run on without us."""
        loops = {*self._stages, *(self.claims.loop_of(bus) for bus in self.claims.buses)}
        for loop in loops - {asyncio._get_running_loop()}:  # noqa: SLF001 - as `get_running_loop`, or None
            if loop is not None and loop.is_running():
                asyncio.run_coroutine_threadsafe(self._leave(), loop).result(_FAREWELL)
        self.claims.release()
        self._undo.close()
        self._stages.clear()

    async def opening(self, session: Session) -> None:
        """See `SessionHook`."""
        bus = session.owner
        if not isinstance(bus, CommandBus) or (session.clients is not None and bus not in self.claims.buses):
            return  # it lives in this process already
        self._begin()
        if bus not in self._twins.values():
            self._layers.setdefault(bus, bus.middleware)
        self.claims.take(bus, Process(self._script.server))

    async def closed(self, session: Session) -> None:
        """See `SessionHook`: the last bus of an application's loop takes the workers there along."""
        loop = asyncio.get_running_loop()
        stage = self._stages.get(loop)
        if stage is None or stage.stays or any(self.claims.loop_of(other) is loop for other in self.claims.buses):
            return
        del self._stages[loop]
        await stage.close()

    async def awaited(self, result: Awaitable[Any]) -> Any:
        """See `SessionHook`: workers run, and time leaps over the waits."""
        return await self.recorder.served(result)

    async def _leave(self) -> None:
        for bus in self.claims.buses:
            if self.claims.loop_of(bus) is asyncio.get_running_loop():
                await bus.close()
        await self.close()

    def _begin(self) -> None:
        """Take over the clock of this loop, and the package's."""
        self._clock.start()
        if self._begun:
            return
        self._begun = True
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_spoken_by_the_living)
            self._undo.callback(logging.getLogger(name).removeFilter, _spoken_by_the_living)

    def _stage(self) -> Stage:
        loop = asyncio.get_running_loop()
        if loop not in self._stages:
            self._stages[loop] = Stage(self._script)
        return self._stages[loop]

    def _handlers(self, bus: CommandBus) -> HandlerRegistry:
        """Those for the namespace of a bus: as named, else what its buses have."""
        if self._registry is not None and bus.settings.namespace == self.bus.settings.namespace:
            return self._registry
        ours = [other.registry for other in self._layers if other.settings.namespace == bus.settings.namespace]
        filled = list({id(registry): registry for registry in ours if len(registry)}.values())
        if len(filled) < 2:
            return filled[0] if filled else bus.registry
        joined = HandlerRegistry()
        for registry in filled:
            joined.include(registry)
        return joined


def _spoken_by_the_living(_record: logging.LogRecord) -> bool:
    """What remains of a dead process tries this and that until it is cleared away; nobody wants to read of it."""
    process = PROCESS.get()
    return process is None or not process.dead
