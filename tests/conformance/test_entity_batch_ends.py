"""Handlers that take neighbours of one entity: middleware around them, their ends from outside, and what they send."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from command_bus import (
    Command,
    CommandContext,
    CommandFailed,
    CommandRejected,
    EntityId,
    Envelope,
    GiveUp,
    HandlerRegistry,
    Middleware,
    Reject,
)
from tests.conformance.conftest import Sandbox
from tests.conformance.entity_batches import Append, Calls, Log, registry_of, run

pytestmark = pytest.mark.server


@pytest.fixture
def calls() -> Calls:
    return Calls()


class Noting(Middleware):
    """Notes calls; `times` of those that fail it makes again."""

    def __init__(self, times: int = 0) -> None:
        self.seen: list[tuple[str, list[int]]] = []
        self.times = times

    async def handle_many(self, commands: Sequence[Any], contexts: Sequence[CommandContext], proceed: Any) -> Any:
        assert all(context.entity == "log:a" for context in contexts)
        numbers = [each.n for each in commands]
        try:
            found = await proceed()
        except ValueError:
            self.seen.append(("failed", numbers))
            self.times -= 1
            if self.times < 0:
                raise
            found = await proceed()
        self.seen.append(("done", numbers))
        return found


async def test_middleware_that_takes_calls_is_around_each(sandbox: Sandbox, calls: Calls) -> None:
    calls.bad, calls.times, noting = {3}, 2, Noting()
    async with sandbox.bus(registry=registry_of(calls.handle, size=4), middleware=[noting]) as bus:
        assert await run(bus, 4) == [0, 10, 20, 30]
    assert noting.seen == [("failed", [0, 1, 2, 3]), ("done", [0, 1]), ("failed", [2, 3]), ("done", [2]), ("done", [3])]


async def test_middleware_that_calls_again_gives_a_state_as_it_was_stored(sandbox: Sandbox) -> None:
    failures = iter([True])

    async def stateful(commands: Sequence[Append], log: Log) -> Sequence[int]:
        log.last += len(commands)
        if next(failures, False):
            raise ValueError("once")
        return [log.last] * len(commands)

    async with sandbox.bus(registry=registry_of(stateful, size=4), middleware=[Noting(times=1)]) as bus:
        assert await run(bus, 4) == [3, 3, 3, 3]
        assert await bus.states.get(Log, "a") == Log(last=3)


async def test_middleware_that_takes_single_commands_gets_them_one_by_one(
    sandbox: Sandbox, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    class Guard(Middleware):
        tried = 0

        async def handle(self, command: Any, context: CommandContext, proceed: Any) -> Any:
            if command.n == 1:
                raise Reject("not this one")
            try:
                return await proceed()
            except ValueError:
                self.tried += 1
                return await proceed()

    guard = Guard()
    calls.bad, calls.times = {2}, 1
    async with sandbox.bus(registry=registry_of(calls.handle, size=4), middleware=[guard]) as bus:
        replies = await run(bus, 4)
    assert isinstance(replies.pop(1), CommandRejected)
    assert replies == [0, 20, 30]
    assert calls.made == [[0], [2], [2], [3]]
    assert guard.tried == 1
    assert "commands run one by one, because a middleware has `handle`" in caplog.text


@pytest.mark.parametrize("ends", ["cancel", "abort"])
async def test_a_thread_ends_before_the_next_of_its_entity_begins(sandbox: Sandbox, ends: str) -> None:
    begun, now, most, made = threading.Event(), list[int](), list[int](), list[list[int]]()

    def plain(commands: Sequence[Append]) -> list[int]:
        now.append(1)
        most.append(len(now))
        made.append([each.n for each in commands])
        if not begun.is_set():
            begun.set()
            time.sleep(1.5)
        now.pop()
        return [each.n for each in commands]

    async with sandbox.bus(registry=registry_of(plain)) as bus:
        await bus.dispatch_batch(Envelope(Append(log="a", n=n), command_id=f"c{n}") for n in range(4))
        async with bus.worker():
            await asyncio.to_thread(begun.wait)
            if ends == "cancel":
                assert await bus.cancel("c0", running=True, wait=20)
            else:
                assert (await bus.entity("log", "a").abort("it hangs", wait=20)).result == "ended"
            await bus.wait_idle(20)
    assert max(most) == 1
    assert made == ([[0, 1, 2, 3], [1, 2, 3]] if ends == "cancel" else [[0, 1, 2, 3], [0], [1, 2], [3]])


class Mail(Command[None], entity="letter"):
    letter: EntityId
    n: int


def mailing(function: Callable[..., Any]) -> tuple[HandlerRegistry, list[int]]:
    registry, mails = registry_of(function), list[int]()

    @registry.handles(Mail)
    async def mail(command: Mail) -> None:
        mails.append(command.n)

    return registry, mails


@pytest.mark.parametrize("fault", ["a returned error", "a state that does not fit"])
async def test_what_a_call_has_sent_is_sent_once_with_a_state(sandbox: Sandbox, fault: str) -> None:
    async def sending(commands: Sequence[Append], contexts: Sequence[CommandContext], log: Log) -> Sequence[int | Exception]:
        for each, context in zip(commands, contexts, strict=True):
            context.send(Mail(letter="q", n=each.n))
            log.last = each.n
            if each.n == 5 and fault.startswith("a state"):
                log.last = "much too long"  # type: ignore[assignment]
        return [Reject("no") if each.n == 5 and fault.startswith("a returned") else each.n for each in commands]

    registry, mails = mailing(sending)
    async with sandbox.bus(registry=registry) as bus:
        replies = await run(bus, 8)
        async with bus.worker():
            await bus.wait_idle(20)
        assert await bus.states.get(Log, "a") == Log(last=7)
    assert isinstance(replies[5], Exception)
    assert mails == [0, 1, 2, 3, 4, 6, 7]


@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("error", [Reject("not sent"), GiveUp("not sent")])
async def test_what_cannot_be_sent_fails_its_own_command(sandbox: Sandbox, error: Exception, *, has_state: bool) -> None:
    class Refusing(Middleware):
        async def dispatch(self, outgoing: Any, proceed: Any) -> Any:
            if outgoing.name == "Mail" and outgoing.command.n == 2:
                raise error
            return await proceed(outgoing)

    async def sending(commands: Sequence[Append], contexts: Sequence[CommandContext]) -> Sequence[int]:
        for each, context in zip(commands, contexts, strict=True):
            context.send(Mail(letter="q", n=each.n))
        return [each.n for each in commands]

    async def stateful(commands: Sequence[Append], contexts: Sequence[CommandContext], log: Log) -> Sequence[int]:
        for each in commands:
            log.last = each.n
        return await sending(commands, contexts)

    registry, mails = mailing(stateful if has_state else sending)
    async with sandbox.bus(registry=registry, middleware=[Refusing()]) as bus:
        replies = await run(bus, 6)
        async with bus.worker():
            await bus.wait_idle(20)
        if has_state:
            assert await bus.states.get(Log, "a") == Log(last=5)
    assert isinstance(replies.pop(2), Exception)
    assert replies == [0, 1, 3, 4, 5]
    assert mails == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("turned", ["error", "return"])
@pytest.mark.parametrize("count", [1, 4])
async def test_a_cancellation_counts_whatever_the_handler_makes_of_it(
    sandbox: Sandbox, calls: Calls, turned: str, count: int
) -> None:
    begun = asyncio.Event()

    async def driver(commands: Sequence[Append]) -> Sequence[int]:
        if not begun.is_set():
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if turned == "error":
                    raise ValueError("connection closed") from None
        return await calls.handle(commands) if not calls.made else [each.n for each in commands]

    async with sandbox.bus(registry=registry_of(driver)) as bus:
        await bus.dispatch_batch(Envelope(Append(log="a", n=n), command_id=f"c{n}") for n in range(count))
        async with bus.worker():
            await begun.wait()
            assert await bus.cancel("c0", running=True, wait=20)
            await bus.wait_idle(20)
        assert (await bus.stats()).cancelled == 1


@pytest.mark.parametrize("middleware", [[], [Noting()]])
async def test_an_exit_that_a_handler_raises_ends_no_worker(sandbox: Sandbox, calls: Calls, middleware: Any) -> None:
    calls.bad, calls.error = {2}, lambda: SystemExit("x")
    async with sandbox.bus(registry=registry_of(calls.handle), middleware=middleware) as bus:
        replies = await run(bus, 4)
    assert isinstance(replies.pop(2), CommandFailed)
    assert replies == [0, 10, 30]


async def test_what_all_of_a_run_send_is_bounded(sandbox: Sandbox) -> None:
    sizes: list[int] = []

    async def sending(commands: Sequence[Append], contexts: Sequence[CommandContext]) -> Sequence[int]:
        for context in contexts:
            for number in range(400):
                context.send(Mail(letter=f"l{number % 7}", n=number))
        sizes.append(len(commands))
        return [each.n for each in commands]

    registry, mails = mailing(sending)
    async with sandbox.bus(registry=registry) as bus:
        assert await run(bus, 4) == [0, 1, 2, 3]
        async with bus.worker():
            await bus.wait_idle(30)
    assert max(sizes) == 2, "1,000 at most with one settlement"
    assert len(mails) == 1600


async def test_who_runs_with_others_is_shown_as_running(sandbox: Sandbox) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def waiting(commands: Sequence[Append]) -> Sequence[int]:
        begun.set()
        await go.wait()
        return [each.n for each in commands]

    async with sandbox.bus(registry=registry_of(waiting, size=4)) as bus:
        await bus.dispatch_batch(Envelope(Append(log="a", n=n), command_id=f"c{n}") for n in range(6))
        async with bus.worker():
            await begun.wait()
            found = [await bus.commands.status(f"c{n}") for n in range(6)]
            go.set()
            await bus.wait_idle(20)
    assert [(each.state, each.position) for each in found] == [
        ("running", 1),
        ("running", 2),
        ("running", 3),
        ("running", 4),
        ("waiting", 5),
        ("waiting", 6),
    ]


async def test_a_shared_state_is_not_deleted_for_one(sandbox: Sandbox) -> None:
    async def deleting(commands: Sequence[Append], contexts: Sequence[CommandContext], log: Log) -> Sequence[int]:
        contexts[0].delete_state()
        return []

    async with sandbox.bus(registry=registry_of(deleting)) as bus:
        for reply in await run(bus, 1):
            assert "set its fields to their defaults" in str(reply)
