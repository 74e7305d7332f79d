"""Ends of durable commands: what they did is undone, in reverse, once, before their caller learns how they ended."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from command_bus import (
    CommandBus,
    CommandCancelled,
    CommandFailed,
    CommandInterrupted,
    CommandRejected,
    DurableContext,
    GiveUp,
    Reject,
    RetryPolicy,
)
from command_bus.durable.undo import Undo
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Fast, Flow, ParkedFlow, Refund, Reserve, Shop
from tests.conformance.put_service import until

Undone = list[tuple[str, str]]


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


def refunds(shop: Shop) -> list[str]:
    return [each[1] for each in shop.log if each[0] == "refund"]


async def letters(bus: CommandBus) -> list[Any]:
    return [letter async for letter in bus.dead_letters.list()]


async def three_refunds(context: DurableContext, shop: Shop) -> None:
    """Do three things that have to be undone, and register each in another way."""
    await context.call(Reserve(sku="s-1"), undo=Refund(account="a-1"))
    await context.step("charge", shop.effect, "charge")
    context.compensate(Refund(account="a-2"))
    await context.call(Reserve(sku="s-3"), undo=Refund(account="a-3"))


@pytest.mark.promise("Failed commands are undone")
@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("end", ["reject", "fail", "give up"])
async def test_it_is_undone_in_reverse_before_the_caller_learns(sandbox: Sandbox, shop: Shop, end: str, shards: int) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        await three_refunds(context, shop)
        if end == "reject":
            raise Reject("no stock", code="none")
        if end == "give up":
            raise GiveUp("no stock")
        raise ValueError("no stock")

    async with sandbox.bus(shards=shards) as bus, bus.worker():
        with pytest.raises((CommandRejected, CommandFailed)) as raised:
            await bus.call(Flow(order="o-1"), timeout=20)
        assert refunds(shop) == ["a-3", "a-2", "a-1"]
        assert isinstance(raised.value, CommandRejected if end == "reject" else CommandFailed)
        assert "no stock" in str(raised.value)
        found = await letters(bus)
        await bus.wait_idle(10)
        assert (await bus.stats()).depth == 0
    assert shop.count("charge") == 1
    assert len(found) == (end != "reject")
    assert await shop.side_records() == []


async def test_what_returns_is_not_undone(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        await three_refunds(context, shop)
        return 1

    async with sandbox.bus() as bus, bus.worker():
        assert await bus.call(Flow(order="o-1"), timeout=20) == 1
        await bus.wait_idle(10)
    assert refunds(shop) == []
    assert await shop.side_records() == []


async def test_only_what_was_done_is_undone(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.call(Reserve(sku="s-1"), undo=Refund(account="a-1"))
        raise Reject("no stock")
        await context.call(Reserve(sku="s-2"), undo=Refund(account="a-2"))

    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandRejected):
            await bus.call(Flow(order="o-1"), timeout=20)
    assert refunds(shop) == ["a-1"]


@pytest.mark.promise("Failed commands are undone")
@pytest.mark.parametrize("shards", [1, 4])
async def test_a_call_that_did_nothing_is_not_undone(sandbox: Sandbox, shop: Shop, shards: int) -> None:
    """One is rejected, one never runs, and one ends while the others are undone."""
    shop.gates["s-4"] = asyncio.Event()

    @shop.script
    async def order(context: DurableContext) -> Any:
        with pytest.raises(CommandRejected):
            await context.call(Reserve(sku="s-1", end="reject"), undo=Refund(account="a-1"))
        with pytest.raises(CommandFailed):
            await context.call(Reserve(sku="s-2", end="fail"), undo=Refund(account="a-2"))
        stands, runs = (
            context.call(Fast(order="paused"), undo=Refund(account="a-3")),
            context.call(Reserve(sku="s-4"), undo=Refund(account="a-4")),
        )
        await context.first(stands, runs, context.sleep(0.3))
        raise Reject("no stock")

    async with sandbox.bus(shards=shards) as bus, bus.worker():
        await bus.entity("order", "paused").pause("stocktaking")
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await until(lambda: shop.count(("reserve", "s-4")))
        await asyncio.sleep(0.6)
        assert refunds(shop) == []
        shop.gates["s-4"].set()
        with pytest.raises(CommandRejected, match="no stock"):
            await receipt.result(timeout=10)
        await bus.entity("order", "paused").resume()
        await bus.wait_idle(10)
    assert refunds(shop) == ["a-4", "a-2"]
    assert not [each for each in shop.log if each[0] == "fast"]


async def test_attempts_that_follow_undo_nothing_and_register_once(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        await three_refunds(context, shop)
        if shop.count("run") == 3:
            assert refunds(shop) == []
            raise Reject("no stock")
        raise ValueError("again")

    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandRejected):
            await bus.call(Flow(order="o-1"), timeout=20)
    assert refunds(shop) == ["a-3", "a-2", "a-1"]


async def test_the_line_waits_for_the_compensation(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        await three_refunds(context, shop)
        raise Reject("no stock")

    async with sandbox.bus() as bus:
        flow = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await bus.dispatch(Fast(order="o-1"))
        async with bus.worker():
            with pytest.raises(CommandRejected):
                await flow.result(timeout=10)
            await bus.wait_idle(10)
    assert shop.log[-1] == ("fast", "o-1")


# Cancelled.


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("waits", ["signal", "sleep", "call"])
async def test_a_suspended_command_is_cancelled(sandbox: Sandbox, shop: Shop, waits: str, shards: int) -> None:
    """A call that has begun is waited for; what it did is undone, too."""
    shop.gates["s-9"] = asyncio.Event()

    @shop.script
    async def order(context: DurableContext) -> Any:
        await three_refunds(context, shop)
        await context.step("ready", shop.effect, "ready")
        if waits == "signal":
            await context.signal("packed")
        elif waits == "sleep":
            await context.sleep(3600)
        else:
            await context.call(Reserve(sku="s-9"), undo=Refund(account="a-9"))
            await context.sleep(3600)
        return 1

    async with sandbox.bus(shards=shards) as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await until(lambda: shop.count(("reserve", "s-9") if waits == "call" else "ready"))
        await shop.suspended()
        assert await bus.commands.cancel(receipt.command_id, running=True, reason="wrong day")
        if waits == "call":
            await asyncio.sleep(0.3)
            assert refunds(shop) == []
            status = await bus.commands.status(receipt.command_id)
            assert (status.state, status.cancelling) == ("suspended", "wrong day")
            entity = (await bus.entity("order", "o-1").show()).entity
            assert entity.suspension is not None
            assert entity.suspension.cancelling == "wrong day"
            assert str(entity.suspension).endswith(", and ends then: wrong day")
            shop.gates["s-9"].set()
        with pytest.raises(CommandCancelled, match="wrong day"):
            await receipt.result(timeout=10)
        assert not await bus.commands.cancel(receipt.command_id, running=True)
        await bus.wait_idle(10)
    assert refunds(shop) == (["a-9"] if waits == "call" else []) + ["a-3", "a-2", "a-1"]
    assert await shop.side_records() == []


async def test_a_called_command_that_has_not_started_is_taken_out(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        return await context.call(Reserve(sku="s-1"))

    async with sandbox.bus() as bus, bus.worker():
        await bus.entities.of("stock").pause("stocktaking")
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await shop.suspended()
        assert await bus.commands.cancel(receipt.command_id, running=True)
        with pytest.raises(CommandCancelled):
            await receipt.result(timeout=10)
        await bus.entities.of("stock").resume()
        await bus.wait_idle(10)
    assert ("reserve", "s-1") not in shop.log


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("how", ["cancel", "purge"])
async def test_the_caller_learns_that_an_operator_took_its_call_out(sandbox: Sandbox, shop: Shop, how: str, shards: int) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        try:
            await context.call(Reserve(sku="s-1"))
        except CommandCancelled as error:
            return error.message

    async with sandbox.bus(shards=shards) as bus, bus.worker():
        await bus.entities.of("stock").pause("stocktaking")
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await shop.suspended()
        await until(lambda: depth(bus, 2))
        if how == "purge":
            await until(bus.entity("stock", "s-1").purge)
        else:
            (child,) = await until(lambda: waiting(bus))
            assert await bus.cancel(child.command_id)
        told = await receipt.result(timeout=5)
    assert told == ("its entity was purged" if how == "purge" else "cancelled before it started")


async def waiting(bus: CommandBus) -> Any:
    head = (await bus.entity("stock", "s-1").show()).head
    return [head] if head is not None else []


async def depth(bus: CommandBus, count: int) -> bool:
    return (await bus.stats()).depth == count


async def test_a_handler_may_catch_its_cancellation(sandbox: Sandbox, shop: Shop) -> None:
    """Its result stands."""

    @shop.script
    async def order(context: DurableContext) -> Any:
        try:
            await context.signal("packed")
        except CommandCancelled:
            return "as it is"

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await shop.suspended()
        assert await bus.commands.cancel(receipt.command_id, running=True)
        assert await receipt.result(timeout=10) == "as it is"


async def test_what_is_compensated_is_not_cancelled(sandbox: Sandbox, shop: Shop) -> None:
    shop.gates["s-1"] = asyncio.Event()

    @shop.script
    async def order(context: DurableContext) -> Any:
        context.compensate(Refund(account="a-1"))
        context.compensate(Reserve(sku="s-1"))
        raise Reject("no stock")

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await shop.suspended()
        await bus.commands.cancel(receipt.command_id, running=True)
        await asyncio.sleep(0.2)
        shop.gates["s-1"].set()
        with pytest.raises(CommandRejected, match="no stock"):
            await receipt.result(timeout=10)
    assert refunds(shop) == ["a-1"]


async def test_a_command_that_has_not_started_is_taken_out_with_its_signals(sandbox: Sandbox, shop: Shop) -> None:
    async with sandbox.bus() as bus:
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await bus.commands.signal(receipt.command_id, "packed", 1)
        assert await bus.commands.cancel(receipt.command_id, running=True)
        with pytest.raises(CommandCancelled):
            await receipt.result(timeout=5)
        assert (await bus.stats()).depth == 0


# Compensation that fails.


@pytest.mark.promise("Failed commands are undone")
@pytest.mark.parametrize("shards", [1, 4])
async def test_a_compensation_that_fails_parks_and_is_tried_again(sandbox: Sandbox, shop: Shop, shards: int) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        context.compensate(Refund(account="a-1"))
        context.compensate(Refund(account="a-2", fails=2))
        await context.step("charge", shop.effect, "charge")
        raise Reject("no stock", code="none")

    async with sandbox.bus(shards=shards) as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        for times in (1, 2):
            letter = await until(lambda: parked(bus))
            assert letter.reason == "compensation_failed"
            assert refunds(shop) == ["a-2"] * times
            await bus.dead_letters.replay(letter.id)
            await until(lambda times=times: len(refunds(shop)) > times)
        with pytest.raises(CommandRejected, match="no stock"):
            await receipt.result(timeout=10)
        await bus.wait_idle(10)
    assert refunds(shop) == ["a-2", "a-2", "a-2", "a-1"]
    assert shop.count("run") == 1
    assert await shop.side_records() == []


@pytest.mark.parametrize("shards", [1, 3])
async def test_discarding_what_failed_to_undo_goes_on_with_the_others(sandbox: Sandbox, shop: Shop, shards: int) -> None:
    """Each that fails is given up by a discard of its own; the caller gets the first error."""

    @shop.script
    async def order(context: DurableContext) -> Any:
        for account, fails in (("a-1", 0), ("a-2", 9), ("a-3", 0), ("a-4", 9)):
            context.compensate(Refund(account=account, fails=fails))
        raise Reject("no stock", code="none")

    async with sandbox.bus(shards=shards) as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        for done in (["a-4"], ["a-4", "a-3", "a-2"]):
            letter = await until(lambda: parked(bus))
            assert letter.reason == "compensation_failed"
            assert refunds(shop) == done
            await bus.dead_letters.discard(letter.id)
            await until(lambda done=done: len(refunds(shop)) > len(done))
        with pytest.raises(CommandRejected, match="no stock"):
            await receipt.result(timeout=10)
        await bus.wait_idle(10)
    assert refunds(shop) == ["a-4", "a-3", "a-2", "a-1"]
    assert await shop.side_records() == []


async def test_one_that_is_replayed_after_a_discard_calls_only_what_failed_last(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        context.compensate(Refund(account="a-1", fails=2))
        context.compensate(Refund(account="a-2", fails=1))
        raise Reject("no stock", code="none")

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        first = await until(lambda: parked(bus))
        await bus.dead_letters.discard(first.id)
        second = await until(lambda: parked(bus))
        await bus.dead_letters.replay(second.id)
        with pytest.raises(CommandRejected, match="no stock"):
            await receipt.result(timeout=10)
    assert refunds(shop) == ["a-2", "a-1", "a-1"]


async def test_what_cannot_be_read_is_tried_again_as_the_class_is(
    sandbox: Sandbox, shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker of another release may read it; till then no worker turns in a circle."""
    read, tried = Undo.read, list[float]()

    def reads(field: str, value: bytes) -> Undo:
        tried.append(asyncio.get_running_loop().time())
        return read(field, b"\xc1" if len(tried) < 4 else value)

    monkeypatch.setattr(Undo, "read", reads)

    @shop.script
    async def order(context: DurableContext) -> Any:
        context.compensate(Refund(account="a-1"))
        raise GiveUp("no stock")

    delays = RetryPolicy(attempts=2, delay=0.3, backoff="fixed", jitter=0)
    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed, match="no stock"):
            await bus.call(Flow(order="o-1"), timeout=20, retry=delays)
    pauses = [later - earlier for earlier, later in pairwise(tried[:4])]
    assert len(pauses) == 3
    assert min(pauses) > 0.25
    assert refunds(shop) == ["a-1"]
    assert sum("cannot be compensated here" in each.message for each in caplog.records) == 3


