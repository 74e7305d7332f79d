"""Errors of a user's code end their own command, the same for each kind of handler: never the worker, never a neighbour.

Batches were other once: a `GeneratorExit` of one command left all of its call without an end, and their leases were renewed for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pydantic import Field

from command_bus import (
    Command,
    CommandBus,
    CommandFailed,
    EntityId,
    EntityState,
    HandlerRegistry,
    Middleware,
    RetryPolicy,
)
from tests.conformance.conftest import Sandbox

pytestmark = pytest.mark.server
ONCE = RetryPolicy(attempts=1)
ERRORS = (ValueError, SystemExit, GeneratorExit, KeyboardInterrupt, StopAsyncIteration, asyncio.CancelledError)
BAD = 2


class Note(Command[int], entity="pad", retry=ONCE):
    pad: EntityId
    n: int


class Pad(EntityState, entity="pad"):
    total: int = 0


def checked(number: int, error: type[BaseException]) -> int:
    if number == BAD:
        raise error("bad")
    return number


def one(error: type[BaseException]) -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handles(Note)
    async def note(command: Note) -> int:
        await asyncio.sleep(0)
        return checked(command.n, error)

    return registry


def one_in_a_thread(error: type[BaseException]) -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handles(Note)
    def note(command: Note) -> int:
        return checked(command.n, error)

    return registry


def many(error: type[BaseException], **options: Any) -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handles_many(Note, size=4, **options)
    async def note(commands: Sequence[Note]) -> list[int]:
        await asyncio.sleep(0)
        return [checked(each.n, error) for each in commands]

    return registry


def many_in_a_thread(error: type[BaseException], **options: Any) -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handles_many(Note, size=4, **options)
    def note(commands: Sequence[Note]) -> list[int]:
        return [checked(each.n, error) for each in commands]

    return registry


def of_an_entity(error: type[BaseException]) -> HandlerRegistry:
    return many(error, of="entity")


def of_an_entity_in_a_thread(error: type[BaseException]) -> HandlerRegistry:
    return many_in_a_thread(error, of="entity")


def with_a_state(error: type[BaseException]) -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handles_many(Note, of="entity", size=4)
    async def note(commands: Sequence[Note], state: Pad) -> list[int]:
        await asyncio.sleep(0)
        state.total += len(commands)
        return [checked(each.n, error) for each in commands]

    return registry


async def eventually(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.01)


KINDS: tuple[Callable[[type[BaseException]], HandlerRegistry], ...] = (
    one, one_in_a_thread, many, many_in_a_thread, of_an_entity, of_an_entity_in_a_thread, with_a_state,
)  # fmt: skip


async def sent(bus: CommandBus, *, to_one: bool) -> list[Any]:
    """Let four commands wait, then run them; return what their callers got."""
    made = [Note(pad="a" if to_one else f"p{n}", n=n) for n in range(4)]
    replies = [asyncio.ensure_future(bus.call(each, timeout=10)) for each in made]
    while (await bus.stats()).depth < len(made):
        await asyncio.sleep(0.01)
    async with bus.worker(concurrency=4):
        return await asyncio.gather(*replies, return_exceptions=True)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_ends_its_own_command_as_failed(
    sandbox: Sandbox, kind: Callable[[type[BaseException]], HandlerRegistry], error: type[BaseException]
) -> None:
    async with sandbox.bus(registry=kind(error)) as bus:
        replies = await sent(bus, to_one=kind in (of_an_entity, of_an_entity_in_a_thread, with_a_state))
        failed = replies.pop(BAD)
        assert isinstance(failed, CommandFailed)
        assert error.__name__ in failed.message
        assert replies == [0, 1, 3]
        if kind is with_a_state:
            state = await bus.states.get(Pad, "a")
            assert state is not None
            assert state.total == 3


def exits(*_: Any, **__: Any) -> Any:
    raise SystemExit("of a function that is no handler")


class ExitingMiddleware(Middleware):
    async def handle(self, command: Any, context: Any, proceed: Any) -> Any:
        return exits() if command.n == BAD else await proceed()


@pytest.mark.parametrize("place", ["default of a state", "middleware", "backoff", "validator of a reply"])
async def test_an_exit_beside_a_handler_ends_no_worker(sandbox: Sandbox, place: str) -> None:
    """The rest of the fleet would meet it next."""
    registry, middleware, runs = HandlerRegistry(), [ExitingMiddleware()] if place == "middleware" else [], list[int]()

    def exiting(attempt: int, error: BaseException) -> float:
        return exits() if runs else 0.1 * attempt  # it is tried when the class is made

    retry = RetryPolicy(attempts=2, backoff=exiting) if place == "backoff" else ONCE

    class Odd(Command[int], entity="pad", retry=retry):
        pad: EntityId
        n: int

    class Fine(Command[int], entity="other"):
        other: EntityId
        n: int = 0

    if place == "default of a state":

        class Exiting(EntityState, entity="pad"):
            total: int = Field(default_factory=lambda: exits() if runs else 0)

        @registry.handles(Odd)
        async def with_state(command: Odd, state: Exiting) -> int:
            return command.n

        runs.append(0)

    else:

        @registry.handles(Odd)
        async def odd(command: Odd) -> Any:
            runs.append(command.n)
            if place == "backoff":
                raise ValueError("again")
            return exits if place == "validator of a reply" else command.n

    @registry.handles(Fine)
    async def fine(command: Fine) -> int:
        return command.n

    async with sandbox.bus(registry=registry, middleware=middleware, unknown_grace=0.0) as bus, bus.worker():
        await bus.dispatch(Odd(pad="a", n=BAD), command_id="odd")
        assert await bus.call(Fine(other="b", n=5), timeout=10) == 5

        async with asyncio.timeout(20):
            while (await bus.stats()).depth and not [each async for each in bus.dead_letters.list()]:
                await asyncio.sleep(0.01)
        assert await bus.call(Fine(other="b", n=6), timeout=10) == 6


async def test_a_call_that_swallows_its_cancellation_keeps_its_entities_no_longer_than_others(sandbox: Sandbox) -> None:
    """Past `attempt_timeout` and the grace another worker takes them, as those of a handler of one command."""
    starts, is_over = list[int](), asyncio.Event()

    class Timed(Command[int], entity="pad", retry=RetryPolicy(attempts=3, delay=0.01), attempt_timeout=0.2):
        pad: EntityId

    registry = HandlerRegistry()

    @registry.handles_many(Timed, size=4, wait=0.05)
    async def stubborn(commands: Sequence[Timed]) -> list[int]:
        starts.append(len(commands))
        while len(starts) == 1 and not is_over.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue
        return [1] * len(commands)

    options: dict[str, Any] = {"registry": registry, "lease": 0.6, "grace": 0.6}
    async with sandbox.bus(**options) as bus, sandbox.bus(**options) as other, bus.worker():
        call = asyncio.ensure_future(bus.call(Timed(pad="a"), timeout=8))
        await eventually(lambda: bool(starts))
        async with other.worker():
            try:
                assert await call == 1
            finally:
                is_over.set()
    assert starts == [1, 1]


async def test_what_waits_for_room_is_called_when_a_call_of_another_handler_ends(sandbox: Sandbox) -> None:
    registry, free, begun = HandlerRegistry(), asyncio.Event(), asyncio.Event()

    class Slow(Command[int], entity="slow"):
        slow: EntityId

    @registry.handles_many(Slow, size=2, wait=0.001)
    async def slow(commands: Sequence[Slow]) -> list[int]:
        begun.set()
        await free.wait()
        return [0] * len(commands)

    @registry.handles_many(Note, size=100, wait=60.0)
    async def note(commands: Sequence[Note]) -> list[int]:
        return [each.n for each in commands]

    async with sandbox.bus(registry=registry, max_waiting=5) as bus, bus.worker(concurrency=6) as worker:
        first = asyncio.ensure_future(bus.call(Slow(slow="s"), timeout=20))
        await begun.wait()
        replies = [asyncio.ensure_future(bus.call(Note(pad=f"p{n}", n=n), timeout=20)) for n in range(5)]
        await eventually(lambda: worker.running >= 6)
        free.set()
        assert await first == 0
        assert await asyncio.gather(*replies) == list(range(5))
