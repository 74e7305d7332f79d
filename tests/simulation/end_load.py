"""Ends that an operator brings about while the others work, in some of the seeds: drawn from the table *ends × states*."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from command_bus import CommandBus, CommandBusError

if TYPE_CHECKING:
    from tests.simulation.history import Sent
    from tests.simulation.simulation import Simulation

__all__ = ["BROUGHT_BY", "Ender"]

BROUGHT_BY = {
    "completed": "the plans of handlers",
    "rejected": "the plans of handlers",
    "failed": "the plans of handlers",
    "given_up": "the plans of handlers",
    "interrupted": "kills",
    "expired": "deadlines of dispatches and calls",
    "unhandled": "nobody: all workers have the same handlers",
    "invalid": "nobody: all workers have the same handlers",
    "forged": "nobody: nothing is signed",
    "cancelled": "operator",
    "aborted": "operator",
    "purged": "operator",
    "superseded": "the storm of triggers",
    "discarded": "operator",
    "replayed": "operator",
    "pruned": "nobody: the rules look at the letters in the end",
    "obliterated": "nobody: the rules look at the namespace in the end",
}
"""The part of the simulation that brings about each end."""
_SHARE = 0.5


class Ender:
    """Ends commands of the entities that all load shares. Not beside durable commands, whose calls it would end: a test of those knows why."""

    def __init__(self, simulation: Simulation, bus: CommandBus) -> None:
        self._simulation, self._bus = simulation, bus
        self._random = Random(f"ends {simulation.seed}")
        self._ends = sorted(end for end, who in BROUGHT_BY.items() if who == "operator")

    async def run(self, seconds: float) -> None:
        """Bring some ends about."""
        random, has_journeys = self._random, Random(f"durable {self._simulation.seed}").random() < 0.5
        count = 0 if has_journeys or random.random() >= _SHARE else random.randint(1, 5)
        for _ in range(count):
            await asyncio.sleep(random.random() * 2 * seconds / count)
            end, entity = random.choice(self._ends), random.choice(self._simulation.entities)
            self._simulation.history.note(entity, f"operator: {end}")
            try:
                await getattr(self, f"_{end}")(entity)
            except CommandBusError as error:
                self._simulation.history.note(entity, f"operator: {end}: {error}")

    def _sent_to(self, entity: str) -> list[Sent]:
        return [sent for sent in self._simulation.history.sent.values() if sent.entity == entity]

    async def _purged(self, entity: str) -> None:
        began = self._simulation.loop.time()
        try:
            await self._bus.entity("item", entity).purge()
        finally:
            self._simulation.history.purges.append((entity, began, self._simulation.loop.time()))
            for sent in self._sent_to(entity):
                sent.cancelled = True

    async def _aborted(self, entity: str) -> None:
        began = self._simulation.loop.time()
        try:
            await self._bus.entity("item", entity).abort("as drawn", wait=1.0)
        finally:
            self._simulation.history.aborts.append((entity, began, self._simulation.loop.time()))

    async def _cancelled(self, entity: str) -> None:
        began, given = self._simulation.loop.time(), [sent for sent in self._sent_to(entity) if sent.how in ("call", "batch")]
        if not given:
            return
        sent = self._random.choice(given[-6:])
        sent.cancelled = True
        try:
            await self._bus.cancel(sent.id, running=True, wait=2.0)
        finally:
            self._simulation.history.aborts.append((entity, began, self._simulation.loop.time()))

    async def _discarded(self, entity: str) -> None:
        await self._decide(entity, replay=False)

    async def _replayed(self, entity: str) -> None:
        await self._decide(entity, replay=True)

    async def _decide(self, entity: str, *, replay: bool) -> None:
        """Replay or discard what parks an entity."""
        async for letter in self._bus.dead_letters.list():
            sent = self._simulation.history.sent.get((letter.payload or {}).get("tag", ""))
            if sent is None or not letter.parked or letter.entity_id != entity:
                continue
            if replay:
                sent.replays += 1
                await self._bus.dead_letters.replay(letter.id)
            else:
                sent.discarded = True
                await self._bus.dead_letters.discard(letter.id)
            return