async def parked(bus: CommandBus) -> Any:
    return next((letter for letter in await letters(bus) if letter.parked), None)


async def test_what_is_parked_is_not_undone_and_goes_on_when_replayed(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        await three_refunds(context, shop)
        if shop.refusals == 0:
            raise ValueError("no stock")
        return 7

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(ParkedFlow(order="o-1"), keep_result=True)
        letter = await until(lambda: parked(bus))
        assert refunds(shop) == []
        shop.refusals = 1
        await bus.dead_letters.replay(letter.id)
        await bus.wait_idle(10)
        assert await bus.result(receipt.command_id, ParkedFlow, timeout=10) == 7
    assert refunds(shop) == []
    assert (shop.count("charge"), shop.count(("reserve", "s-1"))) == (1, 1)


async def test_a_worker_that_is_lost_too_often_ends_it_and_it_is_undone(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        await three_refunds(context, shop)
        shop.log.append("run")
        await asyncio.sleep(60)

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        for times in range(1, 4):
            await until(lambda times=times: shop.count("run") == times)
            await bus.entity("order", "o-1").abort("it hangs")
        with pytest.raises(CommandInterrupted):
            await receipt.result(timeout=10)
    assert refunds(shop) == ["a-3", "a-2", "a-1"]


async def test_follow_ups_of_other_ends_are_sent_after_the_compensation(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        context.compensate(Refund(account="a-1"))
        context.send(Reserve(sku="always"), on="always")
        context.send(Reserve(sku="completed"))
        raise Reject("no stock")

    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandRejected):
            await bus.call(Flow(order="o-1"), timeout=20)
        await bus.wait_idle(10)
    assert shop.log == [("refund", "a-1"), ("reserve", "always")]


async def test_what_is_sent_waits_for_the_end_of_a_suspended_command(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        context.send(Reserve(sku="s-1"))
        await context.signal("packed")
        return 1

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await shop.suspended()
        assert shop.log == []
        await bus.commands.signal(receipt.command_id, "packed")
        assert await receipt.result(timeout=10) == 1
        await bus.wait_idle(10)
    assert shop.log == [("reserve", "s-1")]
