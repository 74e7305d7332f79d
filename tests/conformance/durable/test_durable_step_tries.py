"""Between two tries of a step its command holds no slot and hears a cancel; if that is long it is suspended. On a test bus the time is virtual."""

from __future__ import annotations

import asyncio
import time
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
from command_bus.testing import TestBus
from command_bus.transport.redis.memory import MemoryClients
from tests.conformance.put_service import until

POLICY = RetryPolicy(attempts=4, delay=600.0, factor=1.0, max_delay=600.0, jitter=0)


LONG = RetryPolicy(attempts=3, delay=1.1, factor=1.0, jitter=0)


class Pay(Command[int], entity="order", durable=True, retry=RetryPolicy(attempts=2, delay=0.01, jitter=0)):
    order: EntityId
    in_task: bool = False


class Look(Command[str], entity="shelf"):
    shelf: EntityId


class Card:
    """A card that is refused so many times."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.times: list[float] = []
        self.tried = asyncio.Event()

    @property
    def tries(self) -> int:
        return len(self.times)

    async def charge(self) -> int:
        """Charge it."""
        self.times.append(time.monotonic())
        self.tried.set()
        if self.tries <= self.refusals:
            raise ConnectionError("no answer")
        return self.tries


def shop(card: Card, policy: RetryPolicy = POLICY) -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handles(Pay)
    async def pay(command: Pay, context: DurableContext) -> int:
        charging = context.step("charge", card.charge, retry=policy)
        return (await asyncio.gather(charging))[0] if command.in_task else await charging

    @registry.handles(Look)
    async def look(command: Look) -> str:
        return "seen"

    return registry


@pytest.mark.parametrize(("delay", "most"), [(0.9, 4), (600.0, 1)], ids=["in place", "suspended"])
async def test_a_cancel_is_heard_between_two_tries(delay: float, most: int) -> None:
    """Within a second or two; a pause in place may end before that."""
    card = Card(9)
    registry = shop(card, RetryPolicy(attempts=10, delay=delay, factor=1.0, jitter=0))
    async with CommandBus(clients=MemoryClients(), registry=registry) as bus, bus.worker():
        receipt = await bus.dispatch(Pay(order="o-1"), keep_result=True)
        await asyncio.wait_for(card.tried.wait(), 10)
        assert await bus.commands.cancel(receipt.command_id, running=True, reason="too late")
        with pytest.raises(CommandCancelled, match="too late"):
            await bus.result(receipt.command_id, Pay, timeout=10)
        assert card.tries <= most


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


async def suspended(bus: CommandBus, receipt: Any) -> None:
    async def is_there() -> bool:
        return (await bus.commands.status(receipt.command_id)).state == "suspended"

    await until(is_there)


async def test_a_long_pause_is_a_suspension_and_the_tries_go_on_elsewhere() -> None:
    card = Card(2)
    async with CommandBus(clients=MemoryClients(), registry=shop(card, LONG)) as bus:
        receipt = await bus.dispatch(Pay(order="o-1"), keep_result=True)
        async with bus.worker():
            await suspended(bus, receipt)
        assert card.tries == 1
        async with bus.worker():
            assert await receipt.result(timeout=10) == 3
    assert card.tries == 3


async def test_a_long_pause_is_as_long_where_its_worker_leaves() -> None:
    """In a task of its own the command stays with its worker, which hands it back in the midst of the pause."""
    card = Card(1)
    async with CommandBus(clients=MemoryClients(), registry=shop(card, LONG)) as bus:
        receipt = await bus.dispatch(Pay(order="o-1", in_task=True), keep_result=True)
        async with bus.worker(grace=0):
            await asyncio.wait_for(card.tried.wait(), 10)
            await asyncio.sleep(0.3)
        async with bus.worker():
            assert await receipt.result(timeout=10) == 2
    assert card.times[1] - card.times[0] > LONG.delay - 0.1


async def test_tries_that_were_stored_are_not_begun_again() -> None:
    """The command is retried as well: each of its attempts behind the last try is one try."""
    card = Card(99)
    async with CommandBus(clients=MemoryClients(), registry=shop(card, LONG)) as bus, bus.worker():
        receipt = await bus.dispatch(Pay(order="o-1"), keep_result=True)
        with pytest.raises(CommandFailed, match="no answer"):
            await receipt.result(timeout=10)
    assert card.tries == LONG.attempts + 1


async def test_a_cancel_ends_a_long_pause_that_has_no_worker() -> None:
    card = Card(99)
    async with CommandBus(clients=MemoryClients(), registry=shop(card)) as bus, bus.worker():
        receipt = await bus.dispatch(Pay(order="o-1"), keep_result=True)
        await suspended(bus, receipt)
        assert await bus.commands.cancel(receipt.command_id, running=True, reason="too late")
        with pytest.raises(CommandCancelled, match="too late"):
            await receipt.result(timeout=10)
    assert card.tries == 1
