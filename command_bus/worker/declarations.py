"""`Declarations`: what a worker's code declares on the server: the looks of its commands, its schedules and its limits."""

from __future__ import annotations

import asyncio
import logging

from command_bus.errors import CommandBusError, QueueFull
from command_bus.handlers.registry import HandlerRegistry
from command_bus.settings import BusSettings
from command_bus.transport.tasks import end_tasks
from command_bus.worker.descriptions import describe_commands
from command_bus.worker.limit_rules import declare_limits
from command_bus.worker.worker_bus import WorkerBus

_log = logging.getLogger("command_bus.worker")
_PAUSE = 1.0
"""Seconds between two tries."""


class Declarations:
    """The declarations of one worker, written when it starts, and again if the server has forgotten it.

    Args:
        bus: Of the worker.
        settings: Of the worker.
        registry: Its handlers.
    """

    def __init__(self, bus: WorkerBus, settings: BusSettings, registry: HandlerRegistry) -> None:
        self._bus = bus
        self._settings = settings
        self._registry = registry
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    async def write(self) -> None:
        """Write what is not there yet, or in an older revision.

        Raises:
            CommandBusError: As `Worker.start`.
        """
        self._loop = asyncio.get_running_loop()
        await self._describe()
        await self._bus.schedules.sync(self._registry)
        await declare_limits(self._bus.session, self._settings, self._registry)

    def write_again(self) -> None:
        """Begin to write all of it again: the server has lost its data, or the namespace was deleted. Any thread may call this."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._write_again(), name="command_bus.declarations")

    async def stop(self) -> None:
        """End what `write_again` has begun."""
        await end_tasks([] if self._task is None else [self._task])

    async def _write_again(self) -> None:
        _log.warning("the server has forgotten this worker: it lost its data, or the namespace was deleted. Declares all again")
        while True:
            try:
                return await self.write()
            except CommandBusError as error:
                _log.warning("cannot declare schedules and limits again yet: %s", error)
                await asyncio.sleep(_PAUSE)

    async def _describe(self) -> None:
        """Publish the commands' schemas for clients without the classes. If the server is out of memory, log it and go on."""
        try:
            await self._bus.session.transport.announcements.describe(describe_commands(self._registry, self._settings))
        except QueueFull as error:
            _log.warning("what commands look like could not be published, only Spark writers by wire name miss it: %s", error)
