"""What every transport must do with commands: order, outcomes, retries, dedup, limits, time."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest

from command_bus import (
    Command,
    CommandBusError,
    CommandCancelled,
    CommandContext,
    CommandExpired,
    CommandFailed,
    CommandRejected,
    CommandTimeout,
    EntityId,
    EntityPolicy,
    Envelope,
    HandlerRegistry,
    IdempotencyConflict,
    InvalidSettings,
    NoHandler,
    Query,
    QueueFull,
    Reject,
    RetryPolicy,
    lanes,
)
from command_bus.transport.redis.admin.mailboxes import RedisMailboxes
from tests.conformance.conftest import Sandbox

QUICK = RetryPolicy(attempts=3, delay=0.01, jitter=0.0)


class Deposit(Command[int], entity="account"):
    account_id: EntityId
    amount: int


class Balance(Query[int], entity="account"):
    account_id: EntityId


class Step(Command[None], entity="line", retry=QUICK):
    line: EntityId
    number: int


class Flaky(Command[str], entity="line", retry=QUICK):
    line: EntityId
    fail: int


class Refuse(Command[None], entity="account"):
    account_id: EntityId


class Poison(Command[None], entity="line", retry=RetryPolicy(attempts=1)):
    line: EntityId


class Parking(Command[None], entity="line", retry=RetryPolicy(attempts=1), on_poison="park"):
    line: EntityId


class Free(Command[int]):
    number: int


class Slow(Command[None], entity="line", retry=RetryPolicy(attempts=2, delay=0.0), timeout=0.05):
    line: EntityId


class App:
    """The handlers of these tests, and what they saw."""

    def __init__(self, sandbox: Sandbox) -> None:  # noqa: C901 - a list of handlers
        registry = sandbox.registry
        self.balances: dict[str, int] = {}
        self.seen: list[tuple[str, Any]] = []
        self.running: set[str] = set()
        self.overlaps = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.poison = True

        @registry.handles(Deposit)
        async def deposit(command: Deposit) -> int:
            balance = self.balances.get(str(command.account_id), 0)
            await asyncio.sleep(0)
            self.balances[str(command.account_id)] = balance + command.amount
            return balance + command.amount

        @registry.handles(Balance)
        async def balance(query: Balance) -> int:
            return self.balances.get(str(query.account_id), 0)

        @registry.handles(Step)
        async def step(command: Step) -> None:
            line = str(command.line)
            self.overlaps += line in self.running
            self.running.add(line)
            await self.gate.wait()
            await asyncio.sleep(0.0005 * (command.number % 3))
            self.running.discard(line)
            self.seen.append((line, command.number))

        @registry.handles(Flaky)
        async def flaky(command: Flaky, context: CommandContext) -> str:
            self.seen.append((str(command.line), context.attempt))
            if context.attempt <= command.fail:
                raise ValueError("not yet")
            return f"attempt {context.attempt}"

        @registry.handles(Refuse)
        def refuse(command: Refuse) -> None:
            raise Reject("no", code="nope", details={"left": 3})

        @registry.handles(Poison)
        async def poison(command: Poison) -> None:
            raise RuntimeError("bad")

        @registry.handles(Parking)
        async def parking(command: Parking) -> None:
            self.seen.append((str(command.line), "parking"))
            if self.poison:
                raise RuntimeError("bad")

        @registry.handles(Free)
        async def free(command: Free) -> int:
            return command.number * 2

        @registry.handles(Slow)
        async def slow(command: Slow) -> None:
            await asyncio.sleep(10)


@pytest.fixture
def app(sandbox: Sandbox) -> App:
    return App(sandbox)


async def test_call_gives_the_typed_result(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus() as bus, bus.worker():
        assert await bus.call(Deposit(account_id="a", amount=5), timeout=5) == 5
        assert await bus.call(Deposit(account_id="a", amount=7), timeout=5) == 12
        assert await bus.call(Balance(account_id="a"), timeout=5) == 12
        assert await bus.call(Free(number=4), timeout=5) == 8


async def test_dispatch_is_accepted_without_a_worker_and_runs_later(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus() as bus:
        receipt = await bus.dispatch(Deposit(account_id="a", amount=5))
        assert receipt.status == "accepted"
        assert (await bus.stats()).depth == 1
        async with bus.worker():
            await bus.wait_idle(5)
        assert app.balances == {"a": 5}


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


async def test_a_rejection_is_settled_and_typed(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandRejected) as refusal:
            await bus.call(Refuse(account_id="a"), timeout=5)
        assert (refusal.value.code, refusal.value.details, str(refusal.value)) == ("nope", {"left": 3}, "no")
        stats = await bus.stats()
        assert (stats.rejected, stats.completed, stats.dead_letters) == (1, 0, 0)


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


async def test_two_concurrent_calls_with_one_id_get_one_result(sandbox: Sandbox, app: App) -> None:
    async with sandbox.bus() as bus:
        app.gate.clear()
        call = lambda: bus.call(Deposit(account_id="a", amount=5), command_id="same", timeout=10)  # noqa: E731
        async with bus.worker(), sandbox.bus() as other:
            results = await asyncio.gather(
                call(), call(), other.call(Deposit(account_id="a", amount=5), command_id="same", timeout=10)
            )
        assert results == [5, 5, 5]


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


async def test_an_unknown_command_is_answered_after_its_grace(sandbox: Sandbox, app: App) -> None:
    class Unheard(Command[str], entity="line"):
        line: EntityId

    async with sandbox.bus(unknown_grace=0) as bus, bus.worker():
        with pytest.raises(NoHandler):
            await bus.call(Unheard(line="l"), timeout=5)
        assert (await _first_letter(bus)).reason == "no_handler"


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


async def test_a_delayed_command_is_cancelled_without_a_look_at_the_others(
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


async def test_purge_removes_what_waits_and_answers_callers(sandbox: Sandbox, app: App) -> None:
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
    with pytest.raises(InvalidSettings, match="2 shards"):
        async with sandbox.bus(shards=3):
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
