"""Chains of commands that send each other: how long they may be, and calls into another namespace."""

from __future__ import annotations

import asyncio

import pytest

from command_bus import (
    CallCycle,
    Command,
    CommandBus,
    CommandContext,
    DurableContext,
    EntityId,
    Event,
    HandlerRegistry,
    RetryPolicy,
    every,
)
from command_bus.errors import InvalidSettings
from command_bus.workflows import chain
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until

ONCE = RetryPolicy(attempts=1)


class Ping(Command[int], entity="ping", retry=ONCE):
    ping: EntityId
    way: str = "dispatch"
    left: int = 1_000_000


class Root(Command[list[str]], entity="root", durable=True, retry=ONCE):
    root: EntityId


class Hop(Command[str], entity="order", retry=ONCE):
    order: EntityId
    to: str = ""


class Heard(Event, entity="order", name="order.heard"):
    order: EntityId
    number: int


class Say(Command[None], entity="order", retry=ONCE):
    order: EntityId
    number: int


def service(hops: list[str]) -> HandlerRegistry:
    """Return handlers that send the next command, and note the hops of each."""
    registry = HandlerRegistry()

    @registry.handles(Ping)
    async def ping(command: Ping, context: CommandContext) -> int:
        hops.append(context.headers.get("hops", "0"))
        if not command.left:
            return len(hops)
        following = Ping(ping=f"p{len(hops)}", way=command.way, left=command.left - 1)
        match command.way:
            case "send":
                context.send(following)
            case "call":
                return await context.call(following, timeout=20)
            case "batch":
                result = await context.bus.dispatch_batch([following])  # type: ignore[union-attr]
                result.raise_for_rejected()
            case "delayed":
                await context.dispatch(following, delay=0.001, headers=context.headers)
            case _:
                await context.dispatch(following, headers=context.headers)
        return 0

    return registry


@pytest.mark.parametrize("way", ["dispatch", "send", "batch", "call"])
async def test_212_a_chain_that_does_not_end_is_ended(sandbox: Sandbox, way: str) -> None:
    hops: list[str] = []
    async with sandbox.bus(registry=service(hops), max_hops=20) as bus, bus.worker():
        if way == "call":
            with pytest.raises(CallCycle, match="a chain of 21 commands, none delayed"):
                await bus.call(Ping(ping="p0", way=way), timeout=20)
        else:
            await bus.dispatch(Ping(ping="p0", way=way))
        await bus.wait_idle(20)
        letters = [each async for each in bus.dead_letters.list()]
        assert hops == [str(number) for number in range(21)]
        assert {each.error_type for each in letters} == {"command_bus.errors.CallCycle"}
        assert [each for each in letters if "max_hops=20" in each.error_message]


@pytest.mark.parametrize("way", ["context", "bus", "chain"])
async def test_events_that_cause_each_other_are_ended(sandbox: Sandbox, way: str) -> None:
    """personium-core 123, home-assistant core 173519: an event whose handler publishes it again."""
    seen: list[int] = []

    @sandbox.registry.subscribes("echo", Heard, retry=ONCE)
    async def echo(event: Heard, context: CommandContext) -> None:
        seen.append(event.number)
        again = Heard(order="o-1", number=event.number + 1)
        if way == "context":
            context.publish(again)
        elif way == "bus":
            await context.bus.publish(again)  # type: ignore[union-attr]
        else:
            await context.bus.dispatch(chain(Say(order="o-1", number=event.number + 1)))  # type: ignore[union-attr]

    @sandbox.registry.handles(Say)
    async def say(command: Say, context: CommandContext) -> None:
        context.publish(Heard(order="o-1", number=command.number))

    async with sandbox.bus(max_hops=20) as bus, bus.worker():
        await bus.sender.subscriptions.declare(sandbox.registry)
        await bus.publish(Heard(order="o-1", number=0))
        await bus.wait_idle(20)
        letters = [each async for each in bus.dead_letters.list()]
        assert {each.error_type for each in letters} == {"command_bus.errors.CallCycle"}
        assert seen == list(range(7 if way == "chain" else 21))


