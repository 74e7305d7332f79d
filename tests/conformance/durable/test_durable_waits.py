"""Waits of durable handlers for several things: all, the first, limits of time; and what stays with its worker while it waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any

import pytest

from command_bus import Command, CommandBus, CommandFailed, CommandRejected, DurableContext, EntityId
from command_bus.durable.run import DurableRun
from command_bus.transport.steps import WORKER_LOST
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Flow, Reserve, Shop
from tests.conformance.put_service import until


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


def again(shop: Shop, times: int = 2) -> None:
    """Fail, so that the handler runs again, so often."""
    shop.log.append("again")
    if shop.count("again") < times + 1:
        raise ValueError("again")


async def ended(bus: CommandBus, count: int) -> bool:
    """Return whether so many commands are settled."""
    return (await bus.stats()).settled >= count


@pytest.mark.parametrize("shards", [1, 4])
async def test_all_ends_with_the_last(sandbox: Sandbox, shop: Shop, shards: int) -> None:
    for sku in ("s-1", "s-2"):
        shop.gates[sku] = asyncio.Event()

    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        held = await context.all(
            context.call(Reserve(sku="s-1", pieces=1)),
            context.call(Reserve(sku="s-2", pieces=2)),
            context.step("pack", shop.effect, "pack"),
            context.sleep(0.1),
        )
        again(shop)
        return list(held)

    async with sandbox.bus(shards=shards) as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await until(lambda: shop.count(("reserve", "s-1")) and shop.count(("reserve", "s-2")))
        await shop.suspended()
        await asyncio.sleep(0.2)  # the sleep is over
        await shop.suspended()
        runs = shop.count("run")
        shop.gates["s-1"].set()
        await until(lambda: ended(bus, 1))
        assert await shop.is_suspended()
        assert shop.count("run") == runs
        shop.gates["s-2"].set()
        assert await receipt.result(timeout=10) == [1, 2, "PACK", None]
    assert (shop.count("pack"), shop.count(("reserve", "s-1")), shop.count(("reserve", "s-2"))) == (1, 1, 1)


async def test_all_raises_the_error_of_the_first_in_its_order(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.all(
            context.call(Reserve(sku="s-1")),
            context.call(Reserve(sku="s-2", end="reject", seconds=0.2)),
            context.call(Reserve(sku="s-3", end="fail")),
        )

    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed, match="sold out") as raised:
            await bus.call(Flow(order="o-1"), timeout=20)
    assert "CommandRejected" in str(raised.value)
    assert isinstance(raised.value, CommandFailed)
    assert not isinstance(raised.value, CommandRejected)


async def test_the_first_stays_the_first(sandbox: Sandbox, shop: Shop) -> None:
    shop.gates["s-1"] = asyncio.Event()

    @shop.script
    async def order(context: DurableContext) -> Any:
        slow, quick = context.call(Reserve(sku="s-1", pieces=1)), context.call(Reserve(sku="s-2", pieces=2))
        winner = await context.first(slow, quick)
        shop.log.append((winner is quick, await winner))
        shop.gates["s-1"].set()
        await context.call(Reserve(sku="s-1", pieces=3))  # behind the slow one, which has ended then
        again(shop)
        return await slow

    async with sandbox.bus() as bus, bus.worker():
        assert await bus.call(Flow(order="o-1"), timeout=20) == 1
    assert {each for each in shop.log if type(each) is tuple and each[0] != "reserve"} == {(True, 2)}


async def test_who_lost_against_a_time_may_wait_for_the_signal_again(sandbox: Sandbox, shop: Shop) -> None:
    """A reminder each 0.1 s until somebody approves."""

    @shop.script
    async def order(context: DurableContext) -> Any:
        reminders = 0
        while True:
            approved = context.signal("approved", returns=str)
            winner: Any = await context.first(approved, context.sleep(0.1))
            if winner is approved:
                return [reminders, await approved]
            reminders += 1
            await context.step("remind", shop.effect, "remind")

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await until(lambda: shop.count("remind") >= 2)
        await bus.commands.signal(receipt.command_id, "approved", "ann")
        reminders, by = await receipt.result(timeout=10)
    assert (reminders, by) == (shop.count("remind"), "ann")


async def test_a_limit_of_time_counts_over_all_runs(sandbox: Sandbox, shop: Shop) -> None:
    loop = asyncio.get_running_loop()

    @shop.script
    async def order(context: DurableContext) -> Any:
        try:
            async with context.timeout(0.5):
                await context.sleep(0.2)
                again(shop)
                await context.signal("packed")
        except TimeoutError:
            shop.log.append("late")
        return await context.signal("packed")

    async with sandbox.bus() as bus, bus.worker():
        began = loop.time()
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await until(lambda: shop.count("late"))
        assert 0.4 < loop.time() - began < 5
        await bus.commands.signal(receipt.command_id, "packed", 7)
        assert await receipt.result(timeout=10) == 7


async def test_a_wait_for_the_first_that_was_limited_stays_late(sandbox: Sandbox, shop: Shop) -> None:
    shop.gates["s-1"] = asyncio.Event()

    @shop.script
    async def order(context: DurableContext) -> Any:
        try:
            async with context.timeout(0.2):
                await context.first(context.call(Reserve(sku="s-1")), context.sleep(60))
            shop.log.append("in time")
        except TimeoutError:
            shop.log.append("late")
        shop.gates["s-1"].set()
        await context.call(Reserve(sku="s-1"))
        again(shop)

    async with sandbox.bus() as bus, bus.worker():
        await bus.call(Flow(order="o-1"), timeout=20)
    assert (shop.count("late") > 2, shop.count("in time")) == (True, 0)


# What stays with its worker.


async def gathered(context: DurableContext, shop: Shop) -> Any:
    return list(await asyncio.gather(*(context.call(Reserve(sku=f"s-{n}", pieces=n, seconds=0.2)) for n in range(3))))


async def grouped(context: DurableContext, shop: Shop) -> Any:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(context.call(Reserve(sku=f"s-{n}", pieces=n, seconds=0.2))) for n in range(3)]
    return [task.result() for task in tasks]


async def limited(context: DurableContext, shop: Shop) -> Any:
    async with asyncio.timeout(30):
        return [await context.call(Reserve(sku=f"s-{n}", pieces=n, seconds=0.2)) for n in range(3)]


class Limit:
    """A block of the application, in which a limit of the event loop is hidden."""

    async def __aenter__(self) -> None:
        self._limit = asyncio.timeout(30)
        await self._limit.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._limit.__aexit__(kind, error, trace)


async def hidden(context: DurableContext, shop: Shop) -> Any:
    async with Limit():
        return [await context.call(Reserve(sku=f"s-{n}", pieces=n, seconds=0.2)) for n in range(3)]


async def stacked(context: DurableContext, shop: Shop) -> Any:
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(30))
        return [await context.call(Reserve(sku=f"s-{n}", pieces=n, seconds=0.2)) for n in range(3)]


async def generated(context: DurableContext, shop: Shop) -> Any:
    async def calls() -> AsyncIterator[int]:
        for n in range(3):
            yield await context.call(Reserve(sku=f"s-{n}", pieces=n, seconds=0.2))

    return [each async for each in calls()]


async def waited(context: DurableContext, shop: Shop) -> Any:
    calls = [asyncio.ensure_future(context.call(Reserve(sku=f"s-{n}", pieces=n, seconds=0.2))) for n in range(3)]
    await asyncio.wait(calls)
    return [call.result() for call in calls]


async def waited_for(context: DurableContext, shop: Shop) -> Any:
    return [await asyncio.wait_for(context.call(Reserve(sku=f"s-{n}", pieces=n, seconds=0.2)), 30) for n in range(3)]


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize(
    "way", [gathered, grouped, limited, hidden, stacked, generated, waited, waited_for], ids=lambda way: str(way.__name__)
)
async def test_calls_in_tasks_of_their_own_work_and_stay(sandbox: Sandbox, shop: Shop, way: Any, shards: int) -> None:
    """One slot serves them all: it is lent while the handler waits."""

    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        return await way(context, shop)

    async with sandbox.bus(shards=shards, concurrency=1, lease=1.0) as bus, bus.worker():
        assert await bus.call(Flow(order="o-1"), timeout=20) == [0, 1, 2]
    assert shop.count("run") == 1
    assert [shop.count(("reserve", f"s-{n}")) for n in range(3)] == [1, 1, 1]


async def test_a_signal_reaches_what_stays(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        async with asyncio.timeout(30):
            return await context.signal("packed")

    async with sandbox.bus(concurrency=1) as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await until(lambda: shop.count("run"))
        await asyncio.sleep(0.2)
        assert not await shop.is_suspended()
        await bus.commands.signal(receipt.command_id, "packed", 7)
        assert await receipt.result(timeout=10) == 7
    assert shop.count("run") == 1


@pytest.mark.parametrize("block", ["context manager", "generator", "nested coroutine"])
async def test_other_blocks_are_suspended_and_end(sandbox: Sandbox, shop: Shop, block: str) -> None:
    """What a block of the application has open is closed at each suspension, and opened again."""

    @contextlib.asynccontextmanager
    async def session() -> AsyncIterator[None]:
        shop.log.append("open")
        try:
            yield
        finally:
            shop.log.append(("close", shop.context.suspending))

    class Session:
        def __enter__(self) -> None:
            shop.log.append("open")

        def __exit__(self, *_: object) -> None:
            shop.log.append(("close", shop.context.suspending))

    async def inner(context: DurableContext) -> Any:
        with Session():
            return await context.signal("packed")

    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.context = context
        if block == "nested coroutine":
            return await inner(context)
        if block == "generator":
            async with session():
                return await context.signal("packed")
        with Session():
            return await context.signal("packed")

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await shop.suspended()
        await bus.commands.signal(receipt.command_id, "packed", 7)
        assert await receipt.result(timeout=10) == 7
    assert shop.log == ["open", ("close", True), "open", ("close", False)]


@pytest.mark.parametrize("then", ["returns", "raises", "awaits more", "calls the bus", "hangs"])
async def test_a_handler_that_catches_everything_is_suspended_all_the_same(sandbox: Sandbox, shop: Shop, then: str) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        try:
            return await context.signal("packed")
        except BaseException:
            if then == "raises":
                raise ValueError("it failed") from None
            if then == "awaits more":
                await context.step("pack", shop.effect, "pack")
            if then == "calls the bus":
                await context.dispatch(Reserve(sku="s-1"))
            if then == "hangs":
                await asyncio.sleep(60)
            return "wrong"

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await shop.suspended()
        assert (shop.count("pack"), shop.count(("reserve", "s-1"))) == (0, 0)
        await bus.commands.signal(receipt.command_id, "packed", 7)
        assert await receipt.result(timeout=10) == 7
    assert shop.count("run") == 2


async def test_deploys_take_no_attempt_from_a_run_that_only_waits(sandbox: Sandbox, shop: Shop) -> None:
    attempts: list[int] = []

    @shop.script
    async def order(context: DurableContext) -> Any:
        attempts.append(context.attempt)
        async with asyncio.timeout(60):  # it is not suspended in such a block
            return await context.signal("paid")

    async with sandbox.bus(grace=0.05) as bus:
        await bus.dispatch(Flow(order="o-1"), command_id="c-1")
        for runs in range(1, 6):  # more than the attempts of its class
            async with bus.worker():
                await until(lambda runs=runs: _reached(attempts, runs))
                await asyncio.sleep(0.1)
        async with bus.worker():
            await bus.commands.signal("c-1", "paid", 5)
            assert await bus.result("c-1", Flow, timeout=20) == 5
    assert set(attempts) == {1}


async def test_a_lease_that_is_lost_as_the_handler_is_suspended_is_no_failure(
    sandbox: Sandbox, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[bool] = []
    suspend = DurableRun._suspend

    def losing(self: DurableRun, *waits: Any) -> None:
        if not lost and self.lease.cancel is not None:
            lost.append(True)
            self.lease.cancel(WORKER_LOST)  # as the renewal does; the handler does not meet it before it is suspended
        suspend(self, *waits)

    @shop.script
    async def order(context: DurableContext) -> Any:
        return await context.signal("paid")

    monkeypatch.setattr(DurableRun, "_suspend", losing)
    async with sandbox.bus(lease=1.0) as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="c-1")
        await until(lambda: _reached(lost, 1))
        await bus.commands.signal("c-1", "paid", 5)
        assert await bus.result("c-1", Flow, timeout=20) == 5
        assert await bus.dead_letters.count() == {}


async def _reached(seen: Sequence[int], count: int) -> bool:
    return len(seen) >= count


# Errors of outcomes that are stored.


class Wrong(Command[int], entity="stock"):
    sku: EntityId


async def _grouped(context: DurableContext) -> None:
    try:
        await context.call(Reserve(sku="s-1", end="reject"))
    except CommandRejected as error:
        raise ExceptionGroup("all that was wrong", [error]) from None


FINAL: dict[str, tuple[Callable[[DurableContext], Awaitable[Any]], str]] = {
    "a rejection": (lambda context: context.call(Reserve(sku="s-1", end="reject")), "CommandRejected"),
    "a failure": (lambda context: context.call(Reserve(sku="s-1", end="fail")), "CommandFailed"),
    "a reply of another type": (lambda context: context.call(Wrong(sku="s-1")), "BadResult"),
    "a call that took too long": (lambda context: context.call(Reserve(sku="s-1", seconds=0.2), timeout=0.01), "TimeoutError"),
    "a signal that did not come": (lambda context: context.signal("packed", timeout=0.01), "TimeoutError"),
    "in a group": (_grouped, "ExceptionGroup"),
}


@pytest.mark.parametrize("what", FINAL)
async def test_what_a_retry_cannot_change_is_final(sandbox: Sandbox, shop: Shop, what: str) -> None:
    """It is stored, so each retry would meet it again: the command fails at once, with this error."""
    body, error_type = FINAL[what]

    @sandbox.registry.handles(Wrong)
    async def wrong(command: Wrong) -> Any:
        return "no number"

    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        await context.step("pack", len, "abc")
        try:
            await body(context)
        except Exception:
            shop.log.append("failed")
            raise

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        with pytest.raises(CommandFailed) as caught:
            await receipt.result(timeout=10)
        assert caught.value.error_type.endswith(error_type)
        assert shop.count("failed") == 1


async def test_an_error_of_its_own_is_retried_after_an_outcome(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        try:
            await context.call(Reserve(sku="s-1", end="reject"))
        except CommandRejected as error:
            if context.attempt < 3:
                raise ValueError("the shelf is away") from error
        return context.attempt

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        assert await receipt.result(timeout=10) == 3
