"""What a durable run holds is freed when the run is over, without the garbage collector: its command, its results, its task."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from command_bus import DurableContext
from command_bus.durable.run import DurableRun
from tests.conformance.conftest import Sandbox
from tests.conformance.durable_shop import Flow, Reserve, Shop


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def seven() -> int:
    return 7


@pytest.mark.usefixtures("uncollected")
async def test_a_run_that_is_over_is_freed(sandbox: Sandbox) -> None:
    shop = Shop(sandbox)

    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.step("seven", seven)
        await context.call(Reserve(sku="s-1"))
        async with context.timeout(60):
            return await context.signal("paid", returns=int)

    def alive() -> int:
        return sum(isinstance(each, DurableRun) for each in gc.get_objects())

    async with sandbox.bus() as bus, bus.worker():
        receipts = [await bus.dispatch(Flow(order=f"o-{number}"), keep_result=True) for number in range(5)]
        while shop.count(("reserve", "s-1")) < len(receipts):
            await asyncio.sleep(0.01)
        for receipt in receipts:
            await bus.commands.signal(receipt.command_id, "paid", 3)
            assert await receipt.result(timeout=10) == 3
        await bus.wait_idle(timeout=10)
        async with asyncio.timeout(5):  # that of a suspended run has a second for its last words
            while alive():
                await asyncio.sleep(0.1)
