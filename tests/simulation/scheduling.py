"""Schedules in the simulation: they are put, changed, paused, triggered and removed while workers die and clocks jump."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from command_bus import Command, CommandBus, CommandBusError, CommandContext, EntityId, RetryPolicy, UnknownSchedule, every
from command_bus.errors import TransportUnavailable
from tests.simulation.workload import REGISTRY, current

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

__all__ = ["Scheduler", "Ticked"]


class Ticked(NamedTuple):
    """A handler's start for a firing."""

    schedule: str
    id: str
    attempt: int
    at: float
    """When it started."""


class Tick(Command[None], entity="tick", retry=RetryPolicy(attempts=20, delay=0.05)):
    line: EntityId


@REGISTRY.handles(Tick)
async def tick(command: Tick, context: CommandContext) -> None:
    simulation = current[-1]
    ticked = Ticked(str(command.line), context.command_id, context.attempt, simulation.loop.time())
    simulation.history.ticked.append(ticked)


class Scheduler:
    """Puts two schedules, changes them, and removes them in the end; afterwards nothing of them may fire."""

    def __init__(self, simulation: Simulation, bus: CommandBus, random: Random) -> None:
        self._simulation = simulation
        self._bus = bus
        self._random = random

    async def run(self, seconds: float) -> None:
        names = ["s1", "s2"]
        for name in names:
            await self._retry(self._put, name)
        for _ in range(self._random.randint(0, 4)):
            await asyncio.sleep(self._random.random() * seconds / 3)
            name = self._random.choice(names)
            act = self._random.choice((self._put, self._pause, self._trigger))
            await self._retry(act, name)
        await asyncio.sleep(self._random.random() * seconds / 3)
        for name in names:
            await self._retry(self._remove, name)
        self._simulation.history.fired_then = self._simulation.fired()

    async def _put(self, name: str) -> None:
        missed: Any = self._random.choice(("one", "all", "skip"))
        await self._bus.schedules.put(name, Tick(line=name), every(self._random.choice((0.3, 1.0, 3.0))), missed=missed)

    async def _pause(self, name: str) -> None:
        await self._bus.schedules.pause(name)
        await asyncio.sleep(self._random.choice((0.2, 1.0)))
        await self._retry(self._resume, name)

    async def _resume(self, name: str) -> None:
        await self._bus.schedules.resume(name)

    async def _trigger(self, name: str) -> None:
        await self._bus.schedules.trigger(name)

    async def _remove(self, name: str) -> None:
        with suppress(UnknownSchedule):  # an answer was lost
            await self._bus.schedules.remove(name)

    async def _retry(self, act: Any, name: str) -> None:
        while True:
            try:
                await act(name)
                return
            except TransportUnavailable:
                await asyncio.sleep(0.2)
            except CommandBusError as error:
                self._simulation.history.note("", f"scheduler: {act.__name__} {name}: {error}")
                return
