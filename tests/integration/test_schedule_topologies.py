"""Schedules with `durability="replicated"`, and a primary that fails in the middle of a firing."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from command_bus import Command, CommandBus, CommandContext, EntityId, HandlerRegistry, every
from command_bus.transport.redis.scheduling.store import RedisSchedules
from command_bus.transport.schedule_interfaces import FireAnswer, Firing
from tests.topologies import SentinelServers

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not (shutil.which("redis-server") and shutil.which("redis-cli")), reason="no redis-server on PATH"),
]


class Tick(Command[None], entity="ticker"):
    ticker: EntityId


async def test_a_firing_that_no_replica_has_is_fired_again_after_a_failover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker moves the schedule on behind the failover, where nobody knows of the firing."""
    registry, ran, answered = HandlerRegistry(), list[str](), list[list[FireAnswer]]()
    servers, fire = SentinelServers(tmp_path), RedisSchedules.fire

    async def failing_over(self: RedisSchedules, firings: Sequence[Firing]) -> list[FireAnswer]:
        if answered:
            answered.append(await fire(self, firings))
            return answered[-1]
        primary = servers.primary()
        others = [node for node in servers.nodes if node is not primary]
        for node in others:
            node.kill()
        answered.append(await fire(self, firings))
        primary.kill()
        for node in others:
            node.start()
        await asyncio.to_thread(servers.failed_over, primary)
        await asyncio.to_thread(servers.revive)
        return answered[0]

    monkeypatch.setattr(RedisSchedules, "fire", failing_over)

    @registry.handles(Tick)
    async def tick(command: Tick, context: CommandContext) -> None:
        ran.append(context.command_id)

    try:
        servers.start()
        async with CommandBus(
            servers.url, namespace="ticks", registry=registry, durability="replicated", wait_replicas=2, wait_timeout=0.5,
            dispatch_timeout=60.0, lease=5.0,
        ) as bus:  # fmt: skip
            await bus.schedules.put("tick", Tick(ticker="a"), every(86_400))
            await bus.schedules.trigger("tick")
            await bus.dispatch(Tick(ticker="b"))  # replicas confirm it, and all before it
            async with bus.worker():
                async with asyncio.timeout(90):
                    while len(ran) < 2:
                        await asyncio.sleep(0.1)
                await bus.wait_idle(30)
            stats = await bus.stats()
    finally:
        servers.stop()
    assert answered[0] == ["?"]
    assert answered[-1] in (["+"], ["="])
    assert len(set(ran)) == len(ran) == 2
    assert stats.fired == 1
