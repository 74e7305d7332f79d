"""The workers of a test bus on one event loop."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from command_bus.bus import CommandBus
from command_bus.handlers.registry import HandlerRegistry
from command_bus.session import SessionHook
from command_bus.testing.crashes import Crash, Crashing
from command_bus.testing.records import Recorder
from command_bus.testing.simulated.live import PROCESS, LiveServer, Process
from command_bus.transport.redis.keys import KeySpace
from command_bus.worker.worker import Worker


@dataclass(slots=True)
class WorkerSetup:
    """State that the workers of all loops share.

    Attributes:
        server: In memory.
        recorder: Records attempts and sent messages.
        crashes: Planned crashes.
        crashed: Number of workers that crashed.
        workers: Number of workers per namespace.
        hook: The hook of their sessions: lets time leap over what their handlers wait for.
    """

    server: LiveServer
    recorder: Recorder
    crashes: list[Crash]
    workers: int
    hook: SessionHook
    crashed: int = 0


@dataclass(slots=True)
class _StartedWorker:
    """A worker, its bus and its simulated process."""

    bus: CommandBus
    worker: Worker
    process: Process


class LoopWorkers:
    """Starts, replaces and stops the workers on the running loop.

    Args:
        setup: Shared by all loops.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self.loop = asyncio.get_running_loop()
        self.stays = False
        """Whether the test itself runs on this loop, not only an application."""
        self._setup = setup
        self._started: dict[str, list[_StartedWorker]] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._starting = asyncio.Lock()

    @property
    def buses(self) -> list[CommandBus]:
        """One worker's bus per namespace."""
        return [group[0].bus for group in self._started.values() if group]

    async def start(self, app_bus: CommandBus, handlers: HandlerRegistry, layers: Sequence[Any]) -> None:
        """Start the workers of a bus's namespace; idempotent."""
        async with self._starting:
            group = self._started.setdefault(app_bus.settings.namespace, [])
            while len(group) < self._setup.workers:
                await self._add(group, app_bus, handlers, layers)

    async def close(self) -> None:
        """Stop running workers, and wait for the clean-up of crashed ones."""
        started, self._started = self._started, {}
        for group in started.values():
            for started_worker in group:
                await started_worker.worker.stop()
                await started_worker.bus.close()
        if self._background:
            await asyncio.wait(self._background)

    async def _add(
        self, group: list[_StartedWorker], app_bus: CommandBus, handlers: HandlerRegistry, layers: Sequence[Any]
    ) -> None:
        setup = self._setup
        process = Process(setup.server, works=True)
        keys = KeySpace(app_bus.settings.namespace, app_bus.settings.shards)

        def replace_it() -> None:
            self._replace(group, process, lambda: self.start(app_bus, handlers, layers))

        crashing = Crashing(setup.recorder, setup.crashes, process, keys, replace_it)
        bus = CommandBus(
            settings=app_bus.settings,
            registry=handlers,
            middleware=(crashing, *layers),
            lifespan=app_bus.lifespan,
            cipher=app_bus.cipher,
            clients=process,
        )
        bus.session.hook = setup.hook
        started_worker = _StartedWorker(bus, bus.worker(), process)
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        await self.loop.create_task(_start(started_worker), name="command_bus.testing", context=context)
        group.append(started_worker)

    def _replace(self, group: list[_StartedWorker], process: Process, replace: Callable[[], Any]) -> None:
        """Clean up after a crashed process, and start another worker in its place."""
        self._setup.crashed += 1
        for started_worker in list(group):
            if started_worker.process is process:
                group.remove(started_worker)
                self._run_in_background(_clean_up(started_worker))
                self._run_in_background(replace())

    def _run_in_background(self, work: Any) -> None:
        task = self.loop.create_task(work, name="command_bus.testing")
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def _start(started_worker: _StartedWorker) -> None:
    await started_worker.bus.open()
    await started_worker.worker.start()


async def _clean_up(started_worker: _StartedWorker) -> None:
    await started_worker.worker.stop(grace=0)
    await started_worker.bus.close()
