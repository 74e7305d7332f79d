"""Handlers of many commands: who is called together, whose failure it is, and that each command ends by itself."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from command_bus import (
    CallCycle,
    Command,
    CommandBus,
    CommandContext,
    CommandFailed,
    CommandRejected,
    EntityId,
    EntityPolicy,
    EntityState,
    GiveUp,
    HandlerRegistry,
    RegistrationError,
    Reject,
    RetryPolicy,
    Snooze,
)
from command_bus.worker.decisions import Decisions
from command_bus.worker.runnable import Runnable
from tests.conformance.conftest import Sandbox

pytestmark = pytest.mark.server
ONCE = RetryPolicy(attempts=1)


class Insert(Command[int], entity="row", retry=RetryPolicy(attempts=3, delay=0.01)):
    row: EntityId
    n: int


class Calls:
    """The calls of a handler, each with its numbers; those of `bad` make theirs fail."""

    def __init__(self) -> None:
        self.made: list[list[int]] = []
        self.done: list[int] = []
        self.bad: set[int] = set()
        self.down = 0

    async def handle(self, commands: Sequence[Insert]) -> Sequence[int]:
        numbers = [each.n for each in commands]
        self.made.append(numbers)
        await asyncio.sleep(0)
        if self.down:
            self.down -= 1
            raise ConnectionError("down")
        if self.bad.intersection(numbers):
            raise ValueError("poisoned")
        self.done += numbers
        return [10 * number for number in numbers]


@pytest.fixture
def calls() -> Calls:
    return Calls()


def registry_of(function: Callable[..., Any], **options: Any) -> HandlerRegistry:
    registry = HandlerRegistry()
    registry.handles_many(Insert, **{"size": 8, "wait": 0.05, **options})(function)
    return registry


async def send(bus: CommandBus, *numbers: int) -> list[Any]:
    calls = [bus.call(Insert(row=f"r{number}", n=number), timeout=20) for number in numbers]
    return await asyncio.gather(*calls, return_exceptions=True)


async def test_commands_of_several_entities_are_one_call_and_end_each(sandbox: Sandbox, calls: Calls) -> None:
    async with sandbox.bus(registry=registry_of(calls.handle)) as bus, bus.worker(concurrency=4):
        assert await send(bus, *range(20)) == [10 * number for number in range(20)]
        assert await send(bus, 99) == [990], "alone after its wait"
    assert sorted(calls.done) == [*range(20), 99]
    assert max(map(len, calls.made)) == 8, "more than there are slots: who waits lends its own"


async def test_a_worker_that_is_full_calls_with_many(sandbox: Sandbox) -> None:
    """If what comes while calls are under way were called at once, each end would make room for one more call with a single command."""
    made: list[int] = []

    async def handle(commands: Sequence[Insert]) -> None:
        made.append(len(commands))
        await asyncio.sleep(0.02)

    async with sandbox.bus(registry=registry_of(handle, size=10), max_waiting=20) as bus:
        await bus.dispatch_batch(Insert(row=f"r{number % 60}", n=number) for number in range(600))
        async with bus.worker(concurrency=20):
            await bus.wait_idle(20)
    assert sum(made) == 600
    assert len(made) <= 200


async def test_one_entity_keeps_its_order_with_one_command_a_call(sandbox: Sandbox, calls: Calls) -> None:
    async with sandbox.bus(registry=registry_of(calls.handle, wait=0.001)) as bus, bus.worker(concurrency=4):
        await bus.dispatch_batch(Insert(row=f"r{number % 3}", n=number) for number in range(30))
        await bus.wait_idle(20)
    for row in range(3):
        assert [number for number in calls.done if number % 3 == row] == list(range(row, 30, 3))
    assert all(len({number % 3 for number in made}) == len(made) for made in calls.made)


@pytest.mark.parametrize("bad", [{0}, {5}, {7}, {0, 7}, {2, 3}])
async def test_the_poisoned_ones_are_found_and_the_others_end_well(sandbox: Sandbox, calls: Calls, bad: set[int]) -> None:
    calls.bad = bad
    async with sandbox.bus(registry=registry_of(calls.handle)) as bus, bus.worker():
        replies = await send(bus, *range(8))
        letters = {letter.payload["n"] async for letter in bus.dead_letters.list() if letter.payload}
    assert letters == bad
    for number, reply in enumerate(replies):
        if number in bad:
            assert isinstance(reply, CommandFailed)
            assert "poisoned" in str(reply)
        else:
            assert reply == 10 * number
    assert sorted(calls.done) == sorted(set(range(8)) - bad), "each effect once"


async def test_a_common_cause_costs_few_calls_and_each_one_attempt(sandbox: Sandbox, calls: Calls) -> None:
    calls.down = 5  # 8, 4, 2, 1, and the 7 others
    async with sandbox.bus(registry=registry_of(calls.handle)) as bus, bus.worker():
        assert await send(bus, *range(8)) == [10 * number for number in range(8)]
        stats = await bus.stats()
    assert [len(each) for each in calls.made[:5]] == [8, 4, 2, 1, 7]
    assert stats.retried == 8
    assert stats.dead_letters == 0


async def test_on_the_last_attempt_no_innocent_fails_with_others(sandbox: Sandbox) -> None:
    class Last(Command[int], entity="row", retry=ONCE):
        row: EntityId
        n: int

    registry, alone = HandlerRegistry(), list[int]()

    @registry.handles_many(Last, size=4, wait=0.2)
    async def last(commands: Sequence[Last]) -> Sequence[int]:
        if len(commands) == 1:
            alone.append(commands[0].n)
        if len(commands) > 1 or commands[0].n in (0, 2):
            raise ValueError("together")
        return [each.n for each in commands]

    async with sandbox.bus(registry=registry) as bus, bus.worker():
        found = await asyncio.gather(*(bus.call(Last(row=str(n), n=n)) for n in range(4)), return_exceptions=True)
    assert [found[1], found[3]] == [1, 3]
    assert isinstance(found[0], CommandFailed)
    assert isinstance(found[2], CommandFailed)
    assert sorted(alone) == [0, 1, 2, 3]


async def test_outcomes_are_replies_refusals_and_errors(sandbox: Sandbox) -> None:
    registry, seen = HandlerRegistry(), list[tuple[str | None, int]]()

    @registry.handles_many(Insert, size=4, wait=0.1)
    async def insert(commands: Sequence[Insert], contexts: Sequence[CommandContext]) -> Sequence[int | Exception]:
        seen.extend((each.entity, each.attempt) for each in contexts)
        ends: dict[int, Any] = {0: 5, 1: Reject("no"), 2: ValueError("broken"), 3: Snooze(0.05)}
        return [
            ends[each.n] if context.attempt == 1 and len(seen) <= 4 else each.n
            for each, context in zip(commands, contexts, strict=True)
        ]

    async with sandbox.bus(registry=registry) as bus, bus.worker():
        replies = await send(bus, 0, 1, 2, 3)
    assert replies[0] == 5
    assert isinstance(replies[1], CommandRejected)
    assert replies[2:] == [2, 3]
    assert sorted(seen[:4]) == [(f"row:r{number}", 1) for number in range(4)]
    assert ("row:r2", 2) in seen
    assert ("row:r3", 1) in seen[4:], "a snooze is no attempt"


@pytest.mark.parametrize("answer", [[1], [1, 2, 3], "ab", 7])
async def test_wrong_outcomes_fail_all_and_nothing_is_called_again(sandbox: Sandbox, answer: Any) -> None:
    made: list[int] = []

    async def wrong(commands: Sequence[Insert]) -> Any:
        made.append(len(commands))
        return answer

    async with sandbox.bus(registry=registry_of(wrong, size=2, wait=5.0)) as bus, bus.worker():
        for reply in await send(bus, 0, 1):
            assert isinstance(reply, CommandFailed)
            assert "an outcome for each" in str(reply)
    assert made == [2]


async def test_none_is_a_reply_of_each(sandbox: Sandbox) -> None:
    class Note(Command[None], entity="row"):
        row: EntityId

    registry = HandlerRegistry()

    @registry.handles_many(Note, size=3, wait=0.05)
    async def note(commands: Sequence[Note]) -> None: ...

    async with sandbox.bus(registry=registry) as bus, bus.worker():
        assert await asyncio.gather(*(bus.call(Note(row=str(n))) for n in range(3))) == [None] * 3


async def test_a_plain_function_runs_in_a_thread(sandbox: Sandbox) -> None:
    threads: set[int] = set()

    def plain(commands: Sequence[Insert]) -> list[int]:
        threads.add(threading.get_ident())
        return [each.n for each in commands]

    async with sandbox.bus(registry=registry_of(plain)) as bus, bus.worker():
        assert await send(bus, *range(8)) == list(range(8))
    assert threading.get_ident() not in threads


async def test_a_cancelled_one_leaves_the_others_alone(sandbox: Sandbox) -> None:
    begun, go, cancelled = asyncio.Event(), asyncio.Event(), list[str | None]()

    async def waiting(commands: Sequence[Insert], contexts: Sequence[CommandContext]) -> Sequence[int]:
        begun.set()
        await go.wait()
        cancelled.extend(each.cancel_reason for each in contexts)
        return [each.n for each in commands]

    async with sandbox.bus(registry=registry_of(waiting, size=3)) as bus, bus.worker():
        replies = asyncio.ensure_future(send(bus, 0, 1, 2))
        await begun.wait()
        abort = asyncio.ensure_future(bus.cancel((await bus.entity("row", "r1").show()).head.command_id, running=True, wait=5))  # type: ignore[union-attr]
        await asyncio.sleep(1.5)
        go.set()
        assert await abort
        found = await replies
    assert [found[0], found[2]] == [0, 2]
    assert isinstance(found[1], Exception)
    assert sum(each is not None for each in cancelled) == 1


async def test_one_that_is_cancelled_while_it_waits_is_not_called(sandbox: Sandbox, calls: Calls) -> None:
    async with sandbox.bus(registry=registry_of(calls.handle, size=3, wait=60.0)) as bus, bus.worker():
        first = await bus.dispatch(Insert(row="a", n=0), command_id="first")
        while (await bus.stats()).in_flight < 1:
            await asyncio.sleep(0.02)
        assert await bus.cancel(first.command_id, running=True, wait=10)
        assert await send(bus, 1, 2) == [10, 20], "its place in the batch is left empty"
    assert calls.made == [[1, 2]]


async def test_a_worker_that_stops_calls_what_waits(sandbox: Sandbox, calls: Calls) -> None:
    async with sandbox.bus(registry=registry_of(calls.handle, size=100, wait=60.0)) as bus:
        async with bus.worker():
            await bus.dispatch_batch(Insert(row=f"r{n}", n=n) for n in range(10))
            while (await bus.stats()).in_flight < 10:
                await asyncio.sleep(0.02)
            began = time.monotonic()
        assert time.monotonic() - began < 3
        assert (await bus.stats()).depth == 0
    assert sorted(calls.done) == list(range(10))
    assert len(calls.made[0]) > 1  # all of them, unless a busy machine has some on their way to the queue


async def test_a_call_over_its_time_is_halved(sandbox: Sandbox) -> None:
    class Slow(Command[int], entity="row", attempt_timeout=0.3, retry=ONCE):
        row: EntityId
        n: int

    registry = HandlerRegistry()

    @registry.handles_many(Slow, size=4, wait=0.2)
    async def slow(commands: Sequence[Slow]) -> Sequence[int]:
        if any(each.n == 3 for each in commands):
            await asyncio.sleep(60)
        return [each.n for each in commands]

    async with sandbox.bus(registry=registry) as bus, bus.worker():
        found = await asyncio.gather(*(bus.call(Slow(row=str(n), n=n), timeout=15) for n in range(4)), return_exceptions=True)
    assert found[:3] == [0, 1, 2]
    assert "attempt_timeout" in str(found[3])


def test_what_is_no_batch_handler() -> None:
    class Durable(Command[None], entity="row", durable=True):
        row: EntityId

    class Once(Command[None], entity="row", delivery="at_most_once"):
        row: EntityId

    registry = HandlerRegistry()

    async def one(command: Insert) -> int: ...  # type: ignore[empty-body]
    async def texts(commands: Sequence[str]) -> Sequence[int]: ...  # type: ignore[empty-body]
    async def reply(commands: Sequence[Insert]) -> int: ...  # type: ignore[empty-body]
    async def extra(commands: Sequence[Insert], session: Any) -> Sequence[int]: ...  # type: ignore[empty-body]
    async def strange(commands: Sequence[Insert]) -> Sequence[str]: ...  # type: ignore[empty-body]
    async def none() -> None: ...
    async def many(commands: Any) -> None: ...

    for function in (one, texts, reply, extra, strange, none):
        with pytest.raises(RegistrationError, match=r"write async def .*Sequence\[Insert\]"):
            registry.handles_many(Insert)(function)  # type: ignore[type-var, arg-type, call-overload]

    for options in ({"size": 1}, {"size": 10_001}, {"size": 2.5}, {"wait": -1}, {"wait": "soon"}):
        with pytest.raises(RegistrationError, match=r"size is|wait is"):
            registry.handles_many(Insert, **options)  # type: ignore[arg-type]
    with pytest.raises(RegistrationError, match="is durable"):
        registry.handles_many(Durable)(many)
    with pytest.raises(RegistrationError, match="is at_most_once"):
        registry.handles_many(Once)(many)
    registry.handles_many(Insert)(many)
    with pytest.raises(RegistrationError, match="handled by"):
        registry.handles(Insert)(one)


def test_a_batch_handler_has_no_state_parameter() -> None:
    class Row(EntityState, entity="row"):
        cents: int = 0

    async def stateful(commands: Sequence[Insert], row: Row) -> None: ...

    with pytest.raises(RegistrationError, match="has no state"):
        HandlerRegistry().handles_many(Insert)(stateful)  # type: ignore[arg-type]


async def test_a_policy_of_at_most_once_has_no_batches(sandbox: Sandbox, calls: Calls) -> None:
    policies = {"row": EntityPolicy(delivery="at_most_once")}
    async with sandbox.bus(registry=registry_of(calls.handle), entities=policies) as bus:
        with pytest.raises(RegistrationError, match="cannot be at_most_once"):
            await bus.worker().start()


@pytest.mark.parametrize("error", [GiveUp("no"), Reject("no")])
async def test_a_final_error_of_a_call_is_no_end_of_innocent_ones(sandbox: Sandbox, error: Exception) -> None:
    async def first_two(commands: Sequence[Insert]) -> Sequence[int]:
        if any(each.n < 2 for each in commands):
            raise error
        return [each.n for each in commands]

    async with sandbox.bus(registry=registry_of(first_two)) as bus, bus.worker():
        replies = await send(bus, *range(8))
    assert [isinstance(each, Exception) for each in replies[:2]] == [True, True]
    assert replies[2:] == [2, 3, 4, 5, 6, 7]


async def test_what_a_failed_call_has_sent_is_not_sent(sandbox: Sandbox) -> None:
    class Mail(Command[None], entity="letter"):
        letter: EntityId

    mails: list[str] = []

    async def sending(commands: Sequence[Insert], contexts: Sequence[CommandContext]) -> Sequence[int]:
        for each, context in zip(commands, contexts, strict=True):
            context.send(Mail(letter=str(each.n)))
        if any(each.n == 5 for each in commands):
            raise ValueError("poisoned")
        return [each.n for each in commands]

    registry = registry_of(sending)

    @registry.handles(Mail)
    async def mail(command: Mail) -> None:
        mails.append(str(command.letter))

    async with sandbox.bus(registry=registry) as bus, bus.worker():
        await send(bus, *range(8))
        await bus.wait_idle(10)
    assert sorted(mails) == ["0", "1", "2", "3", "4", "6", "7"]


async def test_an_outcome_that_is_a_cancellation_completes_nothing(sandbox: Sandbox) -> None:
    async def cancelled(commands: Sequence[Insert]) -> Any:
        return [asyncio.CancelledError()] * len(commands)

    async with sandbox.bus(registry=registry_of(cancelled, size=2)) as bus, bus.worker():
        assert all(isinstance(each, CommandFailed) for each in await send(bus, 0, 1))


async def test_a_cancellation_that_a_library_lets_out_is_an_error_like_others(sandbox: Sandbox, calls: Calls) -> None:
    async def leaking(commands: Sequence[Insert]) -> Sequence[int]:
        if any(each.n == 7 for each in commands):
            raise asyncio.CancelledError
        return await calls.handle(commands)

    async with sandbox.bus(registry=registry_of(leaking)) as bus, bus.worker():
        replies = await send(bus, *range(8))
    assert replies[:7] == [10 * number for number in range(7)]
    assert isinstance(replies[7], CommandFailed)
    assert sorted(calls.done) == list(range(7)), "each once"


async def test_what_may_not_start_any_more_is_not_settled(
    sandbox: Sandbox, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = {1}  # whose lease is over when the batch is called, as after a loop that stood still
    monkeypatch.setattr(Runnable, "may_start", property(lambda run: run.message.n not in over))
    async with sandbox.bus(registry=registry_of(calls.handle)) as bus, bus.worker():
        replies = asyncio.ensure_future(send(bus, *range(4)))
        while not calls.made:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert not replies.done()
        over.clear()
        assert await replies == [0, 10, 20, 30]
    assert sorted(calls.done) == list(range(4))


@pytest.mark.parametrize("raises", [False, True])
async def test_one_error_of_a_call_is_settled_in_linear_time(sandbox: Sandbox, *, raises: bool) -> None:
    class Twice(Command[int], entity="row", retry=RetryPolicy(attempts=2, delay=60)):
        row: EntityId

    registry, shared = HandlerRegistry(), ValueError("all the same")

    @registry.handles_many(Twice, size=200, wait=0.3)
    async def failing(commands: Sequence[Twice]) -> Sequence[int | Exception]:
        if raises:
            raise ValueError("all the same")
        return [shared] * len(commands)

    async with sandbox.bus(registry=registry) as bus, bus.worker(concurrency=200):
        lengths: list[int] = []
        real = Decisions.failed

        def failed(self: Decisions, run: Any, error: BaseException) -> Any:
            lengths.append(len(traceback.extract_tb(error.__traceback__)))
            return real(self, run, error)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Decisions, "failed", failed)
            await bus.dispatch_batch(Twice(row=str(number)) for number in range(200))
            while len(lengths) < 200:
                await asyncio.sleep(0.02)
        await bus.entities.purge()
    assert max(lengths) < 20


async def test_the_shortest_time_of_its_commands_is_that_of_a_call(sandbox: Sandbox) -> None:
    registry, reasons = HandlerRegistry(), list[str | None]()

    @registry.handles_many(Insert, size=2, wait=0.2)
    def plain(commands: Sequence[Insert], contexts: Sequence[CommandContext]) -> Sequence[int]:
        time.sleep(0.4)
        reasons.extend(each.cancel_reason for each in contexts)
        return [each.n for each in commands]

    async with sandbox.bus(registry=registry) as bus, bus.worker():
        await bus.dispatch(Insert(row="a", n=1))
        await bus.dispatch(Insert(row="b", n=2), attempt_timeout=0.1, retry=ONCE)
        await bus.wait_idle(20)
        letters = [each async for each in bus.dead_letters.list()]
    assert reasons[:2] == ["timeout", "timeout"]
    assert [each.entity_id for each in letters] == ["b"]


async def test_contexts_send_as_their_commands_and_call_no_entity_of_the_batch(sandbox: Sandbox) -> None:
    class Other(Command[int], entity="other"):
        other: EntityId

    causes: dict[str, str | None] = {}
    cycles: list[str] = []

    async def calling(commands: Sequence[Insert], contexts: Sequence[CommandContext]) -> Sequence[int]:
        for each, context in zip(commands, contexts, strict=True):
            await context.dispatch(Other(other=str(each.n)))
        try:
            await contexts[0].call(Insert(row=str(commands[1].row), n=9), timeout=5)
        except CallCycle as error:
            cycles.append(error.message)
        return [each.n for each in commands]

    registry = registry_of(calling, size=2, wait=5.0)

    @registry.handles(Other)
    async def other(command: Other, context: CommandContext) -> int:
        causes[str(command.other)] = context.causation_id
        return 1

    async with sandbox.bus(registry=registry) as bus, bus.worker():
        ids = [(await bus.dispatch(Insert(row=f"r{number}", n=number))).command_id for number in range(2)]
        await bus.wait_idle(20)
    assert causes == {"0": ids[0], "1": ids[1]}
    assert "in the same batch" in cycles[0]


async def test_where_no_more_can_wait_the_batch_is_called(sandbox: Sandbox, calls: Calls) -> None:
    bus = sandbox.bus(registry=registry_of(calls.handle, size=100, wait=60.0), max_waiting=5)
    async with bus, bus.worker(concurrency=2):
        replies = asyncio.ensure_future(send(bus, *range(5)))
        done, _ = await asyncio.wait({replies}, timeout=20)
        assert done
    assert sorted(calls.done) == list(range(5))
