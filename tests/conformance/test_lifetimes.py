"""Deadlines, threads and lives: what was found by looking for trouble."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from command_bus import Command, CommandFailed, CommandTimeout, EntityId, RetryPolicy
from command_bus.transport.steps import Cancellation, Cause
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import held_by, side_of

ONCE = RetryPolicy(attempts=1)


class Park(Command[int], entity="box", retry=ONCE, on_poison="park"):
    box: EntityId


class Retried(Command[int], entity="box", retry=RetryPolicy(attempts=2, delay=0.3, jitter=0.0)):
    box: EntityId


class Pay(Command[None], entity="box", delivery="at_most_once"):
    box: EntityId


class Sleepy(Command[int], entity="box", retry=ONCE, attempt_timeout=0.5):
    box: EntityId


async def test_a_parked_call_is_replayed_after_its_deadline(sandbox: Sandbox) -> None:
    runs: list[int] = []

    @sandbox.registry.handles(Park)
    async def park(command: Park) -> int:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("not today")
        return 7

    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed):
            await bus.call(Park(box="b"), timeout=0.3, command_id="p")
        with pytest.raises(CommandFailed, match="not today"):
            await bus.result("p", Park)  # known although its entity is parked
        (letter,) = [letter async for letter in bus.dead_letters.list()]
        await asyncio.sleep(0.4)
        await bus.dead_letters.replay(letter.id)
        assert await bus.result("p", Park, timeout=5) == 7
    assert runs == [1, 1]
    assert await sandbox.entity_keys() == []


@pytest.mark.promise("A deadline is for the first start")
async def test_a_command_that_was_started_does_not_expire(sandbox: Sandbox) -> None:
    attempts: list[float] = []

    @sandbox.registry.handles(Retried)
    async def retried(command: Retried) -> int:
        attempts.append(time.monotonic())
        raise ValueError("the real cause")

    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandTimeout) as timeout:
            await bus.call(Retried(box="b"), timeout=0.1)
        with pytest.raises(CommandFailed, match="the real cause"):
            await bus.result(timeout.value.command_id, Retried, timeout=5)
        assert len(attempts) == 2
        assert [letter.reason async for letter in bus.dead_letters.list()] == ["failed"]


@pytest.mark.promise("At most once")
async def test_at_most_once_is_one_start_also_when_the_handler_raises(sandbox: Sandbox) -> None:
    starts: list[int] = []

    @sandbox.registry.handles(Pay)
    async def pay(command: Pay) -> None:
        starts.append(1)
        raise ValueError

    assert Pay.spec().retry is None, "what follows is what its delivery means"
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Pay(box="b"))
        await bus.wait_idle(5)
    assert starts == [1]


async def test_a_timeout_counts_from_the_thread_s_start(sandbox: Sandbox) -> None:
    @sandbox.registry.handles(Sleepy)
    def sleepy(command: Sleepy) -> int:
        time.sleep(0.3)
        return 1

    async with sandbox.bus(threads=1) as bus, bus.worker():
        assert await asyncio.gather(*(bus.call(Sleepy(box=box), timeout=10) for box in range(4))) == [1, 1, 1, 1]


async def test_a_handler_waiting_for_a_thread_does_not_start_without_its_lease(sandbox: Sandbox) -> None:
    release, started = threading.Event(), []

    class Thread(Command[None], entity="box", delivery="at_most_once"):
        box: EntityId

    @sandbox.registry.handles(Thread)
    def thread(command: Thread) -> None:
        started.append(str(command.box))
        release.wait(10)

    @sandbox.registry.handles(Pay)
    async def pay(command: Pay) -> None:
        """Let the worker hold more entities than it has threads."""

    async with sandbox.bus(threads=1) as bus, bus.worker() as worker:
        await bus.dispatch(Thread(box="a"))
        while not started:
            await asyncio.sleep(0.01)
        await bus.dispatch(Thread(box="b"))
        leases = held_by(worker)
        while not (waiting := [lease for lease in leases.values() if lease.mailbox == "box:b" and lease.cancel]):
            await asyncio.sleep(0.01)
        assert waiting[0].cancel is not None
        waiting[0].cancel(Cancellation(Cause.LOST, "its lease is lost"))
        while waiting[0] in leases.values():
            await asyncio.sleep(0.01)
        assert started == ["a"]
        release.set()
        await bus.wait_idle(10)
    assert started == ["a", "b"], "it was handed back untouched, and started under its next lease"


async def test_a_worker_that_is_stopped_while_it_starts_is_stopped(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        worker = bus.worker()
        start = asyncio.create_task(worker.start())
        await asyncio.sleep(0)
        await worker.stop()
        await asyncio.gather(start, return_exceptions=True)
        assert not worker.started or side_of(worker).leases._stopping
        other = bus.worker()
        await other.start()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(other.stop(), 0)
        assert (await other.stop()).cancelled == 0
        assert (await bus.stats()).workers == ()


@pytest.mark.promise("The ready stream or its group is deleted")
async def test_lost_activations_are_found_by_the_sweep(sandbox: Sandbox) -> None:
    from command_bus.transport.redis.ready_stream import repair_page

    @sandbox.registry.handles(Park)
    async def park(command: Park) -> int:
        return 1

    async with sandbox.bus() as bus:
        await bus.dispatch(Park(box="b"))
        keys = bus.session.redis.keys.shards[0]
        client = sandbox.client()
        await client.xtrim(keys.ready, maxlen=0, approximate=False)
        await client.aclose()
        server = bus.session.redis.connections.at(keys.prefix)
        assert (await repair_page(server, keys, 0))[:2] == (0, 1)
        assert (await repair_page(server, keys, 0))[:2] == (0, 0)
        async with bus.worker():
            await bus.wait_idle(5)
