"""A command is cancelled although it has started: in a coroutine, in a thread, in a retry, suspended. Over every server."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from command_bus import (
    Command,
    CommandBus,
    CommandCancelled,
    CommandContext,
    CommandTimeout,
    DurableContext,
    EntityId,
    HandlerRegistry,
    InvalidCommand,
    RetryPolicy,
    SyncCommandBus,
)
from command_bus.transport.interrupts import Interrupt
from command_bus.transport.redis.interrupts import RedisInterrupts
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until


class Hang(Command[int], entity="box"):
    box: EntityId
    swallows: bool = False


class HangOnce(Command[int], entity="box", delivery="at_most_once"):
    box: EntityId


class Thread(Command[int], entity="box"):
    box: EntityId


class Deaf(Command[int], entity="box"):
    box: EntityId


class Fail(Command[int], entity="box", retry=RetryPolicy(attempts=5, delay=60)):
    box: EntityId


class Note(Command[int], entity="box"):
    box: EntityId


class Trip(Command[str], entity="trip", durable=True):
    trip: EntityId
    waits: bool = True


class Detour(Command[str], entity="trip", durable=True, retry=RetryPolicy(attempts=2, delay=60)):
    trip: EntityId


@dataclass
class Seen:
    """Records of the handlers."""

    starts: list[str] = field(default_factory=list)
    contexts: list[CommandContext] = field(default_factory=list)
    free: asyncio.Event = field(default_factory=asyncio.Event)
    thread_free: threading.Event = field(default_factory=threading.Event)

    async def started(self, count: int = 1) -> None:
        await until(lambda: len(self.starts) >= count)


@pytest.fixture
def seen(sandbox: Sandbox) -> Iterator[Seen]:
    seen = Seen()
    _plain(sandbox.registry, seen)
    _others(sandbox.registry, seen)
    yield seen
    seen.thread_free.set()


def _plain(registry: HandlerRegistry, seen: Seen) -> None:
    @registry.handles(Hang)
    async def hang(command: Hang, context: CommandContext) -> int:
        seen.contexts.append(context)
        seen.starts.append("hang")
        context.send(Note(box=command.box), on="always")
        if command.swallows:
            with contextlib.suppress(asyncio.CancelledError):
                await seen.free.wait()
            return 7
        await seen.free.wait()
        return 1

    @registry.handles(HangOnce)
    async def hang_once(command: HangOnce) -> int:
        seen.starts.append("once")
        await seen.free.wait()
        return 1

    @registry.handles(Thread)
    def thread(command: Thread, context: CommandContext) -> int:
        seen.contexts.append(context)
        seen.starts.append("thread")
        while not seen.thread_free.wait(0.01) and not context.cancelled:
            pass
        return 1

    @registry.handles(Note)
    async def note(command: Note) -> int:
        seen.starts.append("note")
        return 1


def _others(registry: HandlerRegistry, seen: Seen) -> None:
    @registry.handles(Fail)
    async def fail(command: Fail) -> int:
        seen.starts.append("fail")
        raise OSError("no network")

    @registry.handles(Trip)
    async def trip(command: Trip, context: DurableContext) -> str:
        seen.starts.append("trip")
        await context.step("book", _booked)
        if command.waits:
            await context.signal("go")
        await seen.free.wait()
        await context.sleep(60)
        return "done"

    @registry.handles(Detour)
    async def detour(command: Detour, context: DurableContext) -> str:
        seen.starts.append("detour")
        await context.step("book", _booked)
        context.compensate(Note(box="undone"))
        if context.attempt == 1 and len(seen.starts) == 1:
            raise OSError("no network")
        await context.sleep(60)
        return "done"


def _booked() -> int:
    return 1


async def _cancelled(bus: CommandBus, seen: Seen, command: Command[Any], *, count: int = 1) -> CommandCancelled:
    """Cancel a command once it runs; return the error of its caller."""
    call = asyncio.create_task(bus.call(command, command_id="c-1", timeout=20))
    await seen.started(count)
    assert await bus.commands.cancel("c-1", running=True, reason="wrong day")
    with pytest.raises(CommandCancelled) as error:
        await call
    return error.value


@pytest.mark.promise("Started commands can be cancelled")
@pytest.mark.parametrize("command", [Hang(box="a"), HangOnce(box="a"), Thread(box="a")])
async def test_a_handler_ends_and_its_entity_goes_on(sandbox: Sandbox, seen: Seen, command: Command[Any]) -> None:
    async with sandbox.bus() as bus, bus.worker():
        began = asyncio.get_running_loop().time()
        error = await _cancelled(bus, seen, command)
        assert asyncio.get_running_loop().time() - began < 4
        assert error.message == "wrong day; it had started, and may have run partly or fully"
        assert await bus.call(Note(box="a"), timeout=10) == 1
        assert seen.starts == [*seen.starts[:1], "note"]  # started once, and its own follow-up is not sent
        assert not await bus.commands.cancel("c-1", running=True)
        assert [letter async for letter in bus.dead_letters.list()] == []
        for context in seen.contexts:
            assert context.cancel_reason == "wrong day"


async def test_without_running_it_is_left_alone(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        call = asyncio.create_task(bus.call(Hang(box="a"), command_id="c-1", timeout=20))
        await seen.started()
        assert not await bus.cancel("c-1")
        seen.free.set()
        assert await call == 1


async def test_one_with_a_generated_id(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Hang(box="a"))
        await seen.started()
        assert await bus.cancel(receipt.command_id, running=True)
        assert await bus.call(Note(box="a"), timeout=10) == 1
        assert await bus.entity("box", "a").depth() == 0


async def test_a_handler_that_swallows_it_is_settled_as_cancelled_all_the_same(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await _cancelled(bus, seen, Hang(box="a", swallows=True))
        assert seen.starts == ["hang"]


@pytest.mark.promise("Started commands can be cancelled")
async def test_the_result_of_a_handler_that_was_first_stands(
    sandbox: Sandbox, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = RedisInterrupts.request

    async def late(self: RedisInterrupts, mailbox: str, interrupt: Interrupt) -> None:
        seen.free.set()
        await until(call.done)
        await request(self, mailbox, interrupt)

    async with sandbox.bus() as bus, bus.worker():
        call = asyncio.create_task(bus.call(Hang(box="a"), command_id="c-1", timeout=20))
        await seen.started()
        monkeypatch.setattr(RedisInterrupts, "request", late)
        assert not await bus.commands.cancel("c-1", running=True)
        assert await call == 1
        # What was asked for is left over, and meets no later start.
        seen.free.clear()
        second = asyncio.create_task(bus.call(Hang(box="a"), command_id="c-2", timeout=20))
        await seen.started(3)  # the first, its follow-up, the second
        await asyncio.sleep(1.5)
        assert not second.done()
        seen.free.set()
        assert await second == 1


@pytest.mark.promise("Started commands can be cancelled")
async def test_one_that_waits_for_a_retry_is_taken_out(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        call = asyncio.create_task(bus.call(Fail(box="a"), command_id="c-1", timeout=20))
        await seen.started()
        assert await bus.commands.cancel("c-1", running=True)
        with pytest.raises(CommandCancelled):
            await call
        assert await bus.call(Note(box="a"), timeout=10) == 1


@pytest.mark.promise("Started commands can be cancelled")
async def test_an_attempt_that_another_worker_took_over_is_asked_for_again(
    sandbox: Sandbox, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, asked = RedisInterrupts.request, list[str]()

    async def lost(self: RedisInterrupts, mailbox: str, interrupt: Interrupt) -> None:
        asked.append(interrupt.attempt_id)
        if len(asked) == 1:  # its worker leaves, and hands the command to the next
            await first.stop(grace=0)
            await second.start()
            await seen.started(2)
        await request(self, mailbox, interrupt)

    async with sandbox.bus() as bus:
        first, second = bus.worker(), bus.worker()
        await first.start()
        call = asyncio.create_task(bus.call(Hang(box="a"), command_id="c-1", timeout=20))
        await seen.started()
        monkeypatch.setattr(RedisInterrupts, "request", lost)
        assert await bus.commands.cancel("c-1", running=True)
        with pytest.raises(CommandCancelled):
            await call
        assert len(set(asked)) == 2
        await second.stop()


async def test_a_thread_that_does_not_look_is_cancelled_at_its_end(sandbox: Sandbox, seen: Seen) -> None:
    @sandbox.registry.handles(Deaf)
    def deaf(command: Deaf) -> int:
        seen.starts.append("deaf")
        seen.thread_free.wait(30)
        return 5

    async with sandbox.bus() as bus, bus.worker():
        call = asyncio.create_task(bus.call(Deaf(box="a"), command_id="c-1", timeout=20))
        await seen.started()
        assert await bus.commands.cancel("c-1", running=True, wait=2.5)
        assert not call.done()
        seen.thread_free.set()
        with pytest.raises(CommandCancelled):
            await call


async def test_who_cancels_does_not_replace_what_gives_the_handler_up(sandbox: Sandbox, seen: Seen) -> None:
    @sandbox.registry.handles(Deaf)
    def deaf(command: Deaf) -> int:
        seen.starts.append("deaf")
        seen.thread_free.wait(30)
        return 5

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Deaf(box="a"), command_id="c-1")
        await seen.started()
        abort = asyncio.create_task(bus.entity("box", "a").abort(force=True, wait=6))
        while not abort.done():
            with contextlib.suppress(CommandTimeout):
                await bus.commands.cancel("c-1", running=True, wait=0.01)
        assert abort.result().result in ("ended", "finished")  # the cancel of the next attempt may stand where the answer was
        seen.thread_free.set()


async def test_no_answer_is_no_answer(sandbox: Sandbox, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(*_: object) -> None: ...

    async with sandbox.bus() as bus, bus.worker():
        call = asyncio.create_task(bus.call(Hang(box="a"), command_id="c-1", timeout=20))
        await seen.started()
        with monkeypatch.context() as patched:
            patched.setattr(RedisInterrupts, "request", lost)
            with pytest.raises(CommandTimeout, match="ask again"):
                await bus.commands.cancel("c-1", running=True, wait=0.3)
        with pytest.raises(InvalidCommand):
            await bus.commands.cancel("c-1", running=True, wait=0)
        seen.free.set()
        assert await call == 1


async def test_nothing_is_known(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        assert not await bus.commands.cancel("no-such", running=True)


@pytest.mark.promise("Started commands can be cancelled")
@pytest.mark.parametrize("waits", [True, False])
async def test_a_durable_command_ends_where_it_waits(sandbox: Sandbox, seen: Seen, waits: bool) -> None:
    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Trip(trip="a", waits=waits))
        await seen.started()
        await asyncio.sleep(0.3)  # suspended, or resident in what is no durable await
        assert not await bus.commands.cancel(receipt.command_id)  # it has begun
        assert await bus.commands.cancel(receipt.command_id, running=True, reason="wrong day")
        await asyncio.sleep(1.5)
        seen.free.set()  # within a second the handler knows: its next await ends it
        with pytest.raises(CommandCancelled, match=r"^wrong day$"):
            await bus.result(receipt.command_id, Trip, timeout=10)


async def test_a_durable_command_that_waits_for_a_retry_is_compensated(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Detour(trip="a"))
        await seen.started()
        await until(lambda: _is_retrying(bus))
        assert not await bus.entity("trip", "a").cancel(receipt.command_id)
        assert await bus.commands.cancel(receipt.command_id, running=True, reason="wrong day")
        with pytest.raises(CommandCancelled):
            await bus.result(receipt.command_id, Detour, timeout=10)
        assert seen.starts == ["detour", "detour", "note"]


async def _is_retrying(bus: CommandBus) -> bool:
    return (await bus.entity("trip", "a").show()).entity.state == "retrying"


async def test_the_blocking_bus(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        call = asyncio.create_task(bus.call(Hang(box="a"), command_id="c-1", timeout=20))
        await seen.started()

        def cancel() -> bool:
            with SyncCommandBus("redis://unused", clients=sandbox.clients, namespace=sandbox.namespace) as blocking:
                return blocking.cancel("c-1", running=True)

        if sandbox.url is not None:  # in memory nothing is shared between threads
            assert await asyncio.to_thread(cancel)
        else:
            assert await bus.cancel("c-1", running=True)
        with pytest.raises(CommandCancelled):
            await call
