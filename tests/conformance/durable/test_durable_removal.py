"""A durable command that has begun is not taken out of line, wherever it waits: what it did is undone when it ends."""

from __future__ import annotations

import asyncio

import pytest

from command_bus import Command, CommandCancelled, DurableContext, EntityId, RetryPolicy
from tests.conformance.conftest import Sandbox


class Sell(Command[None], entity="order", durable=True, retry=RetryPolicy(attempts=9, delay=0.4, max_delay=0.4, jitter=0)):
    order: EntityId


class Release(Command[None], entity="sku"):
    sku: EntityId


@pytest.mark.promise("Failed commands are undone")
@pytest.mark.parametrize("how", ["cancel", "purge"])
async def test_what_was_done_before_a_retry_is_undone(sandbox: Sandbox, how: str) -> None:
    done: list[str] = []
    failed = asyncio.Event()

    @sandbox.registry.handles(Sell)
    async def sell(command: Sell, context: DurableContext) -> None:
        context.compensate(Release(sku="lamp"))
        await context.step("reserve", done.append, "reserved")
        failed.set()
        raise ValueError("the printer is out of paper")

    @sandbox.registry.handles(Release)
    async def release(command: Release) -> None:
        done.append(f"released {command.sku}")

    async with sandbox.bus() as bus, bus.worker():
        selling = asyncio.create_task(bus.call(Sell(order="o-1"), command_id="sale", timeout=20))
        await failed.wait()
        await asyncio.sleep(0.1)  # it waits for its retry
        if how == "cancel":
            assert await bus.cancel("sale") is False, "it has begun"
        else:
            assert await bus.entity("order", "o-1").purge() == 0, "it has begun"
        assert await bus.commands.cancel("sale", running=True, reason="wrong day")
        with pytest.raises(CommandCancelled, match="wrong day"):
            await selling
        await bus.wait_idle(10)
        assert (await bus.stats()).depth == 0
    assert done == ["reserved", "released lamp"]
