"""Commands of several entities in the simulator, in some seeds: few entities, so that their lines cross, with pauses, cancels and purges."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from command_bus import Command, CommandBus, CommandBusError, CommandContext, EntityId, RetryPolicy
from tests.simulation.ties import Tie, TieRun
from tests.simulation.workload import REGISTRY, current

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

__all__ = ["SeveralLoad"]

_PART, _KNOTS = 0.3, 4
_PATIENT: Any = RetryPolicy(attempts=500, delay=0.15, jitter=0.3)


class Knot(Command[None], entity="knot", retry=_PATIENT):
    knot: EntityId
    tag: str


class Pair(Command[None], entity="knot", retry=_PATIENT):
    knot: EntityId
    second: EntityId
    tag: str


class Stopping(Command[None], entity="knot", retry=RetryPolicy(attempts=2, delay=0.1), on_poison="park"):
    knot: EntityId
    second: EntityId
    tag: str


class Four(Command[None], entity="knot", retry=_PATIENT):
    knot: EntityId
    second: EntityId
    third: EntityId
    fourth: EntityId
    tag: str


def entities_of(command: Any) -> tuple[str, ...]:
    """Return the entities of a command, the home first."""
    return (str(command.knot), *(each for _, each in command.entity_ids()))


async def _handle(command: Any, context: CommandContext) -> None:
    """Record a run, which fails or lasts as drawn from the seed."""
    simulation = current[-1]
    run = TieRun(command.tag, entities_of(command), context.fence)
    simulation.history.ties.runs.append(run)
    random = Random(f"{simulation.seed} {command.tag} {context.attempt} {context.fence}")
    await asyncio.sleep(random.choice((0.0, 0.0, 0.01, 0.2)))
    if random.random() < (0.5 if isinstance(command, Stopping) else 0.15):
        run.how = "failed"
        raise RuntimeError("as planned")
    run.how = "returned"


@REGISTRY.handles(Knot)
async def knot(command: Knot, context: CommandContext) -> None:
    await _handle(command, context)


@REGISTRY.handles(Pair)
async def pair(command: Pair, context: CommandContext) -> None:
    await _handle(command, context)


@REGISTRY.handles(Stopping)
async def parking(command: Stopping, context: CommandContext) -> None:
    await _handle(command, context)


@REGISTRY.handles(Four)
async def four(command: Four, context: CommandContext) -> None:
    await _handle(command, context)


class SeveralLoad:
    """Sends for one process, or operates."""

    def __init__(self, simulation: Simulation, bus: CommandBus, name: str) -> None:
        self._simulation, self._bus, self._name = simulation, bus, name
        self._random = Random(f"several {name} {simulation.seed}")
        self._takes_part = Random(f"several {simulation.seed}").random() < _PART

    async def run(self, seconds: float) -> None:
        if not self._takes_part:
            return
        await asyncio.gather(*(self._send(number, seconds) for number in range(14)))

    async def operate(self, seconds: float) -> None:
        """Pause, cancel and purge, for a process that is not killed."""
        if self._takes_part:
            await asyncio.gather(self._pause(seconds), self._remove(seconds))

    def _command(self, tag: str) -> Any:
        ids = [f"k/{self._random.randrange(_KNOTS)}" for _ in range(4)]
        kind = self._random.choice((Knot, Pair, Pair, Pair, Stopping, Four))
        names = [name for name in kind.model_fields if name != "tag"]
        return kind(**dict(zip(names, ids, strict=False)), tag=tag)

    async def _send(self, number: int, seconds: float) -> None:
        await asyncio.sleep(self._random.random() * seconds)
        command, now = self._command(f"{self._name}.k{number}"), self._simulation.loop.time
        tie = Tie(command.tag, entities_of(command), now())
        delay = self._random.choice((0.0, 0.0, 0.0, 0.0, 0.5))
        if delay:  # by the server's clock, which may jump: it has no place in the order of acceptance
            tie.invoked = 0.0
        self._simulation.history.ties.sent[tie.tag] = tie
        priority: Any = self._random.choice((None, None, "high", "low")) if self._simulation.line else None
        for _ in range(4):
            try:
                await self._bus.dispatch(command, command_id=tie.tag, delay=delay, priority=priority)
            except CommandBusError:
                await asyncio.sleep(0.1)
            else:
                tie.acked = None if delay else now()
                return

    async def _pause(self, seconds: float) -> None:
        for _ in range(2):
            await asyncio.sleep(self._random.random() * seconds / 4)
            scope = self._bus.entity("knot", f"k/{self._random.randrange(_KNOTS)}")
            await self._until_answered(partial(scope.pause, "a look"))
            await asyncio.sleep(self._random.random() * seconds / 4)
            await self._until_answered(scope.resume)

    async def _remove(self, seconds: float) -> None:
        """Cancel a few, and in some seeds purge a line; what may have been removed is noted before."""
        ties = self._simulation.history.ties.sent
        for number in range(3):
            await asyncio.sleep(self._random.random() * seconds / 3)
            tag = f"p{1 + number % 2}.k{self._random.randrange(14)}"
            if tag in ties:
                ties[tag].discarded = True
                await self._until_answered(partial(self._bus.commands.cancel, tag))
        if self._random.random() < 0.3:
            knot = f"k/{self._random.randrange(_KNOTS)}"
            for tie in ties.values():
                tie.discarded |= knot in tie.entities
            await self._until_answered(self._bus.entity("knot", knot).purge)
            for tie in ties.values():
                tie.discarded |= knot in tie.entities

    @staticmethod
    async def _until_answered(request: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await request()
                return
            except CommandBusError:
                await asyncio.sleep(0.2)
