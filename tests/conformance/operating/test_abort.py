"""An operator ends an attempt that runs: which one, how it is settled, and what cannot be ended. Over every server."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from command_bus import (
    Command,
    CommandBus,
    CommandContext,
    CommandInterrupted,
    EntityId,
    EntityPolicy,
    HandlerRegistry,
    InvalidCommand,
    RetryPolicy,
    lanes,
)
from command_bus.transport.interrupts import Interrupt
from command_bus.transport.redis.interrupts import RedisInterrupts
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import side_of
from tests.conformance.put_service import until


class Hang(Command[int], entity="box", retry=RetryPolicy(attempts=2, delay=0.01)):
    box: EntityId
    swallows: int = 0


class HangOnce(Command[int], entity="box", delivery="at_most_once"):
    box: EntityId


class Thread(Command[int], entity="box", retry=RetryPolicy(attempts=2, delay=0.01)):
    box: EntityId
    obeys: bool = True


class Block(Command[int], entity="box", retry=RetryPolicy(attempts=1)):
    box: EntityId
    seconds: float


class Note(Command[int], entity="box"):
    box: EntityId


@dataclass
class Seen:
    """Records of the handlers."""

    hangs: list[int] = field(default_factory=list)
    contexts: list[CommandContext] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    free: asyncio.Event = field(default_factory=asyncio.Event)
    thread_free: threading.Event = field(default_factory=threading.Event)

    async def started(self, count: int = 1) -> None:
        await until(lambda: len(self.hangs) >= count)


@pytest.fixture
def seen(sandbox: Sandbox) -> Iterator[Seen]:
    seen = Seen()
    _asynchronous(sandbox.registry, seen)
    _blocking(sandbox.registry, seen)
    yield seen
    seen.thread_free.set()


def _asynchronous(registry: HandlerRegistry, seen: Seen) -> None:
    @registry.handles(Hang)
    async def hangs(command: Hang, context: CommandContext) -> int:
        seen.contexts.append(context)
        seen.hangs.append(context.attempt)
        for _ in range(command.swallows):
            with contextlib.suppress(asyncio.CancelledError):
                await seen.free.wait()
            if seen.free.is_set():
                return 1
        await seen.free.wait()
        return 1

    @registry.handles(HangOnce)
    async def hangs_once(command: HangOnce, context: CommandContext) -> int:
        seen.hangs.append(context.attempt)
        await seen.free.wait()
        return 1

    @registry.handles(Note)
    async def note(command: Note) -> int:
        seen.notes.append(str(command.box))
        return 1


def _blocking(registry: HandlerRegistry, seen: Seen) -> None:
    @registry.handles(Thread)
    def thread(command: Thread, context: CommandContext) -> int:
        seen.contexts.append(context)
        seen.hangs.append(context.attempt)
        while not seen.thread_free.wait(0.01):
            if command.obeys and context.cancelled:
                return 0
        return 1

    @registry.handles(Block)
    async def block(command: Block, context: CommandContext) -> int:
        seen.hangs.append(context.attempt)
        time.sleep(command.seconds)
        await asyncio.sleep(0)
        return 1


async def letters(bus: CommandBus) -> list[tuple[str, str, int]]:
    return [(letter.reason, letter.error_message, letter.attempts) async for letter in bus.dead_letters.list()]


@pytest.mark.promise("An abort ends one attempt")
async def test_an_aborted_async_handler_is_cancelled_and_retried(sandbox: Sandbox, seen: Seen) -> None:
    """Its last attempt becomes a dead letter, in the operator's words; what waits behind it goes on."""
    async with sandbox.bus() as bus, bus.worker() as worker:
        await bus.dispatch(Hang(box="a"), command_id="c-1")
        await bus.dispatch(Note(box="a"))
        await seen.started()
        began = time.monotonic()
        report = await bus.entity("box", "a").abort("the ledger hangs", by="anna")
        assert time.monotonic() - began < 5
        assert (report.result, report.command_id, report.name, report.attempt) == ("ended", "c-1", "Hang", 1)
        assert (report.worker, report.again, report.entity) == (worker.name, True, "box:a")
        await seen.started(2)
        assert seen.contexts[0].cancel_reason == "aborted by anna: the ledger hangs"
        last = await bus.entity("box", "a").abort("the ledger hangs", by="anna")
        assert (last.result, last.attempt, last.again) == ("ended", 2, False)
        await bus.wait_idle(10)
        text = "aborted by anna: the ledger hangs; it may have run not at all, partly or fully"
        assert await letters(bus) == [("interrupted", text, 2)]
        assert seen.notes == ["a"]
        await bus.dead_letters.purge()
    assert [key for key in await sandbox.keys() if key.endswith("interrupts")] == []


