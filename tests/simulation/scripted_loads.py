"""Scripted loads that a mixed workload seldom makes, run when the faults are over: they may starve no entity.

A seed in four has one. Its commands are of entities that no other load uses, and have their own plans.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from random import Random
from typing import TYPE_CHECKING, Any

from command_bus import CommandBus, CommandBusError, Envelope
from command_bus.transport.redis.keys import KeySpace
from tests.simulation.history import Sent
from tests.simulation.workload import KINDS, Plan, Weighed

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

__all__ = ["SCRIPTED_LOADS", "ScriptedLoads", "scripted_load_of"]

SLACK = 0.5
"""Seconds for requests on their way, and for a shard that was idle to be looked at again."""
_SHARE = 0.25
_OF_EACH = 60
"""Entities of each tenant that shares."""


def scripted_load_of(seed: int) -> str:
    """Return the name of the seed's scripted load; empty if it has none."""
    random = Random(f"scene {seed}")
    return random.choice(list(SCRIPTED_LOADS)) if random.random() < _SHARE else ""


class ScriptedLoads:
    """Runs scripted loads in a simulation."""

    def __init__(self, simulation: Simulation, bus: CommandBus, random: Random) -> None:
        self._simulation = simulation
        self._bus = bus
        self._random = random
        self._slots = simulation.shape.workers * simulation.settings.concurrency
        self._keys = KeySpace(simulation.settings.namespace, simulation.settings.shards)
        self._counter = 0

    async def play(self, name: str) -> None:
        """Dispatch all commands of a load. The simulation's drain waits for them."""
        self._simulation.history.note("", f"*** the scripted load {name}")
        await SCRIPTED_LOADS[name](self)

    async def hot(self) -> None:
        """Keep as many entities of one shard busy as there are slots; then dispatch to some of another shard."""
        shard = self._random.randrange(self._keys.count)
        step, quantum = 0.3, self._simulation.settings.quantum_time
        names = itertools.islice(self._names("hot", shard), self._slots)
        await self._ask([self._sent(name, Plan(step, "return")) for name in names for _ in range(12)])
        await asyncio.sleep(self._random.uniform(0.2, 0.8))
        cold = itertools.islice(self._names("cold", shard, others=True), 2)
        within = quantum + step + SLACK
        await self._ask([self._sent(name, Plan(0.01, "return"), within=within) for name in cold])

    async def orders(self) -> None:
        """Let more handlers than slots call another entity: their calls must start while they wait."""
        names = itertools.islice(self._names("order", 0), 2 * self._slots)
        await self._ask([self._sent(name, Plan(0.0, "return"), kind="order", within=1 + SLACK) for name in names])

    async def ends(self) -> None:
        """Run handlers that fail, or whose task other code cancels: each is an attempt, and the next starts at once."""
        names = self._names("end", 0)
        first = [Plan(0.01, end) for end in ("fail", "shoot") for _ in range(self._slots // 2)]
        await self._ask([self._sent(next(names), plan, Plan(0.01, "return"), within=SLACK) for plan in first])

    async def threads(self) -> None:
        """Let the thread of a worker hang while others are idle: no command waits for it for long."""
        names = self._names("hang", 0)
        await self._ask([self._sent(next(names), Plan(6.0, "return"), kind="sync")])
        await asyncio.sleep(0.1)
        for _ in range(6):
            await self._ask([self._sent(next(names), Plan(0.02, "return"), kind="sync", within=2 + 2 * SLACK)])
            await asyncio.sleep(self._random.uniform(0.0, 0.2))

    async def shares(self) -> None:
        """Let two tenants with weights of 3 and 1 wait, each with more entities than there are slots."""
        await self._retry(lambda: self._bus.fairness.put("big", weight=3))
        names = [itertools.islice(self._names(tenant, 0), _OF_EACH) for tenant in ("big", "small")]
        batch = [name for pair in zip(*names, strict=True) for name in pair]
        await self._ask([self._sent(name, Plan(0.05, "return"), kind="weighed") for name in batch])

    async def due(self) -> None:
        """Let commands of one entity be due in one millisecond, and send others behind that moment: in some seeds while no worker is up."""
        name, delay = next(self._names("due", 0)), self._random.choice((0.3, 1.0))
        async with AsyncExitStack() as stack:
            if self._random.random() < 0.7:
                await stack.enter_async_context(self._simulation.night())
            for _ in range(2):  # these have ids whose bytes say another order
                await self._ask([self._sent(name, Plan(0.001, "return"), delay=delay) for _ in range(12)])
            await self._ask([self._sent(name, Plan(0.001, "return"))])
            await asyncio.sleep(delay + self._random.choice((0.02, 0.5)))
            for _ in range(3):
                await self._ask([self._sent(name, Plan(0.001, "return")) for _ in range(2)])

    @staticmethod
    async def _retry(ask: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await ask()
            except CommandBusError:
                await asyncio.sleep(0.2)
            else:
                return

    def _names(self, word: str, shard: int, *, others: bool = False) -> Iterator[str]:
        """Return entities of a shard, or of the others (if there are any)."""
        for number in itertools.count():
            name = f"{word}{number}"
            if self._keys.count == 1 or (self._keys.shard_of(f"item:{name}") == shard) is not others:
                yield name

    def _sent(self, entity: str, *plan: Plan, kind: str = "work", within: float = 0.0, delay: float = 0.0) -> Sent:
        self._counter += 1
        how = "delayed" if delay else "batch"
        sent = Sent(f"scene.{self._counter}", entity, kind, how, "scripted", 0.0, plan=plan, within=within, delay=delay)
        self._simulation.history.sent[sent.id] = sent
        return sent

    async def _ask(self, batch: list[Sent]) -> None:
        now = self._simulation.loop.time
        for position, sent in enumerate(batch):
            sent.invoked, sent.position, sent.batch = now(), position, self._counter
        result = await self._bus.dispatch_batch(
            [Envelope(_command(sent), command_id=sent.id, delay=sent.delay) for sent in batch]
        )
        for sent, outcome in zip(batch, result.outcomes, strict=True):
            sent.admissions.append(outcome.status)
            sent.acked = now()


def _command(sent: Sent) -> Any:
    if sent.kind == "weighed":
        return Weighed(item=sent.entity, tag=sent.id, tenant=sent.entity.rstrip("0123456789"))
    return KINDS[sent.kind](item=sent.entity, tag=sent.id)


SCRIPTED_LOADS: dict[str, Callable[[ScriptedLoads], Awaitable[None]]] = {
    "hot": ScriptedLoads.hot,
    "orders": ScriptedLoads.orders,
    "ends": ScriptedLoads.ends,
    "threads": ScriptedLoads.threads,
    "shares": ScriptedLoads.shares,
    "due": ScriptedLoads.due,
}
