"""Durable handlers that catch all errors in a loop, also those that end their run: they hold up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from command_bus import DurableContext
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Fast, Flow, Reserve, Shop

pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


async def _in_a_block(context: DurableContext) -> Any:
    async with context.timeout(3600):
        return await context.signal("packed")


async def _before_a_step(context: DurableContext) -> Any:
    await context.signal("never")
    return await context.step("pack", int)


WAITS: dict[str, Callable[[DurableContext], Awaitable[Any]]] = {
    "signal": lambda context: context.signal("packed"),
    "block": _in_a_block,
    "sleep": lambda context: context.sleep(3600),
    "call": lambda context: context.call(Reserve(sku="s-1")),
    "step": _before_a_step,
    "first": lambda context: context.first(context.signal("never"), context.sleep(3600)),
}


async def looping(context: DurableContext, wait: str, over: list[bool]) -> Any:
    """Wait in a loop, as no handler should."""
    found = None
    while not over and found is None:
        with suppress(BaseException):
            found = await WAITS[wait](context)
    return found


@pytest.mark.parametrize("wait", WAITS)
async def test_a_loop_that_catches_everything_holds_up_nobody(
    sandbox: Sandbox, shop: Shop, wait: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is suspended all the same, and gets on with what comes."""

    @shop.script
    async def order(context: DurableContext) -> Any:
        return await looping(context, wait, [])

    async with sandbox.bus() as bus, bus.worker():
        await bus.entity("stock", "s-1").pause("stocktaking")
        await bus.dispatch(Flow(order="o-1"), command_id="o-1")
        await shop.suspended()
        assert await bus.call(Fast(order="o-2"), timeout=10) == 1
        if wait in ("signal", "block"):
            await bus.commands.signal("o-1", "packed", 7)
            assert await bus.result("o-1", Flow, timeout=10) == 7
    assert "is left" in caplog.text


async def test_a_task_that_is_left_behind_and_catches_everything_holds_up_nobody(sandbox: Sandbox, shop: Shop) -> None:
    over: list[bool] = []

    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.context = asyncio.create_task(looping(context, "signal", over))
        await asyncio.sleep(0.1)
        return 7

    async with sandbox.bus() as bus, bus.worker():
        assert await bus.call(Flow(order="o-1"), timeout=10) == 7
        assert await bus.call(Fast(order="o-1"), timeout=10) == 1
    over.append(True)
    shop.context.cancel()
    assert await shop.context is None
