"""Suspended commands beside all else: many of them, deadlines, pauses, purges, limits, lines, events, deploys."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import (
    Command,
    CommandBus,
    DurableContext,
    EntityId,
    EntityPolicy,
    HandlerRegistry,
    Limit,
    NoHandler,
    Rate,
    RetryPolicy,
)
from command_bus.admin.events import BEGINNING
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Fast, Flow, Reserve, Shop
from tests.conformance.put_service import until


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


async def suspended(bus: CommandBus, count: int) -> bool:
    """Return whether so many commands were suspended, and nothing runs."""
    stats = await bus.stats()
    return stats.in_flight == 0 and stats.depth >= count


@pytest.mark.promise("A durable wait holds no worker")
async def test_a_thousand_suspended_orders_hold_nothing_of_a_worker(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.step("pack", len, "abc")
        answer = await context.signal("packed", returns=int)
        shop.log.append(answer)
        return answer

    async with sandbox.bus(concurrency=10, shards=2) as bus, bus.worker():
        tasks = len(asyncio.all_tasks())
        receipts = [await bus.dispatch(Flow(order=f"o-{n}")) for n in range(1000)]
        behind = [await bus.dispatch(Fast(order=f"o-{n}")) for n in range(0, 1000, 100)]
        await until(lambda: suspended(bus, 1000), 60)
        assert len(asyncio.all_tasks()) <= tasks + 12, "a task for each slot at most"
        assert await bus.call(Reserve(sku="s-1"), timeout=10) == 1
        assert len(behind) == 10
        assert not [each for each in shop.log if each[0] == "fast"]
        await asyncio.gather(*(bus.commands.signal(each.command_id, "packed", n) for n, each in enumerate(receipts)))
        await bus.wait_idle(60)
        stats = await bus.stats()
    assert sorted(each for each in shop.log if type(each) is int) == list(range(1000))
    assert (stats.depth, stats.settled) == (0, 1011)
    assert await shop.side_records() == []


async def test_a_deadline_is_over_once_it_has_started(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        await context.sleep(0.6)
        return 7

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True, expires=0.3)
        assert await receipt.result(timeout=10) == 7
    assert shop.log == ["run", "run"]


async def test_what_is_unknown_after_a_wake_waits_for_a_newer_worker(sandbox: Sandbox, shop: Shop) -> None:
    """The grace for unknown commands counts from the wake."""

    @shop.script
    async def order(context: DurableContext) -> Any:
        return await context.signal("packed")

    async with sandbox.bus(unknown_grace=0.8) as bus:
        async with bus.worker():
            receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
            await shop.suspended()
        await asyncio.sleep(1.0)  # longer than the grace
        async with CommandBus(settings=bus.settings, registry=HandlerRegistry(), clients=sandbox.clients) as old, old.worker():
            await bus.commands.signal(receipt.command_id, "packed", 7)
            await until(lambda: is_there(bus))
            await asyncio.sleep(0.2)
            assert [letter async for letter in bus.dead_letters.list()] == []
        async with bus.worker():
            assert await receipt.result(timeout=10) == 7


async def is_there(bus: CommandBus) -> bool:
    return (await bus.stats()).depth == 1


async def test_what_stays_unknown_after_a_wake_is_given_up(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        return await context.signal("packed")

    async with sandbox.bus(unknown_grace=0.3) as bus:
        async with bus.worker():
            receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
            await shop.suspended()
        async with CommandBus(settings=bus.settings, registry=HandlerRegistry(), clients=sandbox.clients) as old, old.worker():
            await bus.commands.signal(receipt.command_id, "packed", 7)
            with pytest.raises(NoHandler):
                await receipt.result(timeout=10)


# Operators.


async def test_a_paused_entity_is_not_woken(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.sleep(0.2)
        shop.log.append("awake")
        answer = await context.signal("packed")
        shop.log.append("packed")
        return answer

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await shop.suspended()
        entity = bus.entity("order", "o-1")
        await entity.pause("stocktaking")
        await asyncio.sleep(0.5)
        assert shop.log == []
        await entity.resume()
        await until(lambda: shop.count("awake"))
        await shop.suspended()
        await entity.pause("stocktaking")
        await entity.resume()  # nothing came meanwhile: it stays suspended
        assert await shop.is_suspended()
        await entity.pause("stocktaking")
        await bus.commands.signal(receipt.command_id, "packed", 7)
        await asyncio.sleep(0.3)
        assert shop.count("packed") == 0
        await entity.resume()
        assert await receipt.result(timeout=10) == 7


async def test_a_purge_leaves_what_has_begun(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        return await context.signal("packed")

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await shop.suspended()
        for _ in range(3):
            await bus.dispatch(Fast(order="o-1"))
        assert await bus.entity("order", "o-1").purge() == 3
        assert not await bus.cancel(receipt.command_id)
        assert await shop.is_suspended()
        await bus.commands.signal(receipt.command_id, "packed", 7)
        assert await receipt.result(timeout=10) == 7
        assert (await bus.stats()).depth == 0
    assert shop.log == []


async def test_what_has_begun_and_waits_for_a_worker_is_not_taken_out(sandbox: Sandbox, shop: Shop) -> None:
    """Between its wake and its next start it waits like one that never started."""

    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.call(Reserve(sku="s-1"), undo=Reserve(sku="back"))
        return await context.signal("packed")

    async with sandbox.bus() as bus:
        async with bus.worker():
            receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
            await until(lambda: shop.count(("reserve", "s-1")))
            await until(lambda: idle(bus))
        await bus.commands.signal(receipt.command_id, "packed", 7)
        assert not await shop.is_suspended()
        assert not await bus.cancel(receipt.command_id)
        assert await bus.entity("order", "o-1").purge() == 0
        async with bus.worker():
            assert await receipt.result(timeout=10) == 7


async def idle(bus: CommandBus) -> bool:
    """Return whether one command is left, and it is suspended."""
    return (await bus.stats()).settled == 1 and await suspended(bus, 1)


async def test_a_drained_entity_goes_on(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        return await context.call(Reserve(sku="s-1", seconds=0.3))

    async with sandbox.bus(max_waiting=0) as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await shop.suspended()
        await bus.entities.of("order").drain("moving house")
        await bus.entities.of("stock").drain("moving house")
        assert await receipt.result(timeout=10) == 1


async def test_repair_and_recount_leave_it_suspended(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.sleep(0.4)
        return await context.signal("packed")

    async with sandbox.bus(lease=0.5) as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await bus.dispatch(Fast(order="o-1"))
        await until(shop.is_suspended)
        await asyncio.sleep(2.0)  # some leases, and upkeep
        await bus.entities.recount()
        assert await shop.is_suspended()
        assert ("fast", "o-1") not in shop.log
        assert (await bus.stats()).depth == 2
        await bus.commands.signal(receipt.command_id, "packed", 7)
        assert await receipt.result(timeout=10) == 7
        await bus.wait_idle(10)
    assert shop.log == [("fast", "o-1")]


# Limits, lines, events.


class Limited(Command[Any], entity="job", durable=True):
    job: EntityId


async def suspended_thrice(sandbox: Sandbox, limit: Limit, shards: int) -> int:
    """Run two jobs that are suspended three times each, and return the most that ran at a time."""
    running = most = starts = 0

    @sandbox.registry.handles(Limited)
    async def job(command: Limited, context: DurableContext) -> Any:
        nonlocal running, most, starts
        running, starts = running + 1, starts + 1
        most = max(running, most)
        try:
            await asyncio.sleep(0.01)
            for _ in range(3):
                await context.signal("go")
        finally:
            running -= 1
        return 1

    async with sandbox.bus(shards=shards, entities={"job": EntityPolicy(limits=(limit,))}) as bus, bus.worker():
        jobs = [await bus.dispatch(Limited(job=f"j-{n}"), keep_result=True) for n in range(2)]
        await until(lambda: starts == 2)  # while the first is suspended
        for _ in range(3):
            for each in jobs:
                await bus.commands.signal(each.command_id, "go")
            await asyncio.sleep(0.1)
        assert [await each.result(timeout=5) for each in jobs] == [1, 1]
    return most


@pytest.mark.parametrize("shards", [1, 2])
async def test_a_suspended_command_holds_no_place(sandbox: Sandbox, shards: int) -> None:
    assert await suspended_thrice(sandbox, Limit(concurrency=1, scope="type"), shards) == 1


@pytest.mark.parametrize("shards", [1, 2])
async def test_a_resume_takes_no_token_of_a_rate(sandbox: Sandbox, shards: int) -> None:
    await suspended_thrice(sandbox, Limit(rate=Rate(2, per=3600, burst=2), scope="type"), shards)


class Urgent(Command[Any], entity="order", durable=True, priority="high"):
    order: EntityId


async def test_a_wake_takes_its_place_in_the_line(sandbox: Sandbox, shop: Shop) -> None:
    @sandbox.registry.handles(Urgent)
    async def urgent(command: Urgent, context: DurableContext) -> Any:
        await context.signal("packed")
        got = await context.call(Reserve(sku=f"s-{command.order}", seconds=0.2))
        shop.log.append(str(command.order))
        return got

    async with sandbox.bus(concurrency=2) as bus, bus.worker():
        orders = [await bus.dispatch(Urgent(order=f"o-{n}"), keep_result=True) for n in range(20)]
        await until(lambda: suspended(bus, 20))
        for each in orders:
            await bus.commands.signal(each.command_id, "packed")
        assert [await each.result(timeout=30) for each in orders] == 20 * [1]
        await bus.wait_idle(10)
        assert (await bus.stats()).depth == 0


async def test_events_tell_of_suspensions(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.signal("packed")
        return await context.call(Reserve(sku="s-1"))

    told: list[tuple[str, str]] = []

    async with sandbox.bus() as bus:
        await bus.events.watch("order", "stock")
        follow = asyncio.get_running_loop().create_task(_listen(bus, told))
        async with bus.worker():
            receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
            await shop.suspended()
            await bus.commands.signal(receipt.command_id, "packed")
            await receipt.result(timeout=10)
            await until(lambda: ("Flow", "completed") in told)
        follow.cancel()
    of_flow = [kind for name, kind in told if name == "Flow"]
    assert of_flow[:4] == ["accepted", "started", "suspended", "started"]
    assert of_flow[-1] == "completed"
    assert [kind for name, kind in told if name == "Reserve"] == ["accepted", "started", "completed"]


async def _listen(bus: CommandBus, told: list[tuple[str, str]]) -> None:
    async for event in bus.events(after=BEGINNING):
        told.append((event.name, event.kind))  # noqa: PERF401 - it does not end


async def test_retries_of_what_was_suspended_wait_as_policies_say(sandbox: Sandbox, shop: Shop) -> None:
    class Slow(Command[Any], entity="order", durable=True, retry=RetryPolicy(attempts=2, delay=0.4, jitter=0)):
        order: EntityId

    loop, times = asyncio.get_running_loop(), []

    @sandbox.registry.handles(Slow)
    async def slow(command: Slow, context: DurableContext) -> Any:
        await context.signal("packed")
        times.append(loop.time())
        if len(times) == 1:
            raise ValueError("again")
        return context.attempt

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Slow(order="o-1"), keep_result=True)
        await shop.suspended()
        await bus.commands.signal(receipt.command_id, "packed")
        assert await receipt.result(timeout=10) == 2
    assert times[1] - times[0] > 0.35
