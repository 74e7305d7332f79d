"""The consumer: what it runs, and what it hands back."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.memory import MemoryClients
from command_bus.transport.redis.worker.consumer import ConsumerLoop, Delivery
from command_bus.transport.redis.worker.lease_keeper import LeaseKeeper
from command_bus.transport.redis.worker.step_batcher import KnownLimits, LineUse
from command_bus.transport.slots import Slots
from command_bus.transport.steps import TAKE, Answer, GiveBack, Lease, Released, Step, StepFailed


class NoServer:
    """Receives steps, and never answers."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, Step]] = []
        self.answers: dict[str, asyncio.Future[Answer]] = {}

    def behind(self, lease: Lease, message: str, count: int) -> asyncio.Future[list[tuple[str, bytes]]]:
        raise AssertionError(lease, message, count)

    def advance(self, lease: Lease, step: Step) -> asyncio.Future[Answer]:
        self.steps.append((lease.mailbox, step))
        return self.answers.setdefault(lease.mailbox, asyncio.get_running_loop().create_future())


async def test_what_is_handed_back_does_not_run() -> None:
    steps, release, keys = NoServer(), asyncio.Event(), KeySpace("n", 1)

    async def run(lease: Lease, asked: Any = None) -> None:
        await release.wait()

    async def settle(shard: int, activations: list[tuple[str, str]]) -> None: ...

    slots = Slots(1, 1, 0, is_stuck=lambda: False)
    consumer = ConsumerLoop(
        cast("Any", None),
        keys,
        worker="w",
        slots=slots,
        leases=LeaseKeeper(Connections(MemoryClients()), keys, worker="w", lease=30.0, heartbeat=lambda _: b""),
        steps=steps,
        line=LineUse(),
        limits=KnownLimits(keys.shards[0]),
        run=run,
        begin=lambda lease, task, over: run,
        wake=lambda _: None,
        settle=settle,
    )
    ask = await slots.ask(0, 1)
    consumer.arrived(0, ask, [Delivery("1-0", "box:a", has_place=True), Delivery("2-0", "box:b")], None)
    assert list(consumer.running.values()) == ["box:a"]
    assert [lease.has_place for lease in consumer.leases.of_shard(0)] == [True]
    assert steps.steps == [("box:a", TAKE), ("box:b", GiveBack(counts=False))], "it is asked for at once"
    steps.answers["box:a"].set_result(StepFailed("it is no stream"))
    await asyncio.sleep(0)
    (task,) = consumer.running
    assert isinstance(task, asyncio.Task), "it waits until that is repaired"
    release.set()
    await task
    await asyncio.sleep(0)
    assert not consumer.running
    steps.answers["box:b"].set_result(Released("yield"))
    await asyncio.sleep(0)
