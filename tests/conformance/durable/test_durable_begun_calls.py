"""Calls of a durable command that somebody ends: the caller learns it, and what had begun is undone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import (
    Command,
    CommandBus,
    CommandCancelled,
    CommandFailed,
    DurableContext,
    EntityId,
    HandlerRegistry,
    RetryPolicy,
)
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Charge, Flow, Refund, Reserve, Shop
from tests.conformance.put_service import until


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


def refunds(shop: Shop) -> list[str]:
    return [each[1] for each in shop.log if each[0] == "refund"]


async def parked(bus: CommandBus) -> Any:
    return next((letter for letter in [each async for each in bus.dead_letters.list()] if letter.parked), None)


async def waiting(bus: CommandBus) -> Any:
    head = (await bus.entity("stock", "s-1").show()).head
    return [head] if head is not None else []


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("waits", ["suspended", "resident"])
@pytest.mark.parametrize("how", ["discard", "purge"])
async def test_the_caller_learns_that_its_parked_call_was_discarded(
    sandbox: Sandbox, shop: Shop, how: str, waits: str, shards: int
) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        call = context.call(Charge(account="c-1", fails=True))
        try:
            await (call if waits == "suspended" else asyncio.gather(call))
        except CommandCancelled as error:
            return error.message

    async with sandbox.bus(shards=shards, dedup_window=60) as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        letter = await until(lambda: parked(bus))
        if waits == "suspended":
            await shop.suspended()
        if how == "discard":
            await bus.dead_letters.discard(letter.id)
        else:
            assert await bus.dead_letters.purge() == 1
        assert (await receipt.result(timeout=8)).startswith("discarded by an operator")
        await bus.wait_idle(10)
        assert (await bus.entities.recount(correct=False)).stored == 0
        (mark,) = [key for key in await sandbox.keys() if key.endswith(f"k:{letter.command_id}")]
        client = sandbox.client(int(mark.partition("}")[0].rpartition(":")[2]))
        assert await client.pttl(mark) > 0.9 * 3600 * 1000, "who looks for an outcome that was lost finds it for an hour"
        await client.aclose()


class Shaky(Command[int], entity="stock", retry=RetryPolicy(attempts=9, delay=0.5, max_delay=60, jitter=0)):
    """A plain command that fails, and is tried again after a pause."""

    sku: EntityId


@pytest.mark.parametrize("how", ["cancel what runs", "cancel in its pause", "purge in its pause", "discard", "cancel what waits"])
async def test_a_call_that_had_begun_is_undone_whoever_ends_it(sandbox: Sandbox, shop: Shop, how: str) -> None:
    shop.gates["s-1"] = asyncio.Event()

    @sandbox.registry.handles(Shaky)
    async def shaky(command: Shaky) -> int:
        shop.log.append("shaky")
        raise ValueError("again")

    @shop.script
    async def order(context: DurableContext) -> Any:
        called = Shaky(sku="s-1") if "pause" in how else Reserve(sku="s-1")
        await context.call(Charge(account="s-1", fails=True) if how == "discard" else called, undo=Refund(account="a-1"))

    async with sandbox.bus() as bus, bus.worker():
        if how == "cancel what waits":
            await bus.entities.of("stock").pause("stocktaking")
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await shop.suspended()
        if how == "discard":
            await bus.dead_letters.discard((await until(lambda: parked(bus))).id)
        elif how == "cancel what waits":
            (child,) = await until(lambda: waiting(bus))
            assert await bus.cancel(child.command_id)
        elif how == "cancel what runs":
            await until(lambda: shop.count(("reserve", "s-1")))
            child = (await bus.entity("stock", "s-1").show()).head
            assert child is not None
            assert await bus.commands.cancel(child.command_id, running=True)
        else:
            await until(lambda: shop.count("shaky"))
            (child,) = await until(lambda: waiting(bus))
            taken = until(bus.entity("stock", "s-1").purge) if "purge" in how else until(lambda: bus.cancel(child.command_id))
            assert await taken
        with pytest.raises(CommandFailed, match="CommandCancelled") as raised:
            await receipt.result(timeout=10)
        await bus.wait_idle(10)
        assert (await bus.entities.recount(correct=False)).stored == 0
    assert ("it had started, and may have run" in str(raised.value)) == (how != "cancel what waits")
    assert refunds(shop) == ([] if how == "cancel what waits" else ["a-1"])


async def test_a_durable_call_that_is_cancelled_undoes_what_it_did_itself(sandbox: Sandbox, shop: Shop) -> None:
    async def child(context: DurableContext) -> Any:
        await context.call(Reserve(sku="s-1"), undo=Refund(account="a-2"))
        await context.signal("packed")

    shop.scripts["child"] = child

    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.call(Flow(order="o-2", script="child"), undo=Refund(account="a-1"))

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await shop.suspended("o-2")
        head = (await bus.entity("order", "o-2").show()).head
        assert head is not None
        assert await bus.commands.cancel(head.command_id, running=True)
        with pytest.raises(CommandFailed, match="CommandCancelled"):
            await receipt.result(timeout=10)
        await bus.wait_idle(10)
        assert (await bus.entities.recount(correct=False)).stored == 0
    assert refunds(shop) == ["a-2"]


@pytest.mark.parametrize("left", [False, True], ids=["waited for", "given up before"])
@pytest.mark.parametrize("shards", [1, 4])
async def test_a_cancellation_goes_down_to_durable_calls_that_have_begun(
    sandbox: Sandbox, shop: Shop, shards: int, left: bool
) -> None:
    """Each undoes what it did itself; nobody waits for their sleeps."""

    async def grandchild(context: DurableContext) -> Any:
        await context.call(Reserve(sku="s-3"), undo=Refund(account="a-3"))
        await context.sleep(3600)

    async def child(context: DurableContext) -> Any:
        await context.call(Reserve(sku="s-2"), undo=Refund(account="a-2"))
        await context.call(Flow(order="o-3", script="grandchild"), undo=Refund(account="never"))

    shop.scripts |= {"grandchild": grandchild, "child": child}

    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.call(Reserve(sku="s-1"), undo=Refund(account="a-1"))
        called = context.call(Flow(order="o-2", script="child"), undo=Refund(account="never"))
        if left:
            await context.first(called, context.signal("on"))
            await context.signal("never")
        await called

    async with sandbox.bus(shards=shards) as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="o-1")
        for entity in ("o-3", "o-2", "o-1"):
            await shop.suspended(entity)
        if left:
            await bus.commands.signal("o-1", "on")
            await shop.suspended()
        assert await bus.commands.cancel("o-1", running=True, reason="not wanted")
        with pytest.raises(CommandCancelled, match="not wanted"):
            await bus.result("o-1", Flow, timeout=10)
        await bus.wait_idle(10)
        assert (await bus.entities.recount(correct=False)).stored == 0
        assert await bus.dead_letters.count() == {}
    assert refunds(shop) == ["a-3", "a-2", "a-1"]
    assert await shop.side_records() == []


async def test_a_call_that_had_begun_and_then_had_no_handler_is_undone(sandbox: Sandbox, shop: Shop) -> None:
    """The workers that came with a deploy do not know it."""
    without = HandlerRegistry()
    for handler in sandbox.registry:
        without.add(handler)

    @sandbox.registry.handles(Shaky)
    async def shaky(command: Shaky) -> int:
        shop.log.append("shaky")
        raise ValueError("again")

    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.call(Shaky(sku="s-1"), undo=Refund(account="a-1"))

    async with sandbox.bus() as bus:
        async with bus.worker():
            receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
            await shop.suspended()
            await until(lambda: shop.count("shaky"))
        async with sandbox.bus(registry=without, unknown_grace=0.0) as newer, newer.worker():
            with pytest.raises(CommandFailed, match="NoHandler"):
                await receipt.result(timeout=10)
            await bus.wait_idle(10)
        assert (await bus.entities.recount(correct=False)).stored == 0
    assert refunds(shop) == ["a-1"]