async def test_delayed_commands_and_firings_begin_again(sandbox: Sandbox) -> None:
    hops: list[str] = []
    registry = service(hops)

    @registry.handles(Hop)
    async def order(command: Hop, context: CommandContext) -> str:
        await context.bus.schedules.put("ping", Ping(ping="s", left=0), every(3600))  # type: ignore[union-attr]
        await context.bus.schedules.trigger("ping")  # type: ignore[union-attr]
        return context.headers.get("hops", "0")

    async with sandbox.bus(registry=registry, max_hops=3) as bus, bus.worker():
        await bus.dispatch(Ping(ping="p0", way="delayed", left=8))
        await bus.wait_idle(20)
        assert hops == ["0"] * 9
        hops.clear()
        assert await bus.call(Hop(order="o"), headers={"hops": "2"}) == "2"
        await until(lambda: hops)
        assert hops == ["0"]
        assert await bus.call(Ping(ping="x", left=0), headers={"hops": "many"}) == 2
        await bus.dispatch(Ping(ping="y", way="dispatch", left=0), headers={"hops": "9" * 30})
        await bus.wait_idle(20)
        assert (await bus.stats()).dead_letters == 0


async def test_what_a_durable_handler_calls_counts_one_more_each_time(sandbox: Sandbox) -> None:
    hops: list[str] = []
    registry = service(hops)

    @registry.handles(Root)
    async def root(command: Root, context: DurableContext) -> list[str]:
        for number in range(5):
            await context.call(Ping(ping=f"p{number}", left=0))
        return list(hops)

    async with sandbox.bus(registry=registry, max_hops=3) as bus, bus.worker():
        assert await bus.call(Root(root="r"), timeout=20) == ["1"] * 5


async def test_entities_of_two_namespaces_may_have_one_name(sandbox: Sandbox) -> None:
    """A call from order:o-1 of one service to order:o-1 of another is no circle; one that goes round is found by its hops or its timeout."""
    ran: list[str] = []

    def orders(name: str, buses: dict[str, CommandBus]) -> HandlerRegistry:
        registry = HandlerRegistry()

        @registry.handles(Hop)
        async def order(command: Hop, context: CommandContext) -> str:
            ran.append(f"{name} {context.headers.get('hops', '0')}")
            if command.to == "round":
                other = buses["warehouse" if name == "shop" else "shop"]
                await other.dispatch(Hop(order=command.order, to="round"))
            elif command.to:
                return await buses[command.to].call(Hop(order=command.order), timeout=5)
            return name

        return registry

    buses: dict[str, CommandBus] = {}
    shop, warehouse = sandbox, Sandbox(sandbox.name, sandbox.clients, url=sandbox.url)
    try:
        async with (
            shop.bus(registry=orders("shop", buses), max_hops=5) as one,
            warehouse.bus(registry=orders("warehouse", buses), max_hops=5) as two,
            one.worker(),
            two.worker(),
        ):
            buses |= {"shop": one, "warehouse": two}
            assert await one.call(Hop(order="o-1", to="warehouse"), timeout=10) == "warehouse"
            assert ran == ["shop 0", "warehouse 1"]
            ran.clear()
            with pytest.raises(CallCycle, match="which it holds itself"):
                await one.call(Hop(order="o-1", to="shop"), timeout=10)
            ran.clear()
            await one.dispatch(Hop(order="o-2", to="round"))
            await asyncio.sleep(0.2)
            await one.wait_idle(10)
            await two.wait_idle(10)
            assert ran == ["shop 0", "warehouse 1", "shop 2", "warehouse 3", "shop 4", "warehouse 5"]
            (letter,) = [each async for each in two.dead_letters.list()]
            assert letter.error_type == "command_bus.errors.CallCycle"
    finally:
        await warehouse.clean()


async def test_213_a_header_that_is_no_number_of_hops_counts_as_none(sandbox: Sandbox) -> None:
    hops: list[str] = []
    odd = ["x", "-1", "", "1.5", "1e3", "\u0663", "\u00b2", "9" * 5000, "\n1", "+1", "1 "]
    async with sandbox.bus(registry=service(hops), max_hops=20) as bus, bus.worker():
        for number, header in enumerate(odd):
            hops.clear()
            await bus.call(Ping(ping=f"odd-{number}", way="send", left=1), headers={"hops": header}, timeout=20)
            await bus.wait_idle(20)
            assert (hops[0], hops[1] in ("1", "4")) == (header, True), header
        assert not [each async for each in bus.dead_letters.list()]


def test_the_setting_is_checked() -> None:
    with pytest.raises(InvalidSettings, match="max_hops"):
        CommandBus("redis://unused", max_hops=0)
    assert CallCycle("x").code == "call_cycle"
