"""The declarations of code, under a worker that lives on where its server comes back without its data."""

from __future__ import annotations

from typing import Any

from command_bus import Command, EntityId, EntityPolicy, Limit, Rate, every
from command_bus.clock import mono
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until


class Sync(Command[None], entity="shop"):
    shop: EntityId


class Tick(Command[None], entity="clock"):
    clock: EntityId


async def test_limits_and_schedules_are_declared_again(sandbox: Sandbox) -> None:
    starts: list[float] = []
    ticks: list[float] = []

    @sandbox.registry.handles(Sync)
    async def sync(command: Sync) -> None:
        starts.append(mono())

    @sandbox.registry.handles(Tick)
    async def tick(command: Tick) -> None:
        ticks.append(mono())

    sandbox.registry.schedule("ticks", Tick(clock="c"), every(0.2))
    limits = {"shop": EntityPolicy(limits=(Limit(rate=Rate(4, burst=1), scope="type"),))}
    async with sandbox.bus(entities=limits, lease=1.5) as bus, bus.worker(), bus.worker():
        await until(lambda: len(ticks) > 1)
        client: Any = sandbox.client()
        await client.flushdb()
        await client.aclose()
        ticks.clear()

        async def is_declared() -> bool:
            return bool(await bus.limits.list()) and len(ticks) > 2

        await until(is_declared)
        assert [each.name async for each in bus.schedules.list()] == ["ticks"]
        await bus.dispatch_batch(Sync(shop=f"s{number}") for number in range(5))
        await until(lambda: len(starts) == 5)
    assert starts[-1] - starts[0] > 0.9, "the rate holds"
