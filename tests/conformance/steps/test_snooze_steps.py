"""The step that puts a command off, on the server: what it writes, what wakes it, and what is left of it."""

from __future__ import annotations

from typing import Any

import pytest

from command_bus.transport.records import WaitingEntry
from command_bus.transport.steps import GiveBack, LeaseLost, PutOff, Released, Retry, Snoozes, Started
from tests.conformance.harness import ManualWorker, TransportHarness, bury, done, left, park, removal

BOX = "box:a"


async def server_ms(harness: TransportHarness) -> int:
    seconds, micros = await harness.client.time()
    return int(seconds * 1000 + micros // 1000)


async def first_of(harness: TransportHarness) -> int:
    record = await harness.record(BOX)
    assert record is not None
    return record.first_ms


async def put_off(harness: TransportHarness, worker: ManualWorker, times: int = 1) -> Started:
    """Put the head off so many times; return its next start."""
    lease, started = await worker.start()
    for _ in range(times):
        assert await worker.do(lease, PutOff(0)) == Released("wait")
        await harness.promote(worker)
        lease, started = await worker.start()
    assert await worker.do(lease, GiveBack(counts=False)) == Released("yield")
    return started


@pytest.mark.promise("Snoozes keep the place")
@pytest.mark.parametrize("times", [100, pytest.param(1000, marks=pytest.mark.slow)])
async def test_snoozes_use_no_attempt_and_keep_the_order(harness: TransportHarness, worker: ManualWorker, times: int) -> None:
    await harness.put(BOX, "c1", "c2")
    lease, first = await worker.start()
    began = first.first_ms
    for number in range(1, times + 1):
        assert await worker.do(lease, PutOff(0)) == Released("wait")
        await harness.promote(worker)
        lease, started = await worker.start()
        assert (started.envelope, started.attempt, started.message) == (b"c1", 1, first.message)
        assert started.snoozes[:2] == (number, began)
        assert int(started.fence) > int(first.fence)
    assert (await harness.counters())["snoozed"] == times
    assert "retried" not in await harness.counters()
    following = await worker.do(lease, done("c1"))
    assert isinstance(following, Started)
    assert (following.envelope, following.attempt, following.snoozes) == (b"c2", 1, Snoozes())
    assert await worker.do(lease, done("c2")) == Released("idle")
    assert await harness.nothing_of(BOX)


@pytest.mark.promise("Snoozes keep the place")
async def test_the_wake_ends_the_deadline_and_begins_the_grace(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, first = await worker.start()
    assert not first.replayed
    assert await worker.do(lease, PutOff(60_000)) == Released("wait")
    until = -await first_of(harness)
    assert 55_000 < until - await server_ms(harness) <= 60_000, "who wakes it may be of another release"
    await harness.client.zadd(harness.shard.due, {f"r:{BOX}": 1})
    await harness.promote(worker)
    woken = -await first_of(harness)
    assert abs(await server_ms(harness) - woken) < 5_000
    _, again = await worker.start()
    assert (again.replayed, again.woken_ms, again.first_ms) == (True, woken, first.first_ms)


async def test_an_entity_that_was_paused_over_its_wake_wakes_when_it_is_resumed(
    harness: TransportHarness, worker: ManualWorker
) -> None:
    await harness.put(BOX, "c1")
    lease, first = await worker.start()
    await worker.do(lease, PutOff(0))
    await harness.scopes.pause(BOX, "")
    await harness.promote(worker)
    record: Any = (await harness.client.hget(harness.shard.active, BOX)).decode().split("|")  # type: ignore[misc]
    record[5] = "-1000"  # woken long ago
    await harness.client.hset(harness.shard.active, BOX, "|".join(record))  # type: ignore[misc]
    await harness.scopes.resume(BOX)
    assert abs(await server_ms(harness) + await first_of(harness)) < 5_000
    _, again = await worker.start()
    assert (again.first_ms, again.snoozes.times) == (first.first_ms, 1)


async def test_a_snooze_whose_answer_was_lost_is_counted_once(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    assert await worker.again(lease, PutOff(60_000)) == (Released("wait"), LeaseLost())
    assert (await harness.counters())["snoozed"] == 1


@pytest.mark.promise("Snoozes keep the place")
async def test_who_lost_its_lease_puts_nothing_off(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    other = harness.worker("w2")
    await other.claim(lease.activation)
    await harness.recovery(other).settle(0, [(lease.activation, BOX)])  # as if the worker had died between raise and step
    _, again = await other.start()
    assert (again.attempt, again.snoozes) == (2, Snoozes())
    before = await harness.everything()
    assert await worker.do(lease, PutOff(60_000)) == LeaseLost()
    assert await harness.everything() == before


async def test_a_crash_after_a_snooze_is_an_attempt_and_keeps_the_count(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    await put_off(harness, worker, 3)
    lease, started = await worker.start()
    other = harness.worker("w2")
    await other.claim(lease.activation)
    await harness.recovery(other).settle(0, [(lease.activation, BOX)])
    _, again = await other.start()
    assert (started.attempt, again.attempt, again.snoozes.times) == (1, 2, 3)


@pytest.mark.parametrize("step", [done("c1", "leave"), bury("c1", "leave")], ids=["done", "buried"])
async def test_the_next_command_begins_without_snoozes(harness: TransportHarness, worker: ManualWorker, step: Any) -> None:
    await harness.put(BOX, "c1", "c2")
    await put_off(harness, worker, 2)
    lease, _ = await worker.start()
    assert await worker.do(lease, step) == Released("yield")
    record = await harness.record(BOX)
    assert record is not None
    assert (record.parts, record.first_ms) == ((), 0)
    lease, following = await worker.start()
    assert (following.envelope, following.snoozes) == (b"c2", Snoozes())


async def test_a_count_that_another_release_left_is_not_believed(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1", "c2")
    await put_off(harness, worker, 7)
    lease, _ = await worker.start()
    record: Any = await harness.client.hget(harness.shard.active, BOX)  # type: ignore[misc]
    part = record[record.index(b"|z=") :]
    await worker.do(lease, done("c1", "leave"))
    record = await harness.client.hget(harness.shard.active, BOX)  # type: ignore[misc]
    await harness.client.hset(harness.shard.active, BOX, record + part)  # type: ignore[misc]
    lease, started = await worker.start()
    assert started.snoozes == Snoozes()
    await worker.do(lease, PutOff(0))
    await harness.promote(worker)
    _, started = await worker.start()
    assert started.snoozes.times == 1


async def test_a_retry_behind_a_snooze_waits_as_a_retry(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    await put_off(harness, worker)
    lease, _ = await worker.start()
    before = await first_of(harness)
    assert await worker.do(lease, Retry(0)) == Released("wait")
    record = await harness.record(BOX)
    assert record is not None
    assert record.parts[0].endswith(":0")
    await harness.promote(worker)
    assert await first_of(harness) == before, "who failed does not get its grace again"
    _, again = await worker.start()
    assert (again.attempt, again.snoozes.times) == (2, 1)


async def test_a_snoozing_head_that_is_removed_leaves_no_count(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1", "c2")
    lease, started = await worker.start()
    await worker.do(lease, PutOff(60_000))
    assert await harness.mailboxes.remove(BOX, [removal(WaitingEntry(started.message, b"c1"), left("c1"))]) == 1
    record = await harness.record(BOX)
    assert record is not None
    assert (record.state, record.parts) == ("r", ())
    assert await harness.client.zscore(harness.shard.due, f"r:{BOX}") is None
    _, following = await worker.start()
    assert (following.envelope, following.attempt) == (b"c2", 1)


async def test_a_parked_command_is_replayed_with_a_new_count(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    first = await put_off(harness, worker, 2)
    lease, _ = await worker.start()
    assert await worker.do(lease, park("c1")) == Released("stop")
    (letter,) = [each async for each in harness.dead_letters.all()]
    record = await harness.record(BOX)
    assert record is not None
    assert record.parts[0].startswith("z=2:")
    assert await harness.dead_letters.settle(letter, "replay", left("c1"))
    _, again = await worker.start()
    assert (again.attempt, again.snoozes.times, again.first_ms) == (1, 0, first.first_ms)
