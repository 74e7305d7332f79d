"""`context.timeout` ends a block as `asyncio.timeout` does, and at the same place in each run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import DurableContext
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Flow, Reserve, Shop
from tests.conformance.put_service import until


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


async def _again(context: DurableContext, shop: Shop) -> None:
    shop.log.append("over")
    await context.signal("go")


async def _result(sandbox: Sandbox, shop: Shop) -> Any:
    """Return what a handler comes to that waits once more at its end: so it runs again, with all that is stored."""
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="o-1", keep_result=True)
        await until(lambda: shop.count("over"))
        await shop.suspended()
        await bus.commands.signal("o-1", "answer", "too late")
        await bus.commands.signal("o-1", "go")
        return await bus.result("o-1", Flow, timeout=20)


async def test_reminders_within_a_limit_end_with_it(sandbox: Sandbox, shop: Shop) -> None:
    """The handler catches what each wait raises, inside of the block: the limit is none of these."""

    @shop.script
    async def order(context: DurableContext) -> Any:
        sent = 0
        try:
            async with context.timeout(0.75):
                while True:
                    try:
                        return await context.signal("answer", timeout=0.2)
                    except TimeoutError:
                        await context.step("remind", shop.effect, "remind")
                        sent += 1
        except TimeoutError:
            await _again(context, shop)
            return sent

    sent = await _result(sandbox, shop)
    assert 1 <= sent <= 3
    assert shop.count("remind") == sent


async def test_a_step_is_cut_off_in_all_runs(sandbox: Sandbox, shop: Shop) -> None:
    async def slow() -> str:
        shop.log.append("slow")
        await asyncio.sleep(30)
        return "never"

    @shop.script
    async def order(context: DurableContext) -> Any:
        first = ""
        try:
            async with context.timeout(0.2):
                first = await context.step("quick", shop.effect, "quick")
                await context.step("slow", slow)
        except TimeoutError:
            await _again(context, shop)
            return [first, "late"]

    assert await _result(sandbox, shop) == ["QUICK", "late"]
    assert (shop.count("slow"), shop.count("quick")) == (1, 1)


@pytest.mark.parametrize("outer", [0.2, 0.6])
async def test_the_limit_that_is_over_first_ends_its_block(sandbox: Sandbox, shop: Shop, outer: float) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        late = []
        try:
            async with context.timeout(outer):
                try:
                    async with context.timeout(0.4):
                        await context.signal("answer")
                except TimeoutError:
                    late.append("inner")
                await context.sleep(30)
        except TimeoutError:
            late.append("outer")
        await _again(context, shop)
        return late

    assert await _result(sandbox, shop) == (["outer"] if outer < 0.4 else ["inner", "outer"])


@pytest.mark.promise("Time limits repeat")
@pytest.mark.parametrize("how", ["gather", "all", "first", "call", "sleep"])
async def test_all_that_is_awaited_is_cut_off(sandbox: Sandbox, shop: Shop, how: str) -> None:
    """What arrives after that is not seen by a later run, either."""
    shop.gates["s-1"] = asyncio.Event()

    @shop.script
    async def order(context: DurableContext) -> Any:
        late = False
        try:
            async with context.timeout(0.2):
                match how:
                    case "gather":
                        await asyncio.gather(context.call(Reserve(sku="s-1")), context.signal("answer"))
                    case "all":
                        await context.all(context.call(Reserve(sku="s-1")), context.signal("answer"))
                    case "first":
                        await context.first(context.call(Reserve(sku="s-1")), context.signal("answer"))
                    case "call":
                        await context.call(Reserve(sku="s-1"))
                    case _:
                        await context.sleep(0.5)
        except TimeoutError:
            late = True
        shop.gates["s-1"].set()
        await context.sleep(0.6)
        await _again(context, shop)
        return late

    assert await _result(sandbox, shop) is True


async def test_a_limit_of_another_task_is_none_here(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        async def limited() -> str:
            try:
                async with context.timeout(0.1):
                    await context.signal("answer")
            except TimeoutError:
                return "late"
            return "in time"

        found = await asyncio.gather(limited(), context.sleep(0.4), return_exceptions=True)
        await _again(context, shop)
        return found

    assert await _result(sandbox, shop) == ["late", None]
