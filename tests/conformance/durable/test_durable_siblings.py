"""Operations that a durable handler has in flight beside one another, in tasks of its own or in `context.all`: none is left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import CommandCancelled, DurableContext
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Flow, Reserve, Shop
from tests.conformance.put_service import until


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


async def test_it_is_not_suspended_while_a_step_runs_beside_the_wait(sandbox: Sandbox, shop: Shop) -> None:
    """Suspended, the function would run again beside itself. Once the step is stored nothing keeps the command from that."""
    seen: list[bool] = []

    async def slow() -> str:
        for _ in range(10):
            seen.append(await shop.is_suspended())
            await asyncio.sleep(0.02)
        return await shop.effect("slow")

    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        step = asyncio.create_task(context.step("slow", slow))
        await context.signal("go")
        return await step

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="o-1")
        await shop.suspended()
        assert shop.count("slow") == 1
        await bus.commands.signal("o-1", "go")
        assert await bus.result("o-1", Flow, timeout=20) == "SLOW"
    assert seen == [False] * 10
    assert (shop.count("slow"), shop.count("run")) == (1, 2)


@pytest.mark.parametrize("begun", [False, True], ids=["none has begun", "one has begun"])
@pytest.mark.parametrize("shards", [1, 4])
async def test_a_cancellation_gives_up_all_that_is_waited_for(sandbox: Sandbox, shop: Shop, shards: int, begun: bool) -> None:
    """What has not started is taken out of line, what has is waited for, and only then the command ends."""
    skus = [f"s-{n}" for n in range(4)]
    shop.gates["s-1"] = asyncio.Event()

    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        calls = [context.call(Reserve(sku=sku)) for sku in skus]
        await context.all(*calls, context.signal("packed"), context.sleep(3600))

    async with sandbox.bus(shards=shards) as bus:
        for sku in skus:
            if sku != "s-1" or not begun:
                await bus.entity("stock", sku).pause("stocktaking")
        async with bus.worker():
            await bus.dispatch(Flow(order="o-1"), command_id="o-1")
            await shop.suspended()
            if begun:
                await until(lambda: shop.count(("reserve", "s-1")))
            assert await bus.commands.cancel("o-1", running=True, reason="not wanted")
            if begun:
                await until(lambda: shop.count("run") > 1)
                await shop.suspended()
                shop.gates["s-1"].set()
            with pytest.raises(CommandCancelled, match="not wanted"):
                await bus.result("o-1", Flow, timeout=20)
            await bus.wait_idle(10)  # with what tells the other shard
            for sku in skus:
                await bus.entity("stock", sku).resume()
            await bus.wait_idle(10)
    assert [each for each in shop.log if each != "run"] == ([("reserve", "s-1")] if begun else [])
    assert await shop.side_records() == []
