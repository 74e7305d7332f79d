"""Reports of handlers: progress and a log, from coroutines and threads, plain and durable. Over every server."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from command_bus import (
    BadReport,
    Command,
    CommandBus,
    CommandContext,
    CommandRecord,
    DurableContext,
    EntityId,
    HandlerOver,
    HandlerRegistry,
    ProgressInfo,
    RetryPolicy,
    UnknownCommand,
)
from command_bus.transport.redis.durable.side_records import RedisSideRecords
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.test_durable_signals import Mirror
from tests.conformance.harness import side_of
from tests.conformance.put_service import until


class Load(Command[int], entity="shop"):
    shop: EntityId
    steps: int = 1


class Thread(Command[int], entity="shop"):
    shop: EntityId


class Flaky(Command[int], entity="shop", retry=RetryPolicy(attempts=2, delay=0.01, jitter=0.0)):
    shop: EntityId


class Trip(Command[int], entity="trip", durable=True):
    trip: EntityId


@dataclass
class Seen:
    """Lets handlers go on, and keeps their contexts."""

    contexts: list[CommandContext] = field(default_factory=list)
    free: asyncio.Event = field(default_factory=asyncio.Event)
    thread_free: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def seen(sandbox: Sandbox) -> Iterator[Seen]:
    seen = Seen()
    _handlers(sandbox.registry, seen)
    yield seen
    seen.thread_free.set()


def _handlers(registry: HandlerRegistry, seen: Seen) -> None:
    @registry.handles(Load)
    async def load(command: Load, context: CommandContext) -> int:
        seen.contexts.append(context)
        for number in range(command.steps):
            context.progress((number + 1) / command.steps, f"row {number + 1}")
            context.log("written", row=number + 1)
        await seen.free.wait()
        return 1

    @registry.handles(Thread)
    def thread(command: Thread, context: CommandContext) -> int:
        seen.contexts.append(context)
        context.progress(0.5, "half")
        context.log("from a thread")
        seen.thread_free.wait(30)
        return 1

    @registry.handles(Flaky)
    async def flaky(command: Flaky, context: CommandContext) -> int:
        context.log("began", attempt=context.attempt)
        if context.attempt == 1:
            raise OSError("no network")
        context.progress(1)
        await seen.free.wait()
        return 1

    @registry.handles(Trip)
    async def trip(command: Trip, context: DurableContext) -> int:
        context.progress(0.5, "booking")
        for at in range(2):
            context.log("run", at=at)
            context.log("equal")
        await context.step("book", _booked)
        await context.signal("go")
        context.log("went")
        await context.signal("on")
        return 1


def _booked() -> int:
    return 1


async def _record(bus: CommandBus, command_id: str, *, share: float) -> CommandRecord:
    """Wait until this much is stored; return what is."""
    found: list[CommandRecord] = []

    async def is_there() -> bool:
        found.append(await bus.commands.record(command_id))
        return found[-1].progress.share == share and bool(found[-1].log)

    await until(is_there)
    return found[-1]


@pytest.mark.promise("Progress is written in time")
@pytest.mark.parametrize("command", [Load(shop="a", steps=2), Thread(shop="a")])
async def test_what_a_handler_reports_is_seen_while_it_runs(sandbox: Sandbox, seen: Seen, command: Command[Any]) -> None:
    async with sandbox.bus() as bus, bus.worker():
        now = await bus.session.transport.operator.entities.now_ms()
        await bus.dispatch(command, command_id="c-1")
        is_load = isinstance(command, Load)
        record = await _record(bus, "c-1", share=1.0 if is_load else 0.5)
        assert record.progress.note == ("row 2" if is_load else "half")
        assert abs((record.progress.at_ms or 0) - now) < 5000
        said = [(each.text, each.facts) for each in record.log]
        assert said == ([("written", {"row": 1}), ("written", {"row": 2})] if is_load else [("from a thread", {})])
        assert [key for key in await sandbox.entity_keys() if "}:x:" in key]
        seen.free.set()
        seen.thread_free.set()
        await bus.wait_idle(10)
        assert not [key for key in await sandbox.entity_keys() if "}:x:" in key], "it is deleted with the settlement"
        assert await bus.commands.record("c-1") == CommandRecord(ProgressInfo())


async def test_the_iterator_ends_with_the_outcome(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Load(shop="a"), command_id="c-1")
        found: list[ProgressInfo] = []
        async for each in bus.commands.progress("c-1"):
            found.append(each)
            seen.free.set()
        assert [(each.share, each.note, each.outcome) for each in found] == [(1.0, "row 1", ""), (1.0, "row 1", "completed")]
        with pytest.raises(UnknownCommand):
            _ = [each async for each in bus.commands.progress("no-such")]
        with pytest.raises(UnknownCommand):
            await bus.commands.record("no-such")


@pytest.mark.promise("Progress is written in time")
async def test_much_is_written_once_a_second_and_the_last_is_not_lost(
    sandbox: Sandbox, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, times = RedisSideRecords.store, list[float]()

    def counted(self: RedisSideRecords, *args: Any, **kwargs: Any) -> Any:
        times.append(time.monotonic())
        return store(self, *args, **kwargs)

    monkeypatch.setattr(RedisSideRecords, "store", counted)
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Load(shop="a", steps=5), command_id="c-1")
        await _record(bus, "c-1", share=1.0)
        began = time.monotonic()
        while time.monotonic() - began < 1.5:
            seen.contexts[0].progress(0.25, str(time.monotonic()))
            await asyncio.sleep(0.02)
        assert len(times) in (2, 3)
        assert all(later - earlier > 0.9 for earlier, later in pairwise(times))
        seen.contexts[0].progress(0.75, "last")
        kept = asyncio.create_task(_last(bus))
        await asyncio.sleep(0)
        seen.free.set()
        await bus.wait_idle(10)
        kept.cancel()
        assert len(times) in (3, 4), "the last value is written before the end"


async def _last(bus: CommandBus) -> None:
    async for _ in bus.commands.progress("c-1"):
        pass


@pytest.mark.promise("Progress is written in time")
async def test_the_log_keeps_the_last_hundred_of_all_runs(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flaky(shop="a"), command_id="c-1")
        record = await _record(bus, "c-1", share=1.0)
        assert [each.facts for each in record.log] == [{"attempt": 1}, {"attempt": 2}]
        await bus.dispatch(Load(shop="b", steps=150), command_id="c-2")
        record = await _record(bus, "c-2", share=1.0)
        assert [each.facts["row"] for each in record.log] == list(range(51, 151))
        seen.contexts[0].log("one more")

        async def has_more() -> bool:
            return (await bus.commands.record("c-2")).log[-1].text == "one more"

        await until(has_more)
        assert [each.facts.get("row") for each in (await bus.commands.record("c-2")).log] == [*range(52, 151), None]
        seen.free.set()


@pytest.mark.parametrize("cipher", [None, Mirror()])
async def test_a_durable_command_keeps_it_over_a_suspension(sandbox: Sandbox, seen: Seen, cipher: Mirror | None) -> None:
    async with sandbox.bus(cipher=cipher) as bus, bus.worker():
        receipt = await bus.dispatch(Trip(trip="a"))

        async def is_suspended() -> bool:
            return (await bus.commands.status(receipt.command_id)).state == "suspended"

        await until(is_suspended)
        record = await bus.commands.record(receipt.command_id)
        assert (record.progress.share, record.progress.note) == (0.5, "booking")
        assert [each.text for each in record.log] == ["run", "equal", "run", "equal"]
        assert [(each.kind, each.name, each.done) for each in record.steps] == [("step", "book#1", True)]
        for signal in ("go", "no"):
            await bus.commands.signal(receipt.command_id, signal)
            await until(is_suspended)
            log = (await bus.commands.record(receipt.command_id)).log
            assert [each.text for each in log] == ["run", "equal", "run", "equal", "went"], "a later run logs what is new"
        await bus.commands.signal(receipt.command_id, "on")
        assert await bus.result(receipt.command_id, Trip, timeout=10) == 1


async def test_130_after_the_end_and_without_the_lease_it_is_refused(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker() as worker:
        await bus.dispatch(Load(shop="a"), command_id="c-1")
        await until(lambda: seen.contexts)
        (lease,) = side_of(worker).leases.of_shard(0)
        lease.lost = True
        with pytest.raises(HandlerOver):
            seen.contexts[0].progress(0.5)
        with pytest.raises(HandlerOver):
            seen.contexts[0].log("late")
        lease.lost = False
        seen.free.set()
        await bus.wait_idle(10)
        with pytest.raises(HandlerOver):
            seen.contexts[0].progress(0.5)


@pytest.mark.promise("Progress is written in time")
async def test_a_handler_whose_lease_was_taken_over_writes_nothing(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Load(shop="a"), command_id="c-1")
        before = await _record(bus, "c-1", share=1.0)
        client = sandbox.client()
        key = next(iter(await client.keys("*}:active")))
        record: Any = await client.hget(key, "shop:a")
        state, activation, fence, rest = record.split(b"|", 3)
        await client.hset(key, "shop:a", b"|".join([state, activation, str(int(fence) + 1).encode(), rest]))
        seen.contexts[0].progress(0.125)

        async def is_refused() -> bool:
            try:
                seen.contexts[0].log("late")
            except HandlerOver:
                return True
            return False

        await until(is_refused)
        assert (await bus.commands.record("c-1")).progress == before.progress
        await client.hset(key, "shop:a", record)
        await client.aclose()
        seen.free.set()


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), float("inf"), True, "0.5", None])
def test_129_a_share_is_from_0_to_1(share: Any) -> None:
    with pytest.raises(BadReport, match="from 0 to 1"):
        CommandContext().progress(share)


def test_129_what_is_too_long_or_no_text_is_refused() -> None:
    context = CommandContext()
    for note in ("x" * 1001, 5, "\ud800"):
        with pytest.raises(BadReport):
            context.progress(0.5, note)  # type: ignore[arg-type]
        with pytest.raises(BadReport):
            context.log(note)  # type: ignore[arg-type]
    context.progress(1, "x" * 1000)
    context.log("fine", rows=7)


async def test_facts_are_plain_and_short(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Load(shop="a"), command_id="c-1")
        await until(lambda: seen.contexts)
        for bad in (object(), "x" * 1100):
            with pytest.raises(BadReport):
                seen.contexts[0].log("bad", what=bad)
        seen.free.set()
