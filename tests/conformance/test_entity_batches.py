"""Handlers that take neighbours of one entity: their order, whose failure it is, and that each command ends by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from command_bus import (
    Command,
    CommandContext,
    CommandFailed,
    CommandRejected,
    EntityId,
    EntityPolicy,
    Envelope,
    GiveUp,
    HandlerRegistry,
    Limit,
    RegistrationError,
    Reject,
    Snooze,
    Unique,
    lanes,
)
from tests.conformance.conftest import Sandbox
from tests.conformance.entity_batches import Append, Calls, Log, registry_of, run

pytestmark = pytest.mark.server


@pytest.fixture
def calls() -> Calls:
    return Calls()


async def test_neighbours_are_one_call_in_their_order_and_each_has_its_reply(sandbox: Sandbox, calls: Calls) -> None:
    async with sandbox.bus(registry=registry_of(calls.handle)) as bus:
        assert await run(bus, 20) == [10 * number for number in range(20)]
        stats = await bus.stats()
    assert calls.made == [list(range(8)), list(range(8, 16)), list(range(16, 20))]
    assert (stats.depth, stats.completed) == (0, 20)


async def test_more_than_is_read_at_a_time_is_one_call(sandbox: Sandbox, calls: Calls) -> None:
    async with sandbox.bus(registry=registry_of(calls.handle, size=256)) as bus:
        await bus.dispatch_batch(Append(log=f"e{n % 3}", n=n) for n in range(900))
        async with bus.worker():
            await bus.wait_idle(30)
    assert sorted(map(len, calls.made)) == [44, 44, 44, 256, 256, 256]
    for row in range(3):
        assert [number for number in calls.done if number % 3 == row] == list(range(row, 900, 3))


@pytest.mark.parametrize("bad", [0, 3, 7])
async def test_a_poisoned_one_is_found_and_those_before_it_are_settled_at_once(sandbox: Sandbox, calls: Calls, bad: int) -> None:
    calls.bad = {bad}
    async with sandbox.bus(registry=registry_of(calls.handle)) as bus:
        replies = await run(bus, 8)
        letters = [(letter.payload, letter.attempts) async for letter in bus.dead_letters.list()]
    assert letters == [({"log": "a", "n": bad}, 3)], "by its own attempts"
    assert isinstance(replies.pop(bad), CommandFailed)
    assert replies == [10 * number for number in range(8) if number != bad]
    assert calls.done == [number for number in range(8) if number != bad], "in order, each effect once"


async def test_who_fails_counts_its_own_attempts(sandbox: Sandbox) -> None:
    seen: list[tuple[int, int]] = []

    async def third(commands: Sequence[Append], contexts: Sequence[CommandContext]) -> Sequence[int]:
        seen.extend((each.n, context.attempt) for each, context in zip(commands, contexts, strict=True))
        if any(each.n == 2 and context.attempt < 3 for each, context in zip(commands, contexts, strict=True)):
            raise ValueError("not yet")
        return [each.n for each in commands]

    async with sandbox.bus(registry=registry_of(third, size=4)) as bus:
        assert await run(bus, 4) == [0, 1, 2, 3]
    assert {attempt for n, attempt in seen if n == 2} == {1, 2, 3}
    assert {attempt for n, attempt in seen if n == 3} == {1}, "who ran with it has not failed"


async def test_outcomes_end_where_one_has_failed(sandbox: Sandbox) -> None:
    made: list[list[int]] = []

    async def outcomes(commands: Sequence[Append]) -> Sequence[int | Exception]:
        made.append([each.n for each in commands])
        ends: dict[int, Any] = {1: Reject("no"), 5: GiveUp("broken")}
        if len(made) <= 3:
            ends[3] = Snooze(0.05)
        return [ends.get(each.n, each.n) for each in commands]

    async with sandbox.bus(registry=registry_of(outcomes)) as bus:
        replies = await run(bus, 8)
    assert isinstance(replies.pop(1), CommandRejected)
    assert isinstance(replies.pop(4), CommandFailed)
    assert replies == [0, 2, 3, 4, 6, 7]
    assert made == [list(range(8)), *[list(range(3, 8))] * 3, [6, 7]], "what was behind it was not done"


@pytest.mark.parametrize("answer", [[1], [1, 2, 3], "ab", 7])
async def test_wrong_outcomes_fail_all_and_nothing_is_called_again(sandbox: Sandbox, answer: Any) -> None:
    made: list[int] = []

    async def wrong(commands: Sequence[Append]) -> Any:
        made.append(len(commands))
        return answer

    async with sandbox.bus(registry=registry_of(wrong, size=2)) as bus:
        for reply in await run(bus, 2):
            assert isinstance(reply, CommandFailed)
            assert "an outcome for each" in str(reply)
    assert made == [2]


@pytest.mark.parametrize("error", [GiveUp("no"), Reject("no"), Snooze(0.01), asyncio.CancelledError()])
async def test_a_raised_end_is_that_of_one_command(sandbox: Sandbox, calls: Calls, error: BaseException) -> None:
    calls.bad, calls.error, calls.times = {2}, lambda: error, 4
    async with sandbox.bus(registry=registry_of(calls.handle)) as bus:
        replies = await run(bus, 8)
    ended = [n for n, each in enumerate(replies) if isinstance(each, Exception)]
    assert ended == ([] if isinstance(error, Snooze) else [2])
    assert calls.done == [n for n in range(8) if n not in ended]


async def test_the_state_is_read_once_and_is_that_of_the_settled_ones(sandbox: Sandbox) -> None:
    made: list[list[int]] = []

    async def stateful(commands: Sequence[Append], log: Log) -> Sequence[int]:
        made.append([each.n for each in commands])
        for each in commands:
            assert each.n == log.last + 1
            log.last = each.n
            if each.n == 5 and len(made) < 8:
                raise ValueError("poisoned")
        return [log.last] * len(commands)

    async with sandbox.bus(registry=registry_of(stateful)) as bus:
        replies = await run(bus, 8)
        state = await bus.states.get(Log, "a")
    assert state == Log(last=7)
    assert made[:4] == [list(range(8)), list(range(4)), list(range(4, 8)), [4, 5]], "what a call that failed has changed is void"
    assert [isinstance(each, Exception) for each in replies] == [False] * 8


async def test_a_plain_function_and_its_state(sandbox: Sandbox) -> None:
    def plain(commands: Sequence[Append], log: Log) -> list[int]:
        log.last = commands[-1].n
        return [log.last for _ in commands]

    async with sandbox.bus(registry=registry_of(plain)) as bus:
        assert await run(bus, 8) == [7] * 8
        assert await bus.states.get(Log, "a") == Log(last=7)


async def test_another_class_ends_a_run(sandbox: Sandbox, calls: Calls) -> None:
    class Close(Command[None], entity="log"):
        log: EntityId

    registry, order = registry_of(calls.handle), calls.made

    @registry.handles(Close)
    async def close(command: Close) -> None:
        order.append([])

    async with sandbox.bus(registry=registry) as bus:
        for n in range(9):
            await bus.dispatch(Close(log="a") if n % 4 == 3 else Append(log="a", n=n))
        async with bus.worker():
            await bus.wait_idle(20)
    assert order == [[0, 1, 2], [], [4, 5, 6], [], [8]]


async def test_what_is_late_or_unreadable_ends_by_itself(sandbox: Sandbox, calls: Calls) -> None:
    async with sandbox.bus(registry=registry_of(calls.handle)) as bus:
        for n in range(6):
            options: dict[str, Any] = {"expires": 0.001} if n == 2 else {}
            await bus.dispatch(Append(log="a", n=n), **options)
        await asyncio.sleep(0.05)
        async with bus.worker():
            await bus.wait_idle(20)
        assert [letter.reason async for letter in bus.dead_letters.list()] == ["expired"]
    assert calls.made == [[0, 1], [3, 4, 5]]


async def test_each_context_is_of_its_command(sandbox: Sandbox) -> None:
    class Mail(Command[None], entity="letter"):
        letter: EntityId

    mails: list[str] = []

    async def sending(commands: Sequence[Append], contexts: Sequence[CommandContext]) -> Sequence[int]:
        for each, context in zip(commands, contexts, strict=True):
            assert context.command_id == f"c{each.n}"
            context.send(Mail(letter=context.command_id))
        if any(each.n == 5 for each in commands):
            raise GiveUp("poisoned")
        return [each.n for each in commands]

    registry = registry_of(sending)

    @registry.handles(Mail)
    async def mail(command: Mail) -> None:
        mails.append(str(command.letter))

    async with sandbox.bus(registry=registry) as bus:
        await bus.dispatch_batch(Envelope(Append(log="a", n=n), command_id=f"c{n}") for n in range(8))
        async with bus.worker():
            await bus.wait_idle(20)
    assert sorted(mails) == [f"c{n}" for n in range(8) if n != 5], "what a failed call has sent is not sent"


async def test_a_cancelled_one_ends_the_call_and_the_others_run_again(sandbox: Sandbox, calls: Calls) -> None:
    begun, real = asyncio.Event(), calls.handle

    async def hanging(commands: Sequence[Append], contexts: Sequence[CommandContext]) -> Sequence[int]:
        if any(each.n == 0 for each in commands):
            begun.set()
            await asyncio.sleep(60)
        return await real(commands)

    async with sandbox.bus(registry=registry_of(hanging)) as bus:
        await bus.dispatch_batch(Envelope(Append(log="a", n=n), command_id=f"c{n}") for n in range(4))
        async with bus.worker():
            await begun.wait()
            assert not await bus.cancel("c2"), "it runs"
            assert await bus.cancel("c0", running=True, wait=20)
            await bus.wait_idle(20)
    assert calls.made == [[1, 2, 3]]


async def test_an_aborted_call_runs_one_by_one_and_counts_for_one(sandbox: Sandbox, calls: Calls) -> None:
    begun, real = asyncio.Event(), calls.handle

    async def hanging(commands: Sequence[Append]) -> Sequence[int]:
        if len(commands) > 1 and not begun.is_set():
            begun.set()
            await asyncio.sleep(60)
        return await real(commands)

    async with sandbox.bus(registry=registry_of(hanging)) as bus:
        await bus.dispatch_batch(Append(log="a", n=n) for n in range(8))
        async with bus.worker():
            await begun.wait()
            report = await bus.entity("log", "a").abort("it hangs", wait=20)
            assert report.result == "ended"
            await bus.wait_idle(20)
    assert calls.made == [[0], [1, 2], [3, 4, 5, 6], [7]], "each that settles something doubles the next one"


async def test_what_waits_behind_a_run_can_be_removed_and_is_not_called(sandbox: Sandbox, calls: Calls) -> None:
    begun, go, real = asyncio.Event(), asyncio.Event(), calls.handle

    async def waiting(commands: Sequence[Append]) -> Sequence[int]:
        begun.set()
        await go.wait()
        return await real(commands)

    async with sandbox.bus(registry=registry_of(waiting, size=4)) as bus:
        await bus.dispatch_batch(Envelope(Append(log="a", n=n), command_id=f"c{n}") for n in range(8))
        async with bus.worker():
            await begun.wait()
            assert [await bus.cancel(f"c{n}") for n in (0, 3, 4, 6)] == [False, False, True, True]
            go.set()
            await bus.wait_idle(20)
    assert calls.made == [[0, 1, 2, 3], [5, 7]]


async def test_a_key_of_one_that_runs_with_others_is_held(sandbox: Sandbox, calls: Calls) -> None:
    begun, go, real = asyncio.Event(), asyncio.Event(), calls.handle

    async def waiting(commands: Sequence[Append]) -> Sequence[int]:
        begun.set()
        await go.wait()
        return await real(commands)

    async with sandbox.bus(registry=registry_of(waiting, size=4)) as bus:
        for n in range(4):
            await bus.dispatch(Append(log="a", n=n), unique=Unique(f"k{n}", until="started"))
        async with bus.worker():
            await begun.wait()
            again = await bus.dispatch(Append(log="a", n=10), unique=Unique("k2", until="started"))
            assert again.status == "accepted", "it runs, so it holds its key no more"
            go.set()
            await bus.wait_idle(20)
        assert (await bus.stats()).depth == 0
    assert calls.done == [0, 1, 2, 3, 10]


def test_what_is_no_batch_handler_of_one_entity() -> None:
    class Free(Command[None]):
        n: int

    class Keyed(Command[None], entity="log", limits=(Limit("partner", key="n"),)):
        log: EntityId
        n: str

    registry = HandlerRegistry()

    async def many(commands: Any) -> None: ...

    for options in ({"size": 1}, {"size": 257}, {"wait": 0.1}, {"of": "row"}):
        with pytest.raises(RegistrationError, match=r"size is|does not wait|of is"):
            registry.handles_many(Append, **{"of": "entity", **options})  # type: ignore[arg-type]
    with pytest.raises(RegistrationError, match="has no entity"):
        registry.handles_many(Free, of="entity")(many)
    with pytest.raises(RegistrationError, match="each command chooses"):
        registry.handles_many(Keyed, of="entity")(many)


async def test_lanes_have_no_batches_of_one_entity(sandbox: Sandbox, calls: Calls) -> None:
    async with sandbox.bus(registry=registry_of(calls.handle), entities={"log": EntityPolicy(mailbox=lanes(2))}) as bus:
        with pytest.raises(RegistrationError, match="a lane has commands of several"):
            await bus.worker().start()
