"""Tasks of a durable handler: names, cancellations, what outlives it, and errors in groups."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from command_bus import (
    BadStep,
    Command,
    CommandFailed,
    CommandRejected,
    DurableContext,
    EntityId,
    Event,
    GiveUp,
    Reject,
    RetryPolicy,
    Snooze,
    StepMismatch,
)
from command_bus.transport.steps import WORKER_LOST
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Flow, Refund, Reserve, Shop
from tests.conformance.put_service import until


class Refunded(Event, entity="account"):
    account: EntityId


class Plain(Command[str], entity="plain", retry=RetryPolicy(attempts=3, delay=0.01)):
    key: EntityId


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


@pytest.mark.promise("A run that has ended is over")
async def test_what_a_task_does_beside_a_failure_is_undone_after_it(sandbox: Sandbox, shop: Shop) -> None:
    """The charge is in flight when the handler fails: it is cut off or stored before the refund is sent."""

    begun = asyncio.Event()

    async def charge() -> None:
        begun.set()
        try:
            await asyncio.sleep(0.3)
        except asyncio.CancelledError:
            shop.log.append("cut off")
            await asyncio.sleep(0.2)  # the provider has it already
        shop.log.append("charged")

    @shop.script
    async def order(context: DurableContext) -> Any:
        context.compensate(Refund(account="a-1"))

        async def pay() -> None:
            await context.step("charge", charge)
            await context.call(Reserve(sku="s-1"), undo=Refund(account="a-2"))

        async def fail() -> None:
            await begun.wait()
            raise GiveUp("no carrier")

        await asyncio.gather(pay(), fail())

    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed, match="no carrier"):
            await bus.call(Flow(order="o-1"), timeout=20)
        await asyncio.sleep(0.5)
    assert shop.log == ["cut off", "charged", ("refund", "a-1")]


@pytest.mark.parametrize("what", ["step", "call", "sleep", "compensate"])
@pytest.mark.parametrize("key", [False, True])
async def test_a_name_that_two_tasks_use_has_a_key(sandbox: Sandbox, shop: Shop, what: str, key: bool) -> None:
    """Without one, the number of each would depend on which is faster, and a later run would swap their results."""
    given: list[list[Any]] = []

    @shop.script
    async def order(context: DurableContext) -> Any:
        runs = len(given)

        async def one(place: int) -> Any:
            name: Any = {"key": str(place)} if key else {}
            await asyncio.sleep(0.05 * (place if runs else 1 - place))
            match what:
                case "step":
                    return await context.step("work", shop.effect, "same" if not key else str(place), **name)
                case "call":
                    return await context.call(Reserve(sku="s-1", pieces=place if key else 1), **name)
                case "sleep":
                    return await context.sleep(0.01, **name)
                case _:
                    return context.compensate(Refund(account="a-1"), **name)

        given.append(await asyncio.gather(one(0), one(1)))
        await context.signal("go")
        return given[0] == given[-1]

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="o-1", keep_result=True)
        if key:
            await shop.suspended()
            await bus.commands.signal("o-1", "go")
            assert await bus.result("o-1", Flow, timeout=20) is True
        else:
            await until(lambda: _parked(bus))
            (letter,) = [letter async for letter in bus.dead_letters.list()]
            assert letter.error_type.endswith("BadStep")
            assert "key=" in letter.error_message


async def _parked(bus: Any) -> bool:
    return (await bus.commands.status("o-1")).state == "parked"


def _send(context: DurableContext, what: str) -> None:
    if what == "send":
        context.send(Refund(account="a-1"))
    else:
        context.publish(Refunded(account="a-1"))


@pytest.mark.parametrize("what", ["call", "step", "sleep", "signal", "timeout", "compensate", "send", "publish", "made before"])
async def test_the_function_of_a_step_does_not_use_the_context(sandbox: Sandbox, shop: Shop, what: str) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        made = context.call(Reserve(sku="s-1")) if what == "made before" else None

        async def work() -> None:
            match what:
                case "call":
                    await context.call(Reserve(sku="s-2"))
                case "step":
                    await context.step("inner", shop.effect, "inner")
                case "sleep":
                    await context.sleep(0.01)
                case "signal":
                    await context.signal("go")
                case "timeout":
                    async with context.timeout(1):
                        pass
                case "compensate":
                    context.compensate(Refund(account="a-1"))
                case "send" | "publish":
                    _send(context, what)
                case _:
                    assert made is not None
                    await made

        await context.step("outer", work)

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="o-1")
        await until(lambda: _parked(bus))
        (letter,) = [letter async for letter in bus.dead_letters.list()]
    assert "'outer#1'" in letter.error_message
    assert shop.log == []


@pytest.mark.parametrize("how", ["wait_for", "asyncio.timeout", "a cancelled task"])
async def test_a_wait_that_was_cancelled_takes_no_signal(sandbox: Sandbox, shop: Shop, how: str) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        try:
            match how:
                case "wait_for":
                    await asyncio.wait_for(context.signal("answer"), 0.1)
                case "asyncio.timeout":
                    async with asyncio.timeout(0.1):
                        await context.signal("answer")
                case _:
                    task = asyncio.ensure_future(context.signal("answer"))
                    await asyncio.sleep(0.1)
                    task.cancel()
        except TimeoutError:
            pass
        first = await context.signal("answer")
        return [first, await context.signal("answer")]

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="o-1", keep_result=True)
        await shop.suspended()
        await bus.commands.signal("o-1", "answer", 1)
        await bus.commands.signal("o-1", "answer", 2)
        assert await bus.result("o-1", Flow, timeout=20) == [1, 2]


ERRORS: dict[str, Any] = {
    "reject": Reject("no", code="no"),
    "give up": GiveUp("never"),
    "mismatch": StepMismatch("another"),
    "bad step": BadStep("bad"),
    "snooze": Snooze(0.01, most=1),
    "plain": ValueError("wrong"),
}


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("durable", [False, True])
async def test_an_error_in_a_group_means_what_it_means_alone(sandbox: Sandbox, shop: Shop, kind: str, durable: bool) -> None:
    starts: list[int] = []

    async def fails(deep: int) -> None:
        if deep == 0:
            raise ERRORS[kind]
        async with asyncio.TaskGroup() as group:
            group.create_task(fails(deep - 1))
            if kind in ("reject", "give up", "mismatch", "bad step"):
                group.create_task(_beside())

    async def _beside() -> None:
        raise KeyError("beside")

    @shop.script
    async def order(context: DurableContext) -> Any:
        starts.append(1)
        context.compensate(Refund(account="a-1"))
        await fails(2)

    @sandbox.registry.handles(Plain)
    async def plain(command: Plain) -> str:
        starts.append(1)
        await fails(2)
        return ""

    parks = durable and kind in ("mismatch", "bad step")
    async with sandbox.bus() as bus, bus.worker():
        command: Any = Flow(order="o-1") if durable else Plain(key="a")
        await bus.dispatch(command, command_id="o-1", keep_result=True)
        if parks:
            await until(lambda: _parked(bus))
        else:
            with pytest.raises(CommandRejected if kind == "reject" else CommandFailed):
                await bus.result("o-1", type(command), timeout=20)
        letters = [letter async for letter in bus.dead_letters.list()]
    assert len(starts) == {"plain": 3, "snooze": 4}.get(kind, 1)
    assert [kind == "reject", kind == "plain"] == [
        not letters,
        "ValueError: wrong" in "".join(each.error_message for each in letters),
    ]
    assert all(each.error_type.endswith((type(ERRORS[kind]).__name__, "ExceptionGroup")) for each in letters)
    assert shop.count(("refund", "a-1")) == (0 if parks or not durable else 1)


@pytest.mark.promise("A run that has ended is over")
async def test_a_context_that_is_over_sends_nothing(sandbox: Sandbox, shop: Shop) -> None:
    """Of a plain command as of a durable one: its task has outlived it, and the next command of the entity runs."""
    errors: list[str] = []
    over = asyncio.Event()

    @shop.script
    async def order(context: DurableContext) -> Any:
        async def later() -> None:
            await over.wait()
            for use in (
                lambda: context.send(Refund(account="a-1")),
                lambda: context.publish(Refunded(account="a-1")),
                lambda: context.progress(0.5),
                lambda: context.log("late"),
                lambda: context.compensate(Refund(account="a-1")),
            ):
                try:
                    use()
                except BaseException as error:
                    errors.append(type(error).__name__)
            for work in (lambda: context.dispatch(Refund(account="a-1")), lambda: context.call(Reserve(sku="s-1"))):
                try:
                    await work()
                except BaseException as error:
                    errors.append(type(error).__name__)

        shop.context = asyncio.create_task(later())

    async with sandbox.bus() as bus, bus.worker():
        await bus.call(Flow(order="o-1"), timeout=20)
        over.set()
        await shop.context
    assert errors == [
        "CancelledError",
        "CancelledError",
        "HandlerOver",
        "HandlerOver",
        "CancelledError",
        "HandlerOver",
        "CancelledError",
    ]
    assert shop.log == []


@pytest.mark.parametrize("way", ["direct", "gather"])
async def test_a_run_that_was_interrupted_ends_where_it_finds_its_lease_lost(sandbox: Sandbox, shop: Shop, way: str) -> None:
    """A lease interrupts its handler once. A step that goes on all the same finds that it may not store what it returns."""
    begun, ended = asyncio.Event(), asyncio.Event()
    leases: list[Any] = []

    async def charge() -> None:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

    @shop.script
    async def order(context: DurableContext) -> Any:
        operations: Any = context._operations
        leases.append(operations._run.lease)
        step = context.step("charge", charge)
        try:
            await (step if way == "direct" else asyncio.gather(step))
        finally:
            ended.set()

    async with sandbox.bus(grace=0.2) as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"))
        await asyncio.wait_for(begun.wait(), 10)
        for key in await sandbox.keys():
            if key.endswith(":active"):
                await _forget(sandbox, key)
        leases[0].cancel(WORKER_LOST)
        await asyncio.wait_for(ended.wait(), 5)


async def test_a_task_that_enters_a_time_limit_is_in_flight(sandbox: Sandbox, shop: Shop) -> None:
    """It stores when that is over; so it is waited for, and enters nothing once its handler is over."""
    log: list[str] = []

    @shop.script
    async def order(context: DurableContext) -> Any:
        async def limited() -> None:
            try:
                async with context.timeout(60):
                    log.append("entered")
            finally:
                log.append("ended")

        task = asyncio.create_task(limited())
        await asyncio.sleep(0)
        shop.log.append(task)
        return 1

    async with sandbox.bus() as bus, bus.worker():
        assert await bus.call(Flow(order="o-1"), timeout=10) == 1
        assert shop.log[0].done()
    assert log == ["ended"]


async def _forget(sandbox: Sandbox, key: str) -> None:
    """Take its lease from a command, as if another worker had it."""
    client = sandbox.client(int(key.partition("}")[0].rpartition(":")[2]))
    await client.hdel(key, "order:o-1")  # type: ignore[misc]
    await client.aclose()
