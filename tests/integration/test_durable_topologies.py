"""Durable handlers with `durability="replicated"`, and primaries that fail: what was acknowledged is there behind them."""

from __future__ import annotations

import asyncio
import shutil
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from command_bus import Command, CommandBus, DurableContext, EntityId, HandlerRegistry, RetryPolicy, Unconfirmed
from tests.topologies import ClusterServers, SentinelServers

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not (shutil.which("redis-server") and shutil.which("redis-cli")), reason="no redis-server on PATH"),
]

Often = RetryPolicy(attempts=100, delay=0.01)


class Order(Command[str], entity="order", durable=True, retry=Often):
    order: EntityId


class Reserve(Command[str], entity="sku", retry=Often):
    sku: EntityId
    order: str


class Thank(Command[None], entity="customer", retry=Often):
    customer: EntityId
    order: str


class Orders:
    """Durable orders with steps, a call and a follow-up, that go on while something happens to the servers."""

    def __init__(self, url: str, namespace: str, shards: int, replicas: int) -> None:
        registry = HandlerRegistry()
        self.happened: dict[tuple[str, str], list[str]] = defaultdict(
            list
        )  # by order and step: what the step did, and what the handler got
        self.thanked: set[str] = set()
        self.bus = CommandBus(
            url, namespace=namespace, registry=registry, shards=shards, lease=4.0, dispatch_timeout=60.0,
            durability="replicated", wait_replicas=replicas,
        )  # fmt: skip
        self._number = 0

        @registry.handles(Order)
        async def order(command: Order, context: DurableContext) -> str:
            name = str(command.order)
            await self._step(context, name, "charge")
            self._got(name, "reserve", await context.call(Reserve(sku=f"s{int(name) % 16}", order=name)))
            context.send(Thank(customer=f"c{int(name) % 16}", order=name))
            await self._step(context, name, "pack")
            return name

        @registry.handles(Reserve)
        async def reserve(command: Reserve) -> str:
            return f"{command.sku} of {command.order}"

        @registry.handles(Thank)
        async def thank(command: Thank) -> None:
            self.thanked.add(command.order)

    async def _step(self, context: DurableContext, order: str, step: str) -> None:
        async def effect() -> str:
            self.happened[order, step].append("does")
            return f"{step} {len(self.happened[order, step])}"

        self._got(order, step, await context.step(step, effect))

    def _got(self, order: str, step: str, value: str) -> None:
        self.happened[order, step].append(value)

    async def survive(self, event: Callable[[], object]) -> None:
        """Send orders while this happens, then see what became of them."""
        over = asyncio.Event()
        async with self.bus, self.bus.worker():
            sending = asyncio.create_task(self._send_until(over))
            await asyncio.sleep(0.5)
            await asyncio.to_thread(event)
            over.set()
            await sending
            await self.bus.wait_idle(90)
            stats = await self.bus.stats()
        assert (stats.depth, stats.in_flight, stats.dead_letters, stats.suspended) == (0, 0, 0, 0)
        assert self.thanked == {str(number) for number in range(self._number)}
        for what, seen in self.happened.items():
            got = next((index for index, each in enumerate(seen) if each != "does"), None)
            assert got is not None, f"{what} was lost"
            assert set(seen[got:]) == {seen[got]}, f"{what} had a result, and was done again or has another: {seen}"

    async def _send_until(self, over: asyncio.Event) -> None:
        while not over.is_set():
            for _ in range(8):
                await self._send(Order(order=str(self._number)))
            await asyncio.sleep(0.05)

    async def _send(self, order: Order) -> None:
        while True:
            with suppress(Unconfirmed):
                await self.bus.dispatch(order, command_id=f"o-{order.order}")
                self._number += 1
                return


@pytest.mark.promise("Acknowledged steps survive a failover")
@pytest.mark.slow
async def test_durable_orders_survive_a_failover_of_sentinel(sentinel: SentinelServers) -> None:
    def killed() -> None:
        sentinel.failed_over(sentinel.kill_primary())
        sentinel.revive()

    await Orders(sentinel.url, "durable-sentinel", 2, replicas=2).survive(killed)  # all: a failover may choose either


@pytest.mark.promise("Acknowledged steps survive a failover")
async def test_durable_orders_survive_a_failover_in_a_cluster(cluster: ClusterServers) -> None:
    """Each order, what it calls and what it sends are in other shards, of other primaries."""

    def killed() -> None:
        cluster.failed_over(cluster.kill_primary("{durable-cluster:0}:ready"))
        cluster.revive()

    await Orders(cluster.url, "durable-cluster", 6, replicas=1).survive(killed)


@pytest.mark.promise("Acknowledged steps survive a failover")
@pytest.mark.slow
async def test_a_step_or_signal_that_no_replica_has_is_not_acknowledged(tmp_path: Path) -> None:
    """Replicas are away; then the primary fails, and a replica that knows nothing of it takes over."""
    registry, began, go_on = HandlerRegistry(), asyncio.Event(), asyncio.Event()
    does: list[str] = []
    got: list[str] = []

    async def effect(name: str) -> str:
        does.append(name)
        return name.upper()

    @registry.handles(Order)
    async def order(command: Order, context: DurableContext) -> str:
        got.append(await context.step("early", effect, "early"))
        began.set()
        await go_on.wait()
        got.append(await context.step("late", effect, "late"))
        return str(await context.signal("go"))

    servers = SentinelServers(tmp_path)
    try:
        servers.start()
        async with CommandBus(
            servers.url, namespace="few", registry=registry, durability="replicated", wait_replicas=2, wait_timeout=0.2,
            dispatch_timeout=1.0, lease=60.0,
        ) as bus, bus.worker():  # fmt: skip
            await bus.dispatch(Order(order="1"), command_id="o-1")
            await asyncio.wait_for(began.wait(), 30)
            primary = servers.primary()
            others = [node for node in servers.nodes if node is not primary]
            for node in others:
                node.kill()
            go_on.set()
            with pytest.raises(Unconfirmed, match="too few replicas confirmed it"):
                await bus.commands.signal("o-1", "go", "lost")
            assert (does, got) == (["early", "late"], ["EARLY"])
            primary.kill()
            for node in others:
                node.start()
            await asyncio.to_thread(servers.failed_over, primary)
            await asyncio.to_thread(servers.revive)
            while True:
                with suppress(Unconfirmed):
                    assert await bus.commands.signal("o-1", "go", "kept", signal_id="once")
                    break
            assert await bus.result("o-1", Order, timeout=60) == "kept"
        assert set(got) == {"EARLY", "LATE"}
        assert does.count("early") == 1
    finally:
        servers.stop()
