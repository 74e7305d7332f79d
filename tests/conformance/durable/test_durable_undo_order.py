"""Order of what undoes: it comes after what it undoes has ended, and is stored before the run goes on, over every server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from command_bus import CommandRejected, DurableContext, Reject
from command_bus.durable.names import UNDO
from command_bus.messages.outgoing import OutgoingMessage
from command_bus.sending.children import Child, Children
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Flow, Refund, Reserve, Shop
from tests.conformance.put_service import until

TIME = 0.2
Waiting = Callable[[DurableContext, Reserve], Awaitable[Any]]


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


async def by_call(context: DurableContext, command: Reserve) -> Any:
    return await context.call(command, undo=Refund(account="a-1"), timeout=TIME)


async def by_block(context: DurableContext, command: Reserve) -> Any:
    async with context.timeout(TIME):
        return await context.call(command, undo=Refund(account="a-1"))


async def by_asyncio(context: DurableContext, command: Reserve) -> Any:
    async with asyncio.timeout(TIME):
        return await context.call(command, undo=Refund(account="a-1"))


async def by_first(context: DurableContext, command: Reserve) -> Any:
    call = context.call(command, undo=Refund(account="a-1"))
    if await context.first(call, context.sleep(TIME)) is not call:
        raise TimeoutError


async def by_all(context: DurableContext, command: Reserve) -> Any:
    return await context.all(context.call(command, undo=Refund(account="a-1"), timeout=TIME), context.sleep(0.01))


async def named_before(context: DurableContext, command: Reserve) -> Any:
    context.compensate(Refund(account="a-1"))
    return await context.call(command, timeout=TIME)


WAYS: list[Waiting] = [by_call, by_block, by_asyncio, by_first, by_all, named_before]
ENDS = ["return", "fail", "reject", "stands"]


def noted(shop: Shop) -> list[str]:
    return [each[0] for each in shop.log if each[0] in ("reserve", "reserved", "refund")]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("way", WAYS)
async def test_what_undoes_a_call_that_took_too_long_comes_after_it(sandbox: Sandbox, shop: Shop, way: Waiting, end: Any) -> None:
    """A call that still stands in line is taken out; one that runs is waited for, also if it is rejected in the end."""
    stands = end == "stands"
    shop.gates["s-1"] = asyncio.Event()
    command = Reserve(sku="s-1", pieces=7, end="return" if stands else end)

    @shop.script
    async def order(context: DurableContext) -> Any:
        try:
            await way(context, command)
        except TimeoutError:
            shop.log.append("late")
            raise Reject("too late") from None

    async with sandbox.bus() as bus, bus.worker():
        before = await bus.dispatch(Reserve(sku="s-1", pieces=1), keep_result=True) if stands else None
        await until(lambda: shop.count(("reserve", "s-1")) or before is None)
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await until(lambda: shop.count("late"))
        await asyncio.sleep(0.3)
        assert "refund" not in noted(shop) or (stands and way is named_before), "it is undone while it stands in line, or runs"
        shop.gates["s-1"].set()
        with pytest.raises(CommandRejected, match="too late"):
            await receipt.result(timeout=10)
        await bus.wait_idle(10)
    is_undone = way is named_before or end in ("return", "fail")
    assert noted(shop) == ["reserve", *["refund"] * is_undone]
    assert await shop.side_records() == []


@pytest.mark.parametrize("later", ["in the run that heard it", "in a later run"])
async def test_all_runs_see_that_time_was_over_although_the_outcome_is_stored(sandbox: Sandbox, shop: Shop, later: str) -> None:
    shop.gates["s-1"] = asyncio.Event()

    @shop.script
    async def order(context: DurableContext) -> Any:
        call = context.call(Reserve(sku="s-1"), timeout=TIME)
        try:
            shop.log.append(("came to", await call))
        except TimeoutError:
            shop.log.append(("came to", "late"))
        shop.gates["s-1"].set()
        if later == "in a later run" and shop.count(("came to", "late")) == 1:
            raise ValueError("again")
        await context.sleep(1.5)

    async with sandbox.bus() as bus, bus.worker():
        await bus.call(Flow(order="o-1"), timeout=20)
    assert {each for each in shop.log if each[0] == "came to"} == {("came to", "late")}
    assert shop.count(("came to", "late")) >= 2


async def signalled(context: DurableContext) -> None:
    await context.signal("go")


async def slept(context: DurableContext) -> None:
    await context.sleep(60)


async def called(context: DurableContext) -> None:
    await context.call(Reserve(sku="gate"))


async def waited_for_all(context: DurableContext) -> None:
    await context.all(context.signal("go"), context.sleep(60))


async def waited_for_first(context: DurableContext) -> None:
    await context.first(context.signal("go"), context.sleep(60))


async def in_a_step(context: DurableContext) -> None:
    await context.step("long", asyncio.sleep, 60)


BEHIND = [signalled, slept, called, waited_for_all, waited_for_first, in_a_step]


@pytest.mark.parametrize("behind", BEHIND)
async def test_what_undoes_is_stored_before_the_handler_waits(
    sandbox: Sandbox, shop: Shop, monkeypatch: pytest.MonkeyPatch, behind: Callable[[DurableContext], Awaitable[None]]
) -> None:
    """The natural way to write it: do, name what undoes it by what it came to, wait. Also if a middleware takes its time."""
    shop.gates["gate"], child = asyncio.Event(), Children.child

    async def slow(self: Children, out: OutgoingMessage, call: str, seed: str) -> Child:
        await asyncio.sleep(0.15 * call.startswith(UNDO))
        return await child(self, out, call, seed)

    monkeypatch.setattr(Children, "child", slow)

    @shop.script
    async def order(context: DurableContext) -> Any:
        pieces = await context.call(Reserve(sku="s-1"))
        context.compensate(Refund(account=f"a-{pieces}"))
        shop.log.append("named")
        await behind(context)

    async with sandbox.bus(grace=0.2) as bus:
        async with bus.worker():
            receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
            await until(lambda: shop.count("named"))
            await asyncio.sleep(0.5)
        record = await bus.commands.record(receipt.command_id)
        assert [step.entity for step in record.steps if step.kind == "undo"] == ["account:a-1"], "the worker has stopped"
