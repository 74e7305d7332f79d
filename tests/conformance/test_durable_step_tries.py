"""Between two tries of a step its command holds no slot and hears a cancel; on a test bus the time is virtual."""

from __future__ import annotations

import asyncio
import time

import pytest

from command_bus import (
    Command,
    CommandBus,
    CommandCancelled,
    DurableContext,
    EntityId,
    HandlerRegistry,
    RetryPolicy,
)
from command_bus.testing import TestBus
from command_bus.transport.redis.memory import MemoryClients

POLICY = RetryPolicy(attempts=4, delay=600.0, factor=1.0, max_delay=600.0, jitter=0)


class Pay(Command[int], entity="order", durable=True):
    order: EntityId


class Look(Command[str], entity="shelf"):
    shelf: EntityId


class Card:
    """A card that is refused so many times."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.tries = 0
        self.tried = asyncio.Event()

    async def charge(self) -> int:
        """Charge it."""
        self.tries += 1
        self.tried.set()
        if self.tries <= self.refusals:
            raise ConnectionError("no answer")
        return self.tries


def shop(card: Card) -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handles(Pay)
    async def pay(command: Pay, context: DurableContext) -> int:
        return await context.step("charge", card.charge, retry=POLICY)

    @registry.handles(Look)
    async def look(command: Look) -> str:
        return "seen"

    return registry


async def test_a_cancel_is_heard_between_two_tries() -> None:
    card = Card(9)
    async with CommandBus(clients=MemoryClients(), registry=shop(card)) as bus, bus.worker():
        receipt = await bus.dispatch(Pay(order="o-1"), keep_result=True)
        await asyncio.wait_for(card.tried.wait(), 10)
        assert await bus.commands.cancel(receipt.command_id, running=True, reason="too late")
        with pytest.raises(CommandCancelled, match="too late"):
            await bus.result(receipt.command_id, Pay, timeout=10)
        assert card.tries == 1


async def test_a_slot_is_lent_between_two_tries() -> None:
    card = Card(9)
    async with CommandBus(clients=MemoryClients(), registry=shop(card), concurrency=1) as bus, bus.worker():
        receipt = await bus.dispatch(Pay(order="o-1"))
        await asyncio.wait_for(card.tried.wait(), 10)
        assert await bus.call(Look(shelf="s-1"), timeout=10) == "seen"
        await bus.commands.cancel(receipt.command_id, running=True)


async def test_on_a_test_bus_the_time_between_tries_is_virtual() -> None:
    card, began = Card(3), time.monotonic()
    async with TestBus(shop(card)) as bus:
        assert await bus.call(Pay(order="o-1"), timeout=7200) == 4
        assert time.monotonic() - began < 8
