"""Steps that wait: retries, delays, ticks, and what is given back."""

from __future__ import annotations

import pytest

from command_bus.transport.steps import GiveBack, LeaseLost, Released, Retry, Started, Step
from command_bus.transport.submissions import NO_DIGEST, Submission
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, bury, done, park

BOX = "box:a"


async def test_a_tick_comes_with_every_earlier_due_time_and_with_no_later(
    harness: TransportHarness, worker: ManualWorker
) -> None:
    for name, delay, ticks in (("d1", 60_000, 1), ("d2", 90_000, 1), ("d3", 30_000, 2), ("d4", 30_500, 2)):
        await harness.put(BOX, name, delay_ms=delay)
        assert await harness.ticks() == ticks, name
    await harness.put("box:r", "c1", "c2")
    ready = [lease for lease in await worker.read() if lease.mailbox == "box:r"]
    assert await harness.ticks() == 0
    await worker.do(ready[0], TAKE)
    await worker.do(ready[0], Retry(45_000))
    assert await harness.ticks() == 0
    await harness.put("box:s", "e1")
    lease, _ = await worker.start()
    await worker.do(lease, Retry(10_000))
    assert await harness.ticks() == 1


async def test_a_batch_of_delays_adds_a_tick_per_new_minimum_only(harness: TransportHarness) -> None:
    batch = [Submission(BOX, f"d{delay}", b"x", NO_DIGEST, 99, delay) for delay in (50_000, 60_000, 40_000, 70_000)]
    await harness.producer.enqueue_many(batch, 5)
    assert await harness.ticks() == 2


async def test_a_retry_waits_outside_the_ready_stream_and_keeps_its_attempt(
    harness: TransportHarness, worker: ManualWorker
) -> None:
    await harness.put(BOX, "c1", "c2")
    lease, first = await worker.start()
    assert await worker.do(lease, Retry(0)) == Released("wait")
    record = await harness.record(BOX)
    assert record is not None
    assert (record.state, record.activation, record.attempt) == ("w", "", 1)
    assert await harness.activations() == []
    await harness.promote(worker)
    lease, second = await worker.start()
    assert (second.attempt, second.message, second.first_ms) == (2, first.message, first.first_ms)
    assert int(second.fence) > int(first.fence)
    await worker.do(lease, Retry(0, counts=False))
    await harness.promote(worker)
    lease, third = await worker.start()
    assert (third.attempt, third.message) == (2, first.message)
    await worker.do(lease, Retry(60_000))
    await harness.promote(worker)
    assert await harness.activations() == [], "not before its time"


async def test_a_delayed_command_takes_its_place_when_it_is_due(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "d1", delay_ms=1)
    assert await harness.record(BOX) is None
    assert await harness.mailboxes.depth(BOX) == 1
    await harness.put(BOX, "c1")
    while await harness.client.zcard(harness.shard.due):
        await harness.promote(worker)
    await harness.promote(worker)
    lease, started = await worker.start()
    assert started.envelope == b"c1"
    second = await worker.do(lease, done("c1"))
    assert isinstance(second, Started)
    assert second.envelope == b"d1"
    assert await worker.do(lease, done("d1")) == Released("idle")
    assert await harness.nothing_of(BOX)
    assert not {harness.shard.due, harness.shard.delayed, harness.shard.delayed_counts} & set(await harness.everything())


async def test_a_slot_is_yielded_only_if_another_entity_waits(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1", "c2", "c3")
    lease, _ = await worker.start()
    assert isinstance(await worker.do(lease, done("c1", "yield")), Started)
    await harness.put("box:b", "d1")
    assert await worker.do(lease, done("c2", "yield")) == Released("yield")
    assert await harness.activations() == ["box:b", BOX]
    record = await harness.record(BOX)
    assert record is not None
    assert (record.state, record.attempt) == ("r", 0)


@pytest.mark.parametrize("counts", [True, False])
async def test_a_command_given_back_starts_again_at_once(harness: TransportHarness, worker: ManualWorker, counts: bool) -> None:
    await harness.put(BOX, "c1")
    lease, first = await worker.start()
    assert await worker.do(lease, GiveBack(counts)) == Released("yield")
    _, again = await harness.worker("w2").start()
    assert (again.attempt, again.message, again.first_ms) == (1 + counts, first.message, first.first_ms)


async def test_an_activation_that_was_not_taken_is_handed_back(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease = await worker.read_one()
    assert await worker.do(lease, GiveBack(counts=False)) == Released("yield")
    assert await worker.do(lease, TAKE) == LeaseLost()
    _, started = await harness.worker("w2").start()
    assert started.attempt == 1


async def test_leaving_starts_no_next_command(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1", "c2")
    lease, _ = await worker.start()
    assert await worker.do(lease, done("c1", "leave")) == Released("yield")
    lease, started = await worker.start()
    assert (started.envelope, started.attempt) == (b"c2", 1)
    assert await worker.do(lease, done("c2", "leave")) == Released("idle")
    assert await harness.nothing_of(BOX)


@pytest.mark.promise("At least once")
@pytest.mark.parametrize("decision", [GiveBack(counts=True), bury("c1", "leave"), park("c1")], ids=["again", "bury", "park"])
async def test_a_lost_command_is_settled_by_the_worker_that_takes_over(
    harness: TransportHarness, worker: ManualWorker, decision: Step
) -> None:
    await harness.put(BOX, "c1", "c2")
    lease, _ = await worker.start()
    other = harness.worker("w2")
    await other.claim(lease.activation)
    await harness.recovery(other, decision).settle(0, [(lease.activation, BOX)])
    record = await harness.record(BOX)
    assert record is not None
    assert record.state == ("s" if decision == park("c1") else "r")
    assert await harness.client.xlen(harness.shard.dead) == (0 if isinstance(decision, GiveBack) else 1)
    if record.state == "r":
        _, started = await other.start()
        assert (started.envelope, started.attempt) == ((b"c1", 2) if isinstance(decision, GiveBack) else (b"c2", 1))
