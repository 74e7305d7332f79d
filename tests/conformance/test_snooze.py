"""Handlers that put their command off, and handlers that give it up, over every transport on Redis."""

from __future__ import annotations

import asyncio
import math
import pickle
from typing import Any

import pytest

from command_bus import (
    Command,
    CommandContext,
    CommandFailed,
    CommandTimeout,
    EntityId,
    GiveUp,
    InvalidSettings,
    RetryPolicy,
    Snooze,
)
from command_bus.admin.events import BEGINNING
from tests.conformance.conftest import Sandbox

ONCE = RetryPolicy(attempts=1)
QUICK = RetryPolicy(attempts=2, delay=0.0)


class Sync(Command[int], entity="shop", retry=QUICK):
    shop: EntityId
    number: int = 0


class Pay(Command[int], entity="shop", delivery="at_most_once"):
    shop: EntityId


class Close(Command[None], entity="shop", retry=RetryPolicy(attempts=9), on_poison="park"):
    shop: EntityId


class Partner:
    """A partner that is busy so often, and what it was asked."""

    def __init__(self, sandbox: Sandbox, snooze: Snooze | None = None, busy: int = 0) -> None:
        self.asked: list[tuple[str, int]] = []
        self.snooze, self.busy = snooze, busy

        @sandbox.registry.handles(Sync)
        async def sync(command: Sync, context: CommandContext) -> int:
            self.asked.append((f"sync {command.number}", context.attempt))
            self.answer(command.number)
            return command.number

        @sandbox.registry.handles(Pay)
        def pay(command: Pay, context: CommandContext) -> int:
            self.asked.append(("pay", context.attempt))
            self.answer(0)
            return 7

        @sandbox.registry.handles(Close)
        async def close(command: Close, context: CommandContext) -> None:
            self.asked.append(("close", context.attempt))
            raise GiveUp("no such shop") from KeyError("s-1")

    def answer(self, number: int) -> None:
        if number == 0 and len(self.asked) <= self.busy:
            assert self.snooze is not None
            raise self.snooze


async def test_a_command_is_put_off_in_place_and_uses_no_attempt(sandbox: Sandbox) -> None:
    partner = Partner(sandbox, Snooze(0.02, most=30), 25)
    async with sandbox.bus() as bus:
        await bus.dispatch_batch([Sync(shop="s-1", number=number) for number in range(3)])
        async with bus.worker():
            await bus.wait_idle(20)
            stats = await bus.stats()
    assert partner.asked == [("sync 0", 1)] * 26 + [("sync 1", 1), ("sync 2", 1)]
    assert (stats.snoozed, stats.retried, stats.handed_back, stats.completed) == (25, 0, 0, 3)


async def test_other_entities_go_on_meanwhile(sandbox: Sandbox) -> None:
    partner = Partner(sandbox, Snooze(30), 1)
    async with sandbox.bus(concurrency=1) as bus, bus.worker():
        await bus.dispatch(Sync(shop="s-1"))
        assert await bus.call(Sync(shop="s-2", number=2), timeout=5) == 2
        assert partner.asked == [("sync 0", 1), ("sync 2", 1)]
        await bus.cancel(await put_off_id(bus))


async def put_off_id(bus: Any) -> str:
    details = await bus.entity("shop", "s-1").show()
    assert details.entity.state == "snoozed"
    return str(details.head.command_id)


async def test_once_too_often_is_a_failure_which_is_retried_and_then_dead_lettered(sandbox: Sandbox) -> None:
    partner = Partner(sandbox, Snooze(0.0, most=2, reason="429"), 99)
    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed, match=r"put off 2 times, which is the most; then again for 0 s: 429") as caught:
            await bus.call(Sync(shop="s-1"), timeout=10)
        (letter,) = [each async for each in bus.dead_letters.list()]
    assert partner.asked == [("sync 0", 1)] * 3 + [("sync 0", 2)]
    assert caught.value.attempts == 2
    assert (letter.reason, letter.error_type.rpartition(".")[2], letter.attempts) == ("failed", "Snooze", 2)
    assert letter.first_started_ms <= letter.failed_ms


async def test_an_at_most_once_command_starts_again_because_its_handler_says_so(sandbox: Sandbox) -> None:
    partner = Partner(sandbox, Snooze(0.01), 2)
    async with sandbox.bus() as bus, bus.worker():
        assert await bus.call(Pay(shop="s-1"), timeout=10) == 7
    assert partner.asked == [("pay", 1)] * 3


async def test_what_was_put_off_is_not_expired_when_it_wakes(sandbox: Sandbox) -> None:
    partner = Partner(sandbox, Snooze(0.6), 1)
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Sync(shop="s-1"), expires=0.3, command_id="late")
        assert await bus.result("late", Sync, timeout=10) == 0
        assert (await bus.stats()).expired == 0
    assert partner.asked == [("sync 0", 1)] * 2


