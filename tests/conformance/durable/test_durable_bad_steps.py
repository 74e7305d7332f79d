"""Steps that a durable handler cannot do, and signals that cannot be: a typed error, no retry, and the entity is parked with its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from command_bus import (
    BadStep,
    CallCycle,
    Command,
    CommandBus,
    CommandFailed,
    CommandRejected,
    DurableContext,
    EntityId,
    InvalidCommand,
    Reject,
    RetryPolicy,
    UnknownCommand,
)
from command_bus.durable import names
from command_bus.transport.redis.durable import lost_outcomes
from tests.conformance.conftest import Sandbox

Body = Callable[[DurableContext], Awaitable[Any]]


class Order(Command[Any], entity="order", durable=True, retry=RetryPolicy(attempts=3, delay=0.01, jitter=0)):
    order: EntityId


class Plain(Command[int], entity="order"):
    order: EntityId


class PutBack(Command[None], entity="stock"):
    stock: EntityId


class Other(Command[int], entity="other"):
    other: EntityId
    pieces: int = 1


async def failing(bus: CommandBus) -> CommandFailed:
    """Return what the caller of an order gets; it parks its entity, whose next command runs once the letter is discarded."""
    with pytest.raises(CommandFailed) as failed:
        await bus.call(Order(order="o-1"), timeout=10)
    letter = await anext(bus.dead_letters.list())
    assert letter.parked
    await bus.dead_letters.discard(letter.id)
    assert await bus.call(Plain(order="o-1"), timeout=10) == 1
    return failed.value


def handled(sandbox: Sandbox, *bodies: Body) -> list[int]:
    """Register handlers: each run of an order has the next body, and the last again and again. Return the runs."""
    runs: list[int] = []

    @sandbox.registry.handles(Order)
    async def order(command: Order, context: DurableContext) -> Any:
        runs.append(context.attempt)
        return await bodies[min(len(runs), len(bodies)) - 1](context)

    @sandbox.registry.handles(Plain)
    async def plain(command: Plain) -> int:
        return 1

    @sandbox.registry.handles(Other)
    async def other(command: Other) -> int:
        return 1

    return runs


@pytest.mark.parametrize("name", ["", "a b", "x" * 512, "zu groß"], ids=["empty", "space", "long", "not ASCII"])
@pytest.mark.parametrize("what", ["step", "key", "signal"])
async def test_124_a_name_that_cannot_be(sandbox: Sandbox, what: str, name: str) -> None:
    async def body(context: DurableContext) -> Any:
        if what == "signal":
            return await context.signal(name)
        return await (context.step("s", str, key=name) if what == "key" else context.step(name, str))

    runs = handled(sandbox, body)
    async with sandbox.bus() as bus, bus.worker():
        assert "200 printable" in str(await failing(bus))
    assert runs == [1]


async def test_124_one_signal_is_not_awaited_twice_at_a_time(sandbox: Sandbox) -> None:
    async def body(context: DurableContext) -> Any:
        return await context.all(context.signal("packed"), context.signal("packed"))

    runs = handled(sandbox, body)
    async with sandbox.bus() as bus, bus.worker():
        assert "twice at a time" in str(await failing(bus))
    assert runs == [1]


@pytest.mark.parametrize("part", ["argument", "result", "type"])
async def test_125_what_cannot_be_stored(sandbox: Sandbox, part: str) -> None:
    async def first(context: DurableContext) -> Any:
        if part == "argument":
            return await context.step("pack", str, object())
        if part == "result":
            return await context.step("pack", object)
        await context.step("pack", lambda: "a text", returns=str)
        raise ValueError("the light went out")

    async def then(context: DurableContext) -> Any:
        return await (context.step("pack", lambda: 1, returns=int) if part == "type" else first(context))

    runs = handled(sandbox, first, then)
    async with sandbox.bus() as bus, bus.worker():
        assert "pack" in str(await failing(bus))
    assert len(runs) == (2 if part == "type" else 1)


@pytest.mark.parametrize("what", ["step", "call"])
async def test_126_something_else_under_a_known_name(sandbox: Sandbox, what: str) -> None:
    done: list[int] = []

    async def body(context: DurableContext) -> Any:
        number = len(runs)
        await (context.step("pack", done.append, number) if what == "step" else context.call(Other(other="1", pieces=number)))
        raise ValueError("the light went out")

    runs = handled(sandbox, body)
    async with sandbox.bus() as bus, bus.worker():
        assert "something else under this name" in str(await failing(bus))
    assert len(runs) == 2
    assert done == ([1] if what == "step" else [])


async def test_127_a_call_of_the_own_entity(sandbox: Sandbox) -> None:
    async def body(context: DurableContext) -> Any:
        with pytest.raises(InvalidCommand, match="leave command_id out"):
            await context.call(Other(other="1"), command_id="mine")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        with pytest.raises(CallCycle):
            await context.call(Plain(order="o-1"))
        return "refused"

    handled(sandbox, body)
    async with sandbox.bus() as bus, bus.worker():
        assert await bus.call(Order(order="o-1"), timeout=10) == "refused"


async def test_128_signals_beyond_the_most_are_refused_and_harm_nobody(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_outcomes, "MOST_OTHER_SIGNALS", 4)
    monkeypatch.setattr(lost_outcomes, "MOST_OTHER_SIGNAL_BYTES", 2_000)
    monkeypatch.setattr(names, "MOST_FIELDS", 6)
    undone: list[str] = []

    async def body(context: DurableContext) -> Any:
        context.compensate(PutBack(stock="s-1"))
        await context.signal("last")
        raise Reject("all came")

    handled(sandbox, body)

    @sandbox.registry.handles(PutBack)
    async def put_back(command: PutBack) -> None:
        undone.append(str(command.stock))

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Order(order="o-1"), command_id="order-1")
        for number in range(4):
            with pytest.raises(BadStep, match="takes no further signal 'other'"):
                await bus.commands.signal("order-1", "other", "x" * 3_000)
            assert await bus.commands.signal("order-1", "other", number, signal_id=f"{number}")
        for name in ("other", "another"):
            with pytest.raises(BadStep, match=f"takes no further signal '{name}'"):
                await bus.commands.signal("order-1", name, 5)
        assert await bus.commands.signal("order-1", "last")
        with pytest.raises(CommandRejected, match="all came"):
            await bus.result("order-1", Order, timeout=10)
    assert undone == ["s-1"]


@pytest.mark.promise("A durable wait holds no worker")
async def test_128_a_signal_that_cannot_be(sandbox: Sandbox) -> None:
    async def body(context: DurableContext) -> Any:
        return await context.signal("packed")

    handled(sandbox, body)
    async with sandbox.bus() as bus, bus.worker():
        waiting = asyncio.create_task(bus.call(Order(order="o-1"), command_id="order-1", timeout=10))
        with pytest.raises(UnknownCommand):
            await bus.commands.signal("unknown", "packed")
        with pytest.raises(BadStep):
            await bus.commands.signal("order-1", "a b")
        with pytest.raises(BadStep):
            await bus.commands.signal("order-1", "packed", object())
        while not await signalled(bus, "order-1"):
            await asyncio.sleep(0.01)
        assert await waiting == 7
        with pytest.raises(UnknownCommand):
            await bus.commands.signal("order-1", "packed", 8)


async def signalled(bus: CommandBus, command_id: str) -> bool:
    """Signal a command as soon as it is accepted; return whether it was."""
    try:
        return await bus.commands.signal(command_id, "packed", 7)
    except UnknownCommand:
        return False