async def test_an_aborted_at_most_once_command_is_a_dead_letter(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        call = asyncio.create_task(bus.call(HangOnce(box="a"), timeout=30))
        await seen.started()
        report = await bus.entity("box", "a").abort()
        assert (report.result, report.again) == ("ended", False)
        with pytest.raises(CommandInterrupted, match="aborted by an operator; it may have run"):
            await call
        assert seen.hangs == [1]


async def test_a_handler_that_swallows_its_cancellation(sandbox: Sandbox, seen: Seen) -> None:
    """Once: it ends with a result, which is dropped. For ever: it goes on, is said to, and can be given up."""
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Hang(box="a", swallows=1))
        await seen.started()
        abort = asyncio.create_task(bus.entity("box", "a").abort())
        await until(lambda: seen.contexts[0].cancelled)
        seen.free.set()
        assert ((await abort).result, (await abort).again) == ("ended", True)
        await seen.started(2)
        await bus.wait_idle(10)
        assert await letters(bus) == []
        seen.free.clear()
        await bus.dispatch(Hang(box="b", swallows=1000))
        await seen.started(3)
        report = await bus.entity("box", "b").abort(wait=2.5)
        assert (report.result, report.in_thread, report.again) == ("runs_on", False, None)
        forced = await bus.entity("box", "b").abort(force=True)
        assert (forced.result, forced.again) == ("ended", True)
        await seen.started(4)
        assert seen.hangs[2:] == [1, 2]
        seen.free.set()
        await bus.wait_idle(10)
        assert (await bus.stats()).completed == 2


async def test_a_thread_that_asks_whether_it_is_cancelled(sandbox: Sandbox, seen: Seen) -> None:
    """Its return value is then not a result."""
    async with sandbox.bus() as bus, bus.worker():
        call = asyncio.create_task(bus.call(Thread(box="a"), timeout=30))
        await seen.started()
        report = await bus.entity("box", "a").abort("enough")
        assert (report.result, report.again) == ("ended", True)
        await seen.started(2)
        assert seen.contexts[0].cancel_reason == "aborted by an operator: enough"
        seen.thread_free.set()
        assert await call == 1


async def test_a_thread_that_goes_on_keeps_its_entity_until_it_is_forced(sandbox: Sandbox, seen: Seen) -> None:
    """Then the next attempt runs beside it, in its place and in another thread, and what it returns in the end is refused."""
    async with sandbox.bus(threads=1) as bus, bus.worker(concurrency=1):
        call = asyncio.create_task(bus.call(Thread(box="a", obeys=False), timeout=30))
        await seen.started()
        report = await bus.entity("box", "a").abort(wait=2)
        assert (report.result, report.in_thread) == ("runs_on", True)
        assert seen.contexts[0].cancelled
        assert seen.hangs == [1]
        forced = await bus.entity("box", "a").abort(force=True)
        assert (forced.result, forced.attempt, forced.again) == ("ended", 1, True)
        await seen.started(2)
        assert (seen.hangs, call.done()) == ([1, 2], False)
        seen.thread_free.set()
        assert await call == 1
        await bus.wait_idle(10)
        assert ((await bus.stats()).completed, await letters(bus)) == (1, [])


