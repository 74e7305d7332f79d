"""The workers of a test bus on one event loop."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from command_bus.bus import CommandBus
from command_bus.handlers.registry import HandlerRegistry
from command_bus.testing.crashes import Crash, Crashing
from command_bus.testing.records import Recorder
from command_bus.testing.simulated.live import PROCESS, LiveServer, Process
from command_bus.transport.redis.keys import KeySpace
from command_bus.worker.worker import Worker

__all__ = ["Script", "Stage"]


@dataclass(slots=True)
class Script:
    """What is played: whose handlers, and which crashes.

    Attributes:
        server: In memory.
        recorder: Takes the notes.
        crashes: What is planned.
        crashed: Workers that died.
        workers: How many work at a time, per namespace.
    """

    server: LiveServer
    recorder: Recorder
    crashes: list[Crash]
    workers: int
    crashed: int = 0


@dataclass(slots=True)
class _Member:
    """A worker and its process."""

    bus: CommandBus
    worker: Worker
    process: Process


class Stage:
    """Starts, replaces and ends the workers on the running loop.

    Args:
        script: Common to all loops.
    """

    def __init__(self, script: Script) -> None:
        self.loop = asyncio.get_running_loop()
        self.stays = False
        """Whether the test itself runs on this loop, and not an application only."""
        self._script = script
        self._casts: dict[str, list[_Member]] = {}
        self._ending: set[asyncio.Task[Any]] = set()
        self._starting = asyncio.Lock()

    @property
    def buses(self) -> list[CommandBus]:
        """Of one worker per namespace."""
        return [cast[0].bus for cast in self._casts.values() if cast]

    async def start(self, plan: CommandBus, handlers: HandlerRegistry, layers: Sequence[Any]) -> None:
        """Have the workers of a bus's namespace run; idempotent."""
        async with self._starting:
            cast = self._casts.setdefault(plan.settings.namespace, [])
            while len(cast) < self._script.workers:
                await self._add(cast, plan, handlers, layers)

    async def close(self) -> None:
        """Stop what lives, see the end of what was killed."""
        casts, self._casts = self._casts, {}
        for cast in casts.values():
            for member in cast:
                await member.worker.stop()
                await member.bus.close()
        if self._ending:
            await asyncio.wait(self._ending)

    async def _add(self, cast: list[_Member], plan: CommandBus, handlers: HandlerRegistry, layers: Sequence[Any]) -> None:
        script = self._script
        process = Process(script.server, works=True)
        keys = KeySpace(plan.settings.namespace, plan.settings.shards)

        def killed() -> None:
            self._killed(cast, process, lambda: self.start(plan, handlers, layers))

        crashing = Crashing(script.recorder, script.crashes, process, keys, killed)
        bus = CommandBus(
            settings=plan.settings,
            registry=handlers,
            middleware=(crashing, *layers),
            lifespan=plan.lifespan,
            cipher=plan.cipher,
            clients=process,
        )
        member = _Member(bus, bus.worker(), process)
        surroundings = contextvars.copy_context()
        surroundings.run(PROCESS.set, process)
        await self.loop.create_task(_begin(member), name="command_bus.testing", context=surroundings)
        cast.append(member)

    def _killed(self, cast: list[_Member], process: Process, replace: Callable[[], Any]) -> None:
        """A process has died: clear away what is left of it here, and put another in its place."""
        self._script.crashed += 1
        for member in list(cast):
            if member.process is process:
                cast.remove(member)
                self._later(_bury(member))
                self._later(replace())

    def _later(self, work: Any) -> None:
        task = self.loop.create_task(work, name="command_bus.testing")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


async def _begin(member: _Member) -> None:
    await member.bus.open()
    await member.worker.start()


async def _bury(member: _Member) -> None:
    await member.worker.stop(grace=0)
    await member.bus.close()
