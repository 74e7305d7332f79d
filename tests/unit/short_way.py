"""The worker's way from a delivery to a step, without a server: lone commands that were started with their delivery, and others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from command_bus import Command, EntityId, HandlerRegistry, RetryPolicy
from command_bus.serialization.envelope import WireEnvelope, pack_envelope
from command_bus.settings import BusSettings
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.memory import MemoryClients
from command_bus.transport.redis.worker.consumer import ConsumerLoop, Delivery
from command_bus.transport.redis.worker.lease_keeper import LeaseKeeper
from command_bus.transport.redis.worker.step_batcher import KnownLimits, LineUse
from command_bus.transport.slots import Slots
from command_bus.transport.steps import Answer, Lease, Released, Started, Step, Take
from command_bus.worker.decisions import Decisions
from command_bus.worker.entity_run import EntityRun, WorkerState
from command_bus.worker.executor import Executor
from command_bus.worker.runnable import CommandContexts
from command_bus.worker.threads import HandlerThreads

__all__ = ["Do", "Way", "started", "turns", "way"]


class Do(Command[Any], entity="box", retry=RetryPolicy(attempts=1)):
    box: EntityId


def started(box: str) -> Started:
    """Return the start of a command."""
    payload = b"\x81\xa3box" + bytes([0xA0 + len(box)]) + box.encode()
    return Started(
        "7", "1-0", 1, 1, 1, pack_envelope(WireEnvelope(f"c-{box}", "Do", "box", box, payload, inbox="i")), is_first=True
    )


async def turns(number: int) -> None:
    """Wait for so many turns of the event loop."""
    for _ in range(number):
        await asyncio.sleep(0)


@dataclass
class Answering:
    """Keeps the steps that settle commands, and answers each in the next turn."""

    steps: dict[str, Step] = field(default_factory=dict[str, Step])
    answers: dict[str, list[Answer]] = field(default_factory=dict[str, list[Answer]])
    is_away: bool = False

    def behind(self, lease: Lease, message: str, count: int) -> asyncio.Future[list[tuple[str, bytes]]]:
        raise AssertionError(lease, message, count)

    def advance(self, lease: Lease, step: Step) -> asyncio.Future[Answer]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        box = lease.mailbox.partition(":")[2]
        if type(step) is Take:
            answer.set_result(started(box))
            return answer
        self.steps[box] = step
        if not self.is_away:
            result = self.answers[box].pop(0) if self.answers.get(box) else Released("idle")
            loop.call_soon(_set, answer, result)
        return answer


def _set(answer: asyncio.Future[Answer], result: Answer) -> None:
    if not answer.done():
        answer.set_result(result)


class Way:
    """A worker's parts, fed by hand.

    Attributes:
        takes: Whether what is begun at once was not started with its delivery, but is taken.

    Args:
        handler: Handles `Do`.
        shards: How many there are.
    """

    takes = False

    def __init__(self, handler: Callable[[Do], Any], shards: int = 1) -> None:
        registry, settings, keys = HandlerRegistry(), BusSettings(url="redis://none"), KeySpace("n", shards)
        registry.handles(Do)(handler)
        bus: Any = SimpleNamespace(middleware=(), session=SimpleNamespace(transport=None, protection=None), settings=settings)
        self.slots, self.steps, self.state = Slots(100, shards), Answering(), WorkerState()
        decisions, none = Decisions(registry.lookup, settings, worker="w"), cast("Any", None)
        executor = Executor(
            bus, decisions, HandlerThreads(1), self.slots, "w", 1.0, lambda: True, none, none, CommandContexts(), none
        )
        side: Any = SimpleNamespace(slots=self.slots, over=lambda *_, **__: None)
        runs = EntityRun(side, self.steps, executor.begin, settings, self.state, none)
        leases = LeaseKeeper(Connections(MemoryClients()), keys, worker="w", lease=30.0, heartbeat=lambda _: b"")
        limits = KnownLimits(keys.shards[0])
        self.consumer = ConsumerLoop(
            none, keys, "w", self.slots, leases, self.steps, LineUse(), limits, runs.run, runs.begin, lambda _: None, none
        )
        self._take = self.consumer.take
        self._number = 0

    def _in_a_task(self, lease: Lease) -> None:
        self.consumer.run_in_task(lease, self.consumer.run)

    async def arrive(self, *boxes: str, short: bool = True, shard: int = 0) -> None:
        """Deliver a command to each of these boxes, at once: started with the delivery, or not."""
        self.consumer.take = self._take if short else self._in_a_task  # type: ignore[method-assign]
        ask = await self.slots.ask(shard, len(boxes))
        deliveries: list[Delivery] = []
        for box in boxes:
            self._number += 1
            begun = started(box) if short and not self.takes else None
            deliveries.append(Delivery(f"{self._number}-0", f"box:{box}", f"w#f{self._number}", "7|1-0", begun))
        self.consumer.arrived(shard, ask, deliveries, None)
        if short and self.takes:
            await asyncio.sleep(0)  # the takes are answered

    async def idle(self) -> None:
        """Wait until nothing is held."""
        async with asyncio.timeout(5):
            while len(self.consumer.leases) or self.consumer.running:
                await asyncio.sleep(0.001)

    @property
    def parked(self) -> Any:
        """The task that waits for lone commands, if there is one."""
        return self.consumer._parked


@asynccontextmanager
async def way(handler: Callable[[Do], Any], shards: int = 1) -> AsyncIterator[Way]:
    """Yield a way on which a lone command is begun at once. At the end nothing may be held, or wait."""
    before = asyncio.all_tasks()
    found = Way(handler, shards)
    await found.arrive("warm")  # makes the parked task
    await found.idle()
    found.steps.steps.clear()
    yield found
    await found.idle()
    found.consumer.cancel()
    await turns(5)
    assert found.slots.running == 0
    assert not {task for task in asyncio.all_tasks() - before if task.get_name().startswith("command_bus.")}
