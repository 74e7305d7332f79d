"""Delivery over every transport: order, outcomes, retries, dedup, limits, time."""

from __future__ import annotations

import asyncio
import time

import pytest

from command_bus import (
    Command,
    CommandBusError,
    CommandContext,
    CommandFailed,
    EntityId,
    EntityPolicy,
    Envelope,
    IdempotencyConflict,
    InvalidSettings,
    QueueFull,
    lanes,
)
from tests.conformance.conftest import Sandbox
from tests.conformance.delivery_app import QUICK, App, Balance, Deposit, Flaky, Free, Slow, Step


@pytest.fixture
def app(sandbox: Sandbox) -> App:
    return App(sandbox)


@pytest.mark.promise("Each outcome is typed")
async def test_call_gives_the_typed_result(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus() as bus, bus.worker():
        assert await bus.call(Deposit(account_id="a", amount=5), timeout=5) == 5
        assert await bus.call(Deposit(account_id="a", amount=7), timeout=5) == 12
        assert await bus.call(Balance(account_id="a"), timeout=5) == 12
        assert await bus.call(Free(number=4), timeout=5) == 8


@pytest.mark.promise("Accepted is stored")
async def test_dispatch_is_accepted_without_a_worker_and_runs_later(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus() as bus:
        receipt = await bus.dispatch(Deposit(account_id="a", amount=5))
        assert receipt.status == "accepted"
        assert (await bus.stats()).depth == 1
        async with bus.worker():
            await bus.wait_idle(5)
        assert app.balances == {"a": 5}


@pytest.mark.promise("Order per entity")
@pytest.mark.parametrize("concurrency", [1, 3, 50])
async def test_entities_run_in_order_and_one_at_a_time(sandbox: Sandbox, app: App, concurrency: int) -> None:
    async with sandbox.bus() as bus:
        batch = await bus.dispatch_batch(Step(line=f"l{number % 5}", number=number) for number in range(200))
        assert (batch.accepted, batch.duplicates, batch.rejected) == (200, 0, 0)
        async with bus.worker(concurrency=concurrency), bus.worker(concurrency=concurrency):
            await bus.dispatch_batch(Step(line=f"l{number % 5}", number=number) for number in range(200, 300))
            await bus.wait_idle(20)
    assert app.overlaps == 0
    for line in range(5):
        numbers = [number for name, number in app.seen if name == f"l{line}"]
        assert numbers == list(range(line, 300, 5))


async def test_int_and_text_ids_name_the_same_entity(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.call(Deposit(account_id=7, amount=1), timeout=5)
        await bus.call(Deposit(account_id="7", amount=1), timeout=5)
    assert app.balances == {"7": 2}


@pytest.mark.parametrize("entity", ["}", "}{", "{x}", "a b\nc\0d", "🦊", "x" * 3000, "%7E", "~", "a/b:c", "é"])
async def test_awkward_entity_ids_keep_to_themselves(sandbox: Sandbox, app: App, entity: str) -> None:
    async with sandbox.bus(shards=3) as bus, bus.worker():
        assert await bus.call(Deposit(account_id=entity, amount=3), timeout=5) == 3
        assert await bus.call(Deposit(account_id=entity + "x", amount=1), timeout=5) == 1
        assert await bus.call(Balance(account_id=entity), timeout=5) == 3
    assert await sandbox.entity_keys() == []


@pytest.mark.promise("Retries keep their place")
async def test_a_retry_keeps_its_place(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus() as bus:
        await bus.dispatch(Flaky(line="l", fail=2))
        await bus.dispatch(Step(line="l", number=1))
        async with bus.worker():
            await bus.wait_idle(5)
        assert app.seen == [("l", 1), ("l", 2), ("l", 3), ("l", 1)]
        stats = await bus.stats()
        assert (stats.retried, stats.handed_back) == (2, 0)


async def test_call_waits_through_retries(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus() as bus, bus.worker():
        assert await bus.call(Flaky(line="l", fail=1), timeout=5) == "attempt 2"


@pytest.mark.promise("One id, one command")
async def test_a_repeated_id_runs_once_and_a_repeated_call_gets_the_stored_reply(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus() as bus, bus.worker():
        command = Deposit(account_id="a", amount=5)
        assert (await bus.dispatch(command, command_id="once")).status == "accepted"
        assert (await bus.dispatch(command, command_id="once")).status == "duplicate"
        await bus.wait_idle(5)
        assert (await bus.dispatch(command, command_id="once")).status == "duplicate"
        assert await bus.call(command, command_id="once", timeout=5) == 5
        assert await bus.result("once", Deposit) == 5
        assert app.balances == {"a": 5}
        with pytest.raises(IdempotencyConflict):
            await bus.dispatch(Deposit(account_id="a", amount=6), command_id="once")


async def test_a_call_that_gets_no_reply_of_its_own_ends_at_once(sandbox: Sandbox, app: App) -> None:
    """Refused, a duplicate, or in conflict: its caller waits for an answer to the sending and for the reply at the same time."""
    async with sandbox.bus(max_depth=1) as bus:
        await bus.dispatch(Step(line="l", number=0))
        async with asyncio.timeout(5):
            with pytest.raises(QueueFull):
                await bus.call(Flaky(line="l", fail=0), timeout=60)
        async with bus.worker():
            command = Deposit(account_id="a", amount=5)
            assert await bus.call(command, command_id="once", timeout=5) == 5
            async with asyncio.timeout(5):
                assert await bus.call(command, command_id="once", timeout=60) == 5
                with pytest.raises(IdempotencyConflict):
                    await bus.call(Deposit(account_id="a", amount=6), command_id="once", timeout=60)


async def test_two_concurrent_calls_with_one_id_get_one_result(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus() as bus:
        app.gate.clear()
        call = lambda: bus.call(Deposit(account_id="a", amount=5), command_id="same", timeout=10)  # noqa: E731
        async with bus.worker(), sandbox.bus() as other:
            results = await asyncio.gather(
                call(), call(), other.call(Deposit(account_id="a", amount=5), command_id="same", timeout=10)
            )
        assert results == [5, 5, 5]


@pytest.mark.promise("A delayed command holds up nothing")
async def test_a_delayed_command_comes_when_it_is_due_and_holds_nobody(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Step(line="l", number=0), delay=0.3)
        began = time.monotonic()
        await bus.dispatch(Step(line="l", number=1))
        assert await bus.entity("line", "l").depth() >= 1
        await bus.wait_idle(5)
        assert app.seen == [("l", 1), ("l", 0)]
        assert 0.25 <= time.monotonic() - began < 1.5
    assert await sandbox.entity_keys() == []


@pytest.mark.promise("Refusals keep the order")
async def test_depth_limits_refuse_with_retry_after(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus(max_depth=3) as bus:
        for number in range(3):
            await bus.dispatch(Step(line="l", number=number))
        with pytest.raises(QueueFull) as full:
            await bus.dispatch(Step(line="l", number=3))
        assert full.value.retry_after > 0
        await bus.dispatch(Step(line="other", number=0))
        batch = await bus.dispatch_batch([Step(line="l", number=4), Step(line="other", number=1), Step(line="l", number=5)])
        assert [outcome.status for outcome in batch.outcomes] == ["rejected", "accepted", "rejected"]
        assert [getattr(outcome.error, "limit", None) for outcome in batch.rejections] == ["entity", "predecessor"]
    async with sandbox.bus(max_total_depth=5) as bus:
        with pytest.raises(QueueFull, match="max_total_depth"):
            await bus.dispatch(Step(line="third", number=0))


async def test_a_batch_keeps_order_across_chunks_and_reports_each_command(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus(max_depth=300) as bus:
        commands = [Envelope(Step(line="l", number=number), command_id=f"s{number}") for number in range(1000)]
        batch = await bus.dispatch_batch(commands)
        assert (batch.accepted, batch.rejected) == (300, 700)
        assert [outcome.status for outcome in batch.outcomes] == ["accepted"] * 300 + ["rejected"] * 700
        again = await bus.dispatch_batch(commands)
        assert (again.accepted, again.duplicates, again.rejected) == (0, 300, 700)


async def test_pause_holds_an_entity_and_resume_lets_it_go_on(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus() as bus, bus.worker():
        account = bus.entity("line", "l")
        assert await account.pause("repair")
        assert not await account.pause("repair")
        await account.dispatch(Step(line="l", number=1))
        await bus.call(Deposit(account_id="x", amount=1), timeout=5)
        with pytest.raises(CommandBusError, match="line:l"):
            await bus.wait_idle(1)
        assert app.seen == []
        assert (await bus.stats()).paused == 1
        assert await account.resume()
        await bus.wait_idle(5)
        assert app.seen == [("l", 1)]
    assert await sandbox.entity_keys() == []


async def test_a_handler_past_its_timeout_is_cancelled_and_retried(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed) as failure:
            await bus.call(Slow(line="l"), timeout=5)
        assert failure.value.error_type == "TimeoutError"
        assert failure.value.attempts == 2


@pytest.mark.parametrize("shards", [1, 4])
async def test_lanes_are_sequential_and_leave_nothing(sandbox: Sandbox, app: App, shards: int) -> None:
    policy = {"line": EntityPolicy(mailbox=lanes(2))}
    async with sandbox.bus(entities=policy, shards=shards) as bus, bus.worker():
        await bus.dispatch_batch(Step(line=f"l{number % 10}", number=number) for number in range(100))
        await bus.wait_idle(10)
    for line in range(10):
        assert [number for name, number in app.seen if name == f"l{line}"] == list(range(line, 100, 10))
    assert await sandbox.entity_keys() == []


async def test_clients_that_disagree_are_refused(sandbox: Sandbox) -> None:
    async with sandbox.bus(shards=2, entities={"line": EntityPolicy(mailbox=lanes(2))}):
        pass
    with pytest.raises(InvalidSettings, match="lanes:2"):
        async with sandbox.bus(shards=2, entities={"line": EntityPolicy(mailbox=lanes(3))}):
            pass
    async with sandbox.bus(shards=2) as bus:
        with pytest.raises(InvalidSettings, match="lanes:2"):
            await bus.dispatch(Step(line="l", number=1))


async def test_a_hot_entity_yields_its_slot(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus(quantum=5, quantum_time=60.0) as bus:
        await bus.dispatch_batch(Step(line="hot", number=3 * number) for number in range(100))
        await bus.dispatch(Step(line="cold", number=0))
        async with bus.worker(concurrency=1):
            await bus.wait_idle(10)
    assert app.seen.index(("cold", 0)) <= 10


@pytest.mark.promise("An idle entity leaves nothing")
async def test_nothing_is_left_of_idle_entities(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus(shards=2) as bus, bus.worker():
        await bus.dispatch_batch(Deposit(account_id=f"a{number}", amount=1) for number in range(300))
        await bus.dispatch_batch(Free(number=number) for number in range(50))
        await bus.wait_idle(10)
        assert [await bus.call(Free(number=1), timeout=5) for _ in range(3)] == [2, 2, 2]
    assert await sandbox.entity_keys() == []


async def test_handlers_dispatch_and_carry_correlation(sandbox: Sandbox) -> None:
    class First(Command[None], entity="line"):
        line: EntityId

    class Second(Command[None], entity="line"):
        line: EntityId

    seen: dict[str, tuple[str, str | None]] = {}
    async with sandbox.bus() as bus:

        @sandbox.registry.handles(First)
        async def first(command: First, context: CommandContext) -> None:
            seen["first"] = (context.correlation_id, context.causation_id)
            await bus.dispatch(Second(line="other"))
            with pytest.raises(CommandBusError, match="would wait"):
                await bus.call(Second(line=command.line), timeout=5)

        @sandbox.registry.handles(Second)
        async def second(command: Second, context: CommandContext) -> None:
            seen["second"] = (context.correlation_id, context.causation_id)

        async with bus.worker():
            await bus.dispatch(First(line="l"), command_id="one")
            await bus.wait_idle(5)
    assert seen == {"first": ("one", None), "second": ("one", "one")}


@pytest.mark.promise("The fence grows")
async def test_the_fence_grows_with_every_start(sandbox: Sandbox) -> None:
    fences: list[int] = []

    class Fenced(Command[None], entity="line", retry=QUICK):
        line: EntityId

    @sandbox.registry.handles(Fenced)
    async def fenced(command: Fenced, context: CommandContext) -> None:
        fences.append(context.fence)
        if context.attempt == 1:
            raise ValueError

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch_batch(Fenced(line="l") for _ in range(20))
        await bus.wait_idle(5)
    assert len(fences) == 40
    assert fences == sorted(set(fences))
