"""Durable handlers on a test bus: crashes at steps, and sleeps of months."""

from __future__ import annotations

import time
from typing import Any

import pytest

from command_bus import Command, DurableContext, EntityId, HandlerRegistry
from command_bus.testing import TestBus

MONTH = 30 * 86_400


class Reserve(Command[int], entity="stock"):
    sku: EntityId


class Order(Command[str], entity="order", durable=True):
    order: EntityId


def shop(log: list[str]) -> HandlerRegistry:
    registry = HandlerRegistry()

    async def charge(pieces: int) -> int:
        log.append("charge")
        return pieces * 2

    @registry.handles(Reserve)
    async def reserve(_: Reserve) -> int:
        log.append("reserve")
        return 3

    @registry.handles(Order)
    async def order(command: Order, context: DurableContext) -> str:
        log.append("run")
        pieces = await context.call(Reserve(sku="s-1"))
        paid = await context.step("charge", charge, pieces)
        await context.sleep(MONTH)
        approved = await context.signal("approved", timeout=MONTH, returns=bool)
        return f"{pieces} {paid} {approved}"

    return registry


@pytest.mark.parametrize(
    ("point", "charges"), [("call:Reserve", 1), ("ran:charge", 2), ("step:charge", 1), ("claimed", 1), ("handled", 1)]
)
async def test_a_worker_crashes_at_a_step(point: Any, charges: int) -> None:
    log: list[str] = []
    async with TestBus(shop(log)) as bus:
        bus.crash_after(point, Order)
        await bus.dispatch(Order(order="o-1"), command_id="o-1")
        await bus.advance(MONTH + 60)
        await bus.bus.commands.signal("o-1", "approved", True)
        await bus.run_until_idle()
        assert await bus.bus.result("o-1", Order) == "3 6 True"
        assert bus.crashed == 1
        bus.assert_dispatched(Reserve, sku="s-1")
    assert (log.count("charge"), log.count("reserve")) == (charges, 1)


async def test_a_month_passes_at_once() -> None:
    began, log = time.monotonic(), list[str]()
    async with TestBus(shop(log)) as bus:
        await bus.dispatch(Order(order="o-1"), command_id="o-1")
        await bus.advance(MONTH - 60)
        assert log.count("run") == 1, "it sleeps"
        await bus.advance(120)
        assert log.count("run") == 2, "it waits for the signal"
        await bus.run_until_idle(horizon=3 * MONTH)
        letters = [letter async for letter in bus.bus.dead_letters.list()]
    assert [letter.error_type for letter in letters] == ["TimeoutError"]
    assert time.monotonic() - began < 20


async def test_what_waits_for_a_signal_is_idle() -> None:
    registry = HandlerRegistry()

    @registry.handles(Order)
    async def order(command: Order, context: DurableContext) -> str:
        return str(await context.signal("go", returns=str))

    async with TestBus(registry) as bus:
        await bus.dispatch(Order(order="o-1"), command_id="o-1")
        await bus.run_until_idle()
        await bus.bus.commands.signal("o-1", "go", "on")
        await bus.run_until_idle()
        assert await bus.bus.result("o-1", Order) == "on"


async def test_what_is_not_idle_says_who_waits_for_what() -> None:
    registry = HandlerRegistry()

    @registry.handles(Order)
    async def order(command: Order, context: DurableContext) -> str:
        await context.first(context.signal("packed"), context.sleep(MONTH))
        return "done"

    async with TestBus(registry) as command_bus:
        await command_bus.dispatch(Order(order="o-1"))
        with pytest.raises(AssertionError, match=r"virtual seconds: order:o-1 waits for the signal packed$"):
            await command_bus.run_until_idle()