async def test_a_worker_that_does_not_know_it_leaves_it_to_another_although_it_is_old(sandbox: Sandbox) -> None:
    partner = Partner(sandbox, Snooze(1.2), 1)
    async with sandbox.bus(unknown_grace=1.0) as bus:
        async with bus.worker():
            await bus.dispatch(Sync(shop="s-1"), command_id="old")
            await until(lambda: partner.asked)
            await until_state(bus, "snoozed")
        other = Sandbox(sandbox.name, sandbox.clients, namespace=sandbox.namespace)
        async with other.bus(unknown_grace=1.0) as stranger, stranger.worker():
            await until_state(bus, "retrying")  # its grace begins with the wake, not with the first start
            assert (await bus.stats()).dead_letters == 0
        async with bus.worker():
            assert await bus.result("old", Sync, timeout=10) == 0


async def until(condition: Any) -> Any:
    async with asyncio.timeout(15):
        while not condition():
            await asyncio.sleep(0.005)


async def until_state(bus: Any, state: str) -> None:
    async with asyncio.timeout(15):
        while (await bus.entity("shop", "s-1").show()).entity.state != state:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("seconds", [-1, -0.001, math.nan, math.inf, 366 * 86_400, True, "60", None], ids=str)
async def test_58_a_snooze_of_no_possible_time_fails_the_command_with_the_reason(sandbox: Sandbox, seconds: Any) -> None:
    asked: list[str] = []

    @sandbox.registry.handles(Sync)
    async def sync(command: Sync) -> int:
        asked.append(str(command.number))
        if command.number == 0:
            raise Snooze(seconds)
        return command.number

    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed, match="a number of seconds from 0 to 31,536,000, a year"):
            await bus.call(Sync(shop="s-1"), timeout=10, retry=ONCE)
        assert await bus.call(Sync(shop="s-1", number=1), timeout=10) == 1
        (letter,) = [each async for each in bus.dead_letters.list()]
        assert "InvalidSettings" in letter.error_type
        assert (await bus.stats()).snoozed == 0
    assert asked == ["0", "1"]


@pytest.mark.parametrize("most", [0, -1, 1.5, True, "3", None])
async def test_58_and_so_does_a_senseless_number_of_them(sandbox: Sandbox, most: Any) -> None:
    @sandbox.registry.handles(Sync)
    async def sync(command: Sync) -> int:
        raise Snooze(1, most=most)

    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed, match=r"Snooze\(most=.*at least 1"):
            await bus.call(Sync(shop="s-1"), timeout=10, retry=ONCE)


async def test_everybody_sees_why_and_until_when_it_waits(sandbox: Sandbox) -> None:
    partner = Partner(sandbox, Snooze(60, reason="busy"), 1)
    async with sandbox.bus() as bus, bus.worker():
        await bus.events.watch("shop")
        with pytest.raises(CommandTimeout, match="has put it off") as caught:
            await bus.call(Sync(shop="s-1"), timeout=0.5)
        assert (caught.value.state, 50 < (caught.value.retry_in or 0) <= 60) == ("snoozed", True)
        with pytest.raises(CommandTimeout, match=r"behind Sync .*, which its handler has put off") as caught:
            await bus.call(Sync(shop="s-1", number=1), timeout=0.3)
        (shown,) = (await bus.entities.list(states={"snoozed"})).entities
        assert (shown.state, shown.attempt, shown.snoozes, shown.depth) == ("snoozed", 1, 1, 2)
        details = await bus.entity("shop", "s-1").show()
        now = await bus.transport.operator.entities.now_ms()
        assert 50_000 < (shown.retry_at_ms or 0) - now <= 60_000
        assert details.first_started_ms is not None
        told = [event async for event in bus.events(after=BEGINNING, follow=False) if event.kind == "snoozed"]
        assert [(event.name, event.attempt, event.delay) for event in told] == [("Sync", 1, 60.0)]
        assert partner.asked == [("sync 0", 1)]
        assert await bus.entity("shop", "s-1").purge() == 2
    left = [key.rpartition(":")[2] for key in await sandbox.entity_keys()]
    assert left == ["arrivals", "events", "watched"]


async def test_who_gives_up_is_not_retried_and_its_entity_is_parked_if_it_says_so(sandbox: Sandbox) -> None:
    partner = Partner(sandbox)
    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed, match="GiveUp: no such shop") as caught:
            await bus.call(Close(shop="s-1"), timeout=10)
        assert (caught.value.attempts, partner.asked) == (1, [("close", 1)])
        (letter,) = [each async for each in bus.dead_letters.list()]
        assert (letter.reason, letter.error_message, letter.parked) == ("failed", "no such shop", True)


def test_both_are_copied_by_pickle() -> None:
    once = pickle.loads(pickle.dumps(Snooze(3, most=4, reason="why")))
    assert (once.seconds, once.most, once.reason, str(once)) == (3.0, 4, "why", "for 3 s: why")
    again = pickle.loads(pickle.dumps(once.too_often()))
    assert str(again) == "put off 4 times, which is the most; then again for 3 s: why"
    assert str(pickle.loads(pickle.dumps(GiveUp("no")))) == "no"
    with pytest.raises(InvalidSettings):
        Snooze(-1)
