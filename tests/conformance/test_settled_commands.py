"""Ends of a command: results, refusals, dead letters, expiry, cancellation, purge."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from command_bus import (
    Command,
    CommandBusError,
    CommandCancelled,
    CommandExpired,
    CommandFailed,
    CommandRejected,
    CommandTimeout,
    EntityId,
    HandlerRegistry,
    NoHandler,
)
from command_bus.transport.redis.admin.mailboxes import RedisMailboxes
from tests.conformance.conftest import Sandbox
from tests.conformance.delivery_app import App, Deposit, Flaky, Parking, Poison, Refuse, Step


@pytest.fixture
def app(sandbox: Sandbox) -> App:
    return App(sandbox)


@pytest.mark.promise("Dead letters keep their cause")
async def test_a_poisoned_command_is_dead_lettered_with_its_cause(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed) as failure:
            await bus.call(Flaky(line="l", fail=9), timeout=5, headers={"who": "test"}, command_id="c-9")
        assert (failure.value.error_type, failure.value.error_message, failure.value.attempts) == ("ValueError", "not yet", 3)
        (letter,) = [letter async for letter in bus.dead_letters.list()]
        assert (letter.reason, letter.command_id, letter.name, letter.entity) == ("failed", "c-9", "Flaky", "line:l")
        assert (letter.error_type, letter.error_message, letter.attempts) == ("ValueError", "not yet", 3)
        assert letter.headers == {"who": "test"}
        assert letter.payload == {"line": "l", "fail": 9}
        assert "in flaky" in letter.traceback
        assert letter.accepted_ms <= letter.first_started_ms <= letter.failed_ms + 1000
        assert await bus.call(Flaky(line="l", fail=0), timeout=5) == "attempt 1"
        assert await bus.dead_letters.purge() == 1
        assert [letter async for letter in bus.dead_letters.list()] == []


@pytest.mark.promise("Each outcome is typed")
async def test_a_rejection_is_settled_and_typed(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandRejected) as refusal:
            await bus.call(Refuse(account_id="a"), timeout=5)
        assert (refusal.value.code, refusal.value.details, str(refusal.value)) == ("nope", {"left": 3}, "no")
        stats = await bus.stats()
        assert (stats.rejected, stats.completed, stats.dead_letters) == (1, 0, 0)


@pytest.mark.promise("Dead letters keep their cause")
async def test_a_parked_entity_waits_for_replay_and_keeps_its_order(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed):
            await bus.call(Parking(line="l"), timeout=5, command_id="p")
        await bus.dispatch(Step(line="l", number=1))
        await bus.dispatch(Step(line="other", number=2))
        with pytest.raises(CommandBusError, match="line:l"):
            await bus.wait_idle(5)
        (letter,) = [letter async for letter in bus.dead_letters.list()]
        assert letter.parked
        assert ("l", 1) not in app.seen
        assert ("other", 2) in app.seen
        app.poison = False
        assert await bus.dead_letters.replay(letter.id) == "p"
        await bus.wait_idle(5)
        assert [item for item in app.seen if item[0] == "l"] == [("l", "parking"), ("l", "parking"), ("l", 1)]
        assert [letter async for letter in bus.dead_letters.list()] == []
        with pytest.raises(LookupError):
            await bus.dead_letters.replay(letter.id)
    assert await sandbox.entity_keys() == []


async def test_a_parked_entity_goes_on_after_discard(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Parking(line="l"))
        await bus.dispatch(Step(line="l", number=1))
        letter = await _first_letter(bus)
        await bus.dead_letters.discard(letter.id)
        await bus.wait_idle(5)
        assert app.seen == [("l", "parking"), ("l", 1)]
        assert (await bus.stats()).depth == 0


async def test_a_buried_command_can_be_replayed(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Poison(line="l"), command_id="p")
        await bus.wait_idle(5)
        letter = await _first_letter(bus)
        assert await bus.dead_letters.replay(letter.id) == "p"
        await bus.wait_idle(5)
        again = await _first_letter(bus)
        assert again.id != letter.id
        assert again.command_id == "p"


async def _first_letter(bus: Any) -> Any:
    for _ in range(500):
        async for letter in bus.dead_letters.list():
            return letter
        await asyncio.sleep(0.01)
    raise AssertionError("no dead letter")


@pytest.mark.promise("A deadline is for the first start")
async def test_an_expired_command_is_not_started(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus() as bus:
        with pytest.raises(CommandTimeout) as timeout:
            await bus.call(Deposit(account_id="a", amount=5), timeout=0.3)
        await bus.dispatch(Deposit(account_id="a", amount=5), expires=0.05, command_id="e")
        await asyncio.sleep(0.1)
        async with bus.worker():
            await bus.wait_idle(5)
            assert app.balances == {}
            with pytest.raises(CommandExpired):
                await bus.result(timeout.value.command_id)
            letter = await _first_letter(bus)
            assert (letter.reason, letter.command_id) == ("expired", "e")


@pytest.mark.promise("Unknown commands wait")
async def test_an_unknown_command_waits_for_a_newer_worker(sandbox: Sandbox, app: App) -> None:
    class New(Command[str], entity="line"):
        line: EntityId

    async with sandbox.bus(unknown_grace=10) as bus:
        await bus.dispatch_raw("line", "l", "New", {"line": "l"}, command_id="n")
        await bus.dispatch(Step(line="l", number=1))
        async with bus.worker():
            await asyncio.sleep(0.3)
            assert app.seen == []

            @sandbox.registry.handles(New)
            async def new(command: New) -> str:
                app.seen.append(("l", "new"))
                return "done"

            await bus.wait_idle(10)
            assert app.seen == [("l", "new"), ("l", 1)]
            assert await bus.result("n") == "done"


@pytest.mark.promise("Unknown commands wait")
@pytest.mark.parametrize("older", [1, 3])
async def test_an_unknown_command_reaches_a_newer_worker_among_older_ones(sandbox: Sandbox, app: App, older: int) -> None:
    """Readers are woken in turn, and a retry wakes two of them, once for itself and once for the clock: the same ones every time."""
    if sandbox.name == "memory":
        pytest.skip("fakeredis does not wake readers in turn")

    class Newer(Command[str], entity="line"):
        line: EntityId

    newer = HandlerRegistry()

    @newer.handles(Newer)
    async def handle(command: Newer) -> str:
        return "done"

    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(sandbox.bus(unknown_grace=15))
        for _ in range(older):
            await stack.enter_async_context(bus.worker())
        call = asyncio.create_task(bus.call(Newer(line="l"), timeout=20))
        await asyncio.sleep(0.05)
        await stack.enter_async_context(bus.worker(registry=newer))
        assert await call == "done"


@pytest.mark.promise("Each outcome is typed")
async def test_an_unknown_command_is_answered_after_its_grace(sandbox: Sandbox, app: App) -> None:
    class Unheard(Command[str], entity="line"):
        line: EntityId

    async with sandbox.bus(unknown_grace=0) as bus, bus.worker():
        with pytest.raises(NoHandler):
            await bus.call(Unheard(line="l"), timeout=5)
        assert (await _first_letter(bus)).reason == "no_handler"


async def test_cancel_takes_a_waiting_command_out_of_line(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus() as bus:
        waiting = asyncio.create_task(bus.call(Step(line="l", number=1), timeout=10, command_id="c1"))
        await _until_depth(bus, 1)
        receipt = await bus.dispatch(Step(line="l", number=2))
        delayed = await bus.dispatch(Step(line="l", number=3), delay=60)
        assert await bus.cancel("c1")
        with pytest.raises(CommandCancelled):
            await waiting
        assert await bus.cancel(delayed.command_id)
        assert not await bus.cancel("c1")
        assert not await bus.cancel("never heard of")
        async with bus.worker():
            await bus.wait_idle(5)
        assert app.seen == [("l", 2)]
        assert not await bus.cancel(receipt.command_id)
    assert await sandbox.entity_keys() == []


async def test_a_delayed_command_is_cancelled_without_listing_the_others(
    sandbox: Sandbox, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RedisMailboxes, "delayed", lambda *_: pytest.fail("all delayed commands were gone through"))
    async with sandbox.bus(shards=3) as bus:
        one, other = [await bus.dispatch(Step(line="l", number=number), delay=60) for number in (1, 2)]
        await bus.dispatch(Step(line="m", number=3))
        assert await bus.cancel(one.command_id)
        assert not await bus.entity("line", "m").cancel(other.command_id)
        assert await bus.entity("line", "l").cancel(other.command_id)
        assert not await bus.entity("line", "l").cancel(other.command_id)
        assert await bus.entity("line", "m").purge() == 1
    assert await sandbox.entity_keys() == []


async def test_purge_removes_waiting_commands_and_answers_callers(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus() as bus:
        app.gate.clear()
        await bus.dispatch(Step(line="l", number=0))
        async with bus.worker():
            while not app.running:
                await asyncio.sleep(0.01)
            caller = asyncio.create_task(bus.call(Step(line="l", number=1), timeout=10))
            await bus.dispatch(Step(line="l", number=2))
            await bus.dispatch(Step(line="l", number=3), delay=60)
            await _until_depth(bus, 4)
            assert await bus.entity("line", "l").purge() == 3
            with pytest.raises(CommandCancelled):
                await caller
            app.gate.set()
            await bus.wait_idle(5)
        assert app.seen == [("l", 0)]
        assert (await bus.stats()).depth == 0
    assert await sandbox.entity_keys() == []


async def _until_depth(bus: Any, depth: int) -> None:
    for _ in range(500):
        if (await bus.stats()).depth >= depth:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the depth was not reached")
