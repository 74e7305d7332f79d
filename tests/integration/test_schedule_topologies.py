"""Schedules with `durability="replicated"`, and a primary that fails in the middle of a firing."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from command_bus import Command, CommandBus, CommandContext, EntityId, HandlerRegistry, every
from command_bus.scheduling.firing import ScheduleFiring
from command_bus.scheduling.planning import plan
from command_bus.scheduling.record import ScheduleRecord
from command_bus.transport.ports.schedules import FireAnswer, Firing
from command_bus.transport.redis.scheduling.store import RedisSchedules
from tests.conformance.put_service import until
from tests.topologies import SentinelServers

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not (shutil.which("redis-server") and shutil.which("redis-cli")), reason="no redis-server on PATH"),
]


class Tick(Command[None], entity="ticker"):
    ticker: EntityId


@pytest.mark.promise("Fired ticks survive a failover")
@pytest.mark.slow
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


@pytest.mark.promise("Fired ticks survive a failover")
@pytest.mark.slow
async def test_a_put_beside_a_firing_that_no_replica_has_waits_for_replicas_or_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that starts puts what it declares. It moves no schedule on whose firing a failover may still take."""
    servers = SentinelServers(tmp_path)
    try:
        servers.start()
        async with CommandBus(
            servers.url, namespace="ticks", registry=HandlerRegistry(), durability="replicated", wait_replicas=2,
            wait_timeout=0.5, dispatch_timeout=30.0,
        ) as bus:  # fmt: skip
            firing, store = bus.schedules.firing, bus.session.transport.schedules
            await bus.schedules.put("tick", Tick(ticker="a"), every(86_400))
            await bus.schedules.trigger("tick")
            await bus.dispatch(Tick(ticker="b"))
            primary = servers.primary()
            victims = [node for node in servers.nodes if node is not primary]
            for node in victims:
                node.kill()
            record, raw = await firing.found("tick")
            pinned = None if record is None else plan(record, 0)
            assert pinned is not None
            assert await firing.change(pinned, raw)
            assert await firing.complete([pinned], 0) == set()
            assert await store.bar("tick", await _mailbox(firing, pinned), pinned.incarnation, pinned.seq) is None
            await bus.schedules.put("tick", Tick(ticker="a"), every(86_400))  # the same: it waits for nobody
            assert (await firing.found("tick"))[0] == pinned
            bar, asked = RedisSchedules.bar, list[bool | None]()

            async def noted(self: RedisSchedules, *of: Any) -> bool | None:
                asked.append(await bar(self, *of))
                return asked[-1]

            monkeypatch.setattr(RedisSchedules, "bar", noted)
            put = asyncio.create_task(bus.schedules.put("tick", Tick(ticker="a"), every(43_200)))
            await until(lambda: len(asked) >= 3)
            assert (await firing.found("tick"))[0] == pinned, "it is not moved on"
            for node in victims:
                node.start()
            await put
            assert set(asked[:3]) == {None}
            record, _ = await firing.found("tick")
            assert record is not None
            assert (record.pinned, record.fired, record.spec) == (0, 1, every(43_200))
    finally:
        servers.stop()


async def _mailbox(firing: ScheduleFiring, record: ScheduleRecord) -> str:
    return await firing.templates.mailbox(firing.templates.read(record), record.pinned_id)