async def test_a_handler_that_blocks_the_loop_is_named(sandbox: Sandbox, seen: Seen) -> None:
    """Nothing can end it; where it is, its worker's other thread says."""
    if sandbox.url is None:
        pytest.skip("the worker needs a process or thread of its own; in-memory servers have one loop")
    started = threading.Event()
    done: list[Any] = []

    def work() -> None:
        async def run() -> None:
            async with sandbox.bus() as bus, bus.worker():
                started.set()
                await until(lambda: seen.hangs, 20)
                await bus.wait_idle(30)
                done.append(True)

        asyncio.run(run())

    thread = threading.Thread(target=work)
    async with sandbox.bus() as bus:
        thread.start()
        await asyncio.to_thread(started.wait)
        await bus.dispatch(Block(box="a", seconds=8.0))
        await seen.started()
        report = await bus.entity("box", "a").abort(wait=5)
        assert (report.result, report.again) == ("blocked", None)
        assert "test_abort.py" in report.where
        assert report.where.endswith("in block")
        await asyncio.to_thread(thread.join)
    assert done


@pytest.mark.promise("An abort ends one attempt")
async def test_a_request_never_hits_another_attempt(sandbox: Sandbox, seen: Seen) -> None:
    """One that names an attempt that is over is left alone, and ends with its hash."""
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Hang(box="a"))
        await seen.started()
        transport = bus.session.redis
        interrupts = RedisInterrupts(transport.connections, transport.keys, patience=5)
        attempt = await interrupts.running("box:a")
        assert attempt is not None
        fence, _, message = attempt.id.partition("|")
        for other in (f"{int(fence) - 1}|{message}", f"{fence}|1-1"):
            await interrupts.request("box:a", Interrupt("abandon", other))
            await bus.dispatch(Hang(box="b"), command_id=other.replace("|", "-"))
            await until(lambda: len(seen.hangs) == 2)
            assert (await bus.entity("box", "b").abort()).result == "ended"  # the hash was read in between
            await bus.entity("box", "b").abort()
            await until(lambda: _idle(bus, "b"))
            del seen.hangs[1:]
            answer = await interrupts.answer("box:a")
            assert answer is not None
            assert answer.answer == ""
        now = await interrupts.running("box:a")
        assert now is not None
        assert replace(now, now_ms=0) == replace(attempt, now_ms=0)
        client = sandbox.client()
        assert 0 < await client.pttl(transport.keys.shards[0].interrupts) <= 600_000
        await client.aclose()
        seen.free.set()
        await bus.wait_idle(10)


async def test_an_abort_of_nothing_or_without_an_answer(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus(entities={"lane": EntityPolicy(mailbox=lanes(1))}) as bus:
        assert (await bus.entity("box", "a").abort()).result == "nothing"
        with pytest.raises(InvalidCommand, match="wait"):
            await bus.entity("box", "a").abort(wait=0)
        async with bus.worker() as worker:
            await bus.dispatch(Hang(box="a"))
            await seen.started()
            assert (await bus.entity("box", "b").abort()).result == "nothing"
            for watch in side_of(worker)._maintenance.watches:
                watch._interrupts_at = time.monotonic() + 3600  # as a worker of an earlier release, which does not look
            report = await bus.entity("box", "a").abort(wait=1.5)
            assert (report.result, report.attempt, report.worker) == ("unanswered", 1, worker.name)
            seen.free.set()
            await bus.wait_idle(10)


async def test_in_a_lane_only_the_own_attempt_is_ended(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus(entities={"box": EntityPolicy(mailbox=lanes(1))}) as bus, bus.worker():
        await bus.dispatch(Hang(box="a"))
        await seen.started()
        assert (await bus.entity("box", "b").abort()).result == "nothing"
        assert (await bus.entity("box", "a").abort()).result == "ended"
        seen.free.set()
        await bus.wait_idle(10)


async def test_on_several_shards(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus(shards=2) as bus, bus.worker():
        boxes = [f"b{number}" for number in range(6)]
        shards = {bus.session.redis.keys.shard_of(f"box:{box}") for box in boxes}
        assert shards == {0, 1}
        for box in boxes:
            await bus.dispatch(HangOnce(box=box))
        await seen.started(6)
        reports = await asyncio.gather(*(bus.entity("box", box).abort() for box in boxes[:4]))
        assert {report.result for report in reports} == {"ended"}
        assert len(await letters(bus)) == 4
        seen.free.set()
        await bus.wait_idle(10)
        assert len(await letters(bus)) == 4


async def _idle(bus: CommandBus, box: str) -> bool:
    return await bus.entity("box", box).depth() == 0
