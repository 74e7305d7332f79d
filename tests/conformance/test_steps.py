"""The Lua steps as a table of behaviours: what each does, what it leaves, and that asking again or too late changes nothing."""

from __future__ import annotations

import asyncio
import re
from asyncio import Future
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

import pytest

from command_bus.clock import mono
from command_bus.errors import CommandBusError, TransportUnavailable
from command_bus.transport.redis.keys import GROUP
from command_bus.transport.redis.scripts import ENQUEUE, FORGET, REPAIR, SCRIPTS, TELLING
from command_bus.transport.redis.sending.producer import _Waiting
from command_bus.transport.redis.worker.step_batcher import _Shard
from command_bus.transport.steps import Done, GiveBack, Lease, LeaseLost, Released, Retry, Settlement, Started, Step, StepFailed
from command_bus.transport.submissions import NO_DIGEST, Admission, Submission
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, bury, done, left, park

BOX = "box:a"


SETTLING: dict[str, Callable[[str], Step]] = {
    "done": done,
    "deny": lambda name: Done(left(name), verb="deny"),
    "lapse": lambda name: Done(left(name), verb="lapse"),
    "bury": bury,
}
LETTING_GO: dict[str, Callable[[str], Step]] = {
    "park": park,
    "retry": lambda _: Retry(0),
    "retry uncounted": lambda _: Retry(0, counts=False),
    "back": lambda _: GiveBack(counts=True),
    "back uncounted": lambda _: GiveBack(counts=False),
}
EVERY_VERB: dict[str, Callable[[str], Step]] = {"take": lambda _: TAKE, **SETTLING, **LETTING_GO}


def each(verbs: dict[str, Callable[[str], Step]]) -> Any:
    return pytest.mark.parametrize("step_for", verbs.values(), ids=verbs.keys())


# From idle to ready.


async def test_the_first_command_makes_a_mailbox_and_one_activation(harness: TransportHarness, worker: ManualWorker) -> None:
    assert await harness.put(BOX, "c1", "c2") == [Admission.ACCEPTED] * 2
    assert await harness.put(BOX, "c3") == [Admission.ACCEPTED]
    assert await harness.activations() == [BOX]
    record = await harness.record(BOX)
    assert record is not None
    assert (record.state, record.attempt, record.holder) == ("r", 0, "")
    assert await harness.counters() == {"depth": 3, "accepted": 3}


async def test_the_same_batch_asked_again_is_answered_as_the_first_time(harness: TransportHarness, worker: ManualWorker) -> None:
    lane = harness.producer._shards[0]
    submissions = [Submission(BOX, name, b"x", NO_DIGEST, 2, delay) for name, delay in (("c1", 0), ("c2", 10_000), ("c3", 0))]
    submissions.append(Submission("box:b", "c1", b"x", NO_DIGEST, 5))
    waiting: Any = type("W", (), {"submissions": submissions, "deadline": mono() + 5})
    keys, args = lane._arguments([waiting], 8)
    first = await harness.connections.run(ENQUEUE, keys, args)
    before = await harness.everything()
    assert first == b"++e="
    assert await harness.connections.run(ENQUEUE, keys, args) == b"++e="
    assert await harness.everything() == before
    _, later = lane._arguments([waiting], 9)
    assert await harness.connections.run(ENQUEUE, keys, later) == b"==e="
    assert {**await harness.everything(), keys[7]: None} == {**before, keys[7]: None}


async def test_a_refused_batch_that_was_stuck_on_its_way_is_refused_when_it_arrives(
    harness: TransportHarness, worker: ManualWorker
) -> None:
    """Its caller was told that it was refused, and may have given up: there being room by then must not matter."""
    lane = harness.producer._shards[0]
    await harness.put(BOX, "c1")
    waiting: Any = type(
        "W", (), {"submissions": [Submission(BOX, "c2", b"x", NO_DIGEST, 1, marked=False)], "deadline": mono() + 5}
    )
    keys, args = lane._arguments([waiting], 8)
    assert await harness.connections.run(ENQUEUE, keys, args) == b"e"
    lease, _ = await worker.start()
    assert await worker.do(lease, done("c1")) == Released("idle")
    assert await harness.connections.run(ENQUEUE, keys, args) == b"e"
    _, later = lane._arguments([waiting], 9)
    assert await harness.connections.run(ENQUEUE, keys, later) == b"+"


async def test_a_batch_without_marks_asked_again_is_answered_as_the_first_time_even_if_all_is_settled(
    harness: TransportHarness, worker: ManualWorker
) -> None:
    lane = harness.producer._shards[0]
    submissions = [Submission(BOX, name, b"x", NO_DIGEST, 2, delay, marked=False) for name, delay in (("c1", 0), ("c2", 10_000))]
    waiting: Any = type("W", (), {"submissions": submissions, "deadline": mono() + 5})
    keys, args = lane._arguments([waiting], 8)
    assert await harness.connections.run(ENQUEUE, keys, args) == b"++"
    lease, _ = await worker.start()
    await worker.do(lease, done("c1"))
    before = await harness.everything()
    assert await harness.connections.run(ENQUEUE, keys, args) == b"++"
    assert await harness.everything() == before


async def test_a_batch_whose_first_answer_is_gone_is_not_applied_again(harness: TransportHarness) -> None:
    lane = harness.producer._shards[0]
    await harness.put(BOX, "c1")
    waiting: Any = type(
        "W", (), {"submissions": [Submission(BOX, "c2", b"x", NO_DIGEST, 9, marked=False)], "deadline": mono() + 5}
    )
    keys, args = lane._arguments([waiting], 8)
    await harness.client.delete(keys[7])
    before = await harness.everything()
    assert await harness.connections.run(ENQUEUE, keys, [args[0], 1, *args[2:]]) == b"gone"
    assert await harness.everything() == before


@pytest.mark.parametrize("applied", [False, True])
async def test_a_producer_that_was_silent_for_long_asks_again_like_any_other(
    harness: TransportHarness, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    lane = harness.producer._shards[0]
    run = lane._connections.run_confirmed
    ways = ["cut off", "through"]

    async def cut_off_once(*request: Any) -> Any:
        broken = ways.pop(0) == "cut off"
        answer = await run(*request) if applied or not broken else None
        if broken:
            raise TransportUnavailable("cut off", outcome_unknown=True)
        return answer

    await harness.put(BOX, "c1")
    await harness.put(BOX, "c2")
    (last,) = [key async for key in harness.client.scan_iter(f"{harness.shard.prefix}p:*")]
    await harness.client.delete(last)  # as it ends by itself
    monkeypatch.setattr("command_bus.transport.redis.sending.producer.mono", lambda: mono() + 3700)
    monkeypatch.setattr(lane._connections, "run_confirmed", cut_off_once)
    assert await harness.producer.enqueue(Submission(BOX, "c3", b"x", NO_DIGEST, 9, marked=False), 5) is Admission.ACCEPTED
    assert await harness.client.xlen(harness.shard.mailbox(BOX)) == 3


async def test_a_delayed_command_for_what_is_no_mailbox_is_refused(harness: TransportHarness) -> None:
    await harness.client.set(harness.shard.mailbox(BOX), "text")
    before = await harness.everything()
    refused = Submission(BOX, "c1", b"x", NO_DIGEST, 9, 60_000, marked=False)
    assert await harness.producer.enqueue(refused, 5) is Admission.WRONG_TYPE
    assert await harness.everything() == before


async def test_a_batch_that_was_stuck_on_the_way_is_refused_when_a_later_one_was_answered(harness: TransportHarness) -> None:
    lane = harness.producer._shards[0]
    stuck, later = (
        lane._arguments([_Waiting([Submission(BOX, name, b"x", NO_DIGEST, 9, marked=False)], Future(), mono() + 5)], number)
        for number, name in ((8, "c1"), (9, "c2"))
    )
    assert await harness.connections.run(ENQUEUE, *later) == b"+"
    before = await harness.everything()
    with pytest.raises(CommandBusError, match="STALE"):
        await harness.connections.run(ENQUEUE, *stuck)
    assert await harness.everything() == before


async def test_a_settled_command_asked_again_is_a_duplicate(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    await worker.do(lease, done("c1"))
    assert await harness.put(BOX, "c1") == [Admission.DUPLICATE]
    assert await harness.nothing_of(BOX)


async def test_another_digest_is_a_conflict_and_adds_nothing(harness: TransportHarness) -> None:
    await harness.put(BOX, "c1")
    before = await harness.everything()
    other = Submission("box:b", "c1", b"y", b"digest-8", 5)
    assert await harness.producer.enqueue(other, 5) is Admission.CONFLICT
    assert await harness.everything() == before


async def test_after_a_refusal_its_mailbox_takes_no_more_of_the_batch(harness: TransportHarness) -> None:
    await harness.put(BOX, "c0")
    names = ("c1", "c2", "c3", "c0")
    batch = [Submission(BOX, name, b"x", NO_DIGEST, limit) for name, limit in zip(names, (2, 9, 9, 9), strict=True)]
    assert await harness.producer.enqueue_many([*batch, Submission("box:b", "d", b"x", NO_DIGEST, 9)], 5) == [
        Admission.ACCEPTED,
        Admission.ENTITY_FULL,
        Admission.PREDECESSOR_REFUSED,
        Admission.DUPLICATE,
        Admission.ACCEPTED,
    ]
    assert await harness.client.xlen(harness.shard.mailbox(BOX)) == 2


# Taking.


async def test_a_repeated_take_starts_nothing_new(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1", "c2")
    first, again = await worker.again(await worker.read_one(), TAKE)
    assert isinstance(first, Started)
    assert isinstance(again, Started)
    assert (first.fence, first.message, first.attempt, first.envelope) == (again.fence, again.message, again.attempt, b"c1")
    assert first.attempt == 1


async def test_another_lease_of_the_same_worker_takes_nothing_that_is_started(
    harness: TransportHarness, worker: ManualWorker
) -> None:
    """A worker that lost sight of its lease, or reads it again from a group made anew, must not start the command twice."""
    await harness.put(BOX, "c1")
    lease, started = await worker.start()
    before = await harness.everything()
    assert await worker.do(worker.lease(BOX, lease.activation), TAKE) == LeaseLost()
    assert await harness.everything() == before
    assert await worker.do(lease, done("c1")) == Released("idle")
    assert started.attempt == 1


async def test_a_take_in_another_name_claims_the_activation(harness: TransportHarness, worker: ManualWorker) -> None:
    """The pending entry is the lease: who starts the command must be the one whose renewals count."""
    await harness.put(BOX, "c1")
    lease = await worker.read_one()
    other = harness.worker("w2")
    assert isinstance(await other.do(other.lease(BOX, lease.activation), TAKE), Started)
    (pending,) = await harness.client.xpending_range(harness.shard.ready, GROUP, min="-", max="+", count=10)
    assert pending["consumer"] == b"w2"
    assert await worker.do(lease, TAKE) == LeaseLost()


# Settling.


@each(SETTLING)
async def test_a_repeated_settling_counts_once_and_gives_the_same_next(
    harness: TransportHarness, worker: ManualWorker, step_for: Callable[[str], Step]
) -> None:
    await harness.put(BOX, "c1", "c2")
    lease, _ = await worker.start()
    first, again = await worker.again(lease, step_for("c1"))
    assert isinstance(first, Started)
    assert isinstance(again, Started)
    assert (first.fence, first.message, first.envelope) == (again.fence, again.message, b"c2")
    counters = await harness.counters()
    assert (counters["settled"], counters["depth"]) == (1, 1)
    assert await harness.client.xlen(harness.shard.dead) == (1 if step_for is bury else 0)
    first, again = await worker.again(lease, step_for("c2"))
    assert (first, again) == (Released("idle"), LeaseLost())
    assert await harness.nothing_of(BOX)
    assert (await harness.counters())["settled"] == 2


@each(LETTING_GO)
async def test_a_repeated_letting_go_is_gone_and_changes_nothing(
    harness: TransportHarness, worker: ManualWorker, step_for: Callable[[str], Step]
) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    assert isinstance(await worker.do(Lease(**_as_dict(lease)), step_for("c1")), Released)
    before = await harness.everything()
    assert await worker.do(lease, step_for("c1")) == LeaseLost()
    assert await harness.everything() == before


def _as_dict(lease: Lease) -> dict[str, Any]:
    return {name: getattr(lease, name) for name in Lease.__slots__}


async def test_settling_leaves_mark_and_reply_in_one_step(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1", "c2")
    lease, _ = await worker.start()
    await worker.again(lease, done("c1", inbox="p1", mark_ms=5000))
    inbox, mark = harness.shard.inbox("p1"), harness.shard.mark("c1")
    assert await harness.client.lrange(inbox, 0, -1) == [b"reply of c1"]  # type: ignore[misc]
    assert 0 < await harness.client.pttl(inbox) <= 60_000
    assert await harness.client.get(mark) == b"d" + NO_DIGEST + b"outcome"
    assert 0 < await harness.client.pttl(mark) <= 5000
    await worker.do(lease, Done(Settlement("c2", b"", 0)))
    assert await harness.client.get(harness.shard.mark("c2")) == b"q" + NO_DIGEST + BOX.encode(), "as it was put"


async def test_one_broken_mailbox_fails_alone_in_its_batch(harness: TransportHarness, worker: ManualWorker) -> None:
    for box in ("box:a", "box:b", "box:c"):
        await harness.put(box, f"{box}1", f"{box}2")
    leases = await worker.read()
    for lease in leases:
        await worker.do(lease, TAKE)
    broken = harness.shard.mailbox("box:b")
    aside = f"{broken}:aside"
    await harness.client.rename(broken, aside)
    await harness.client.set(broken, "text")
    answers = [worker.steps.advance(lease, bury(f"{lease.mailbox}1")) for lease in leases]
    good, bad, also_good = [await answer for answer in answers]
    assert isinstance(good, Started)
    assert isinstance(also_good, Started)
    assert isinstance(bad, StepFailed)
    assert "WRONGTYPE" in bad.reason
    assert await harness.client.xlen(harness.shard.dead) == 2
    await harness.client.rename(aside, broken)
    assert isinstance(await worker.do(leases[1], bury("box:b1")), Started)
    assert await harness.client.xlen(harness.shard.dead) == 3


# Who no longer holds changes nothing.


async def _overtaken(harness: TransportHarness, worker: ManualWorker, lease: Lease) -> None:
    """Another worker took the lease over and runs the command."""
    other = harness.worker("w2")
    await other.claim(lease.activation)
    await harness.recovery(other).settle(0, [(lease.activation, lease.mailbox)])
    await other.start()


async def _overtaken_and_settled(harness: TransportHarness, worker: ManualWorker, lease: Lease) -> None:
    other = harness.worker("w2")
    await other.claim(lease.activation)
    await harness.recovery(other).settle(0, [(lease.activation, lease.mailbox)])
    taken, _ = await other.start()
    await other.do(taken, done("c1"))


async def _purged(harness: TransportHarness, worker: ManualWorker, lease: Lease) -> None:
    """The mailbox was deleted with its record, and is in use again."""
    await harness.client.delete(harness.shard.mailbox(BOX))
    await harness.client.hdel(harness.shard.active, BOX)  # type: ignore[misc]
    await harness.put(BOX, "n1")


async def _given_back(harness: TransportHarness, worker: ManualWorker, lease: Lease) -> None:
    await worker.do(Lease(**_as_dict(lease)), GiveBack(counts=True))


LOSSES = {
    "overtaken": _overtaken,
    "overtaken and settled": _overtaken_and_settled,
    "purged": _purged,
    "given back": _given_back,
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES.keys())
@each(EVERY_VERB)
async def test_a_lost_lease_changes_nothing(
    harness: TransportHarness,
    worker: ManualWorker,
    step_for: Callable[[str], Step],
    lose: Callable[[TransportHarness, ManualWorker, Lease], Awaitable[None]],
) -> None:
    await harness.put(BOX, "c1", "c2")
    lease, _ = await worker.start()
    await lose(harness, worker, lease)
    before = await harness.everything()
    assert await worker.do(lease, step_for("c1")) == LeaseLost()
    assert await harness.everything() == before


@each(EVERY_VERB)
async def test_an_invented_lease_changes_nothing(
    harness: TransportHarness, worker: ManualWorker, step_for: Callable[[str], Step]
) -> None:
    await harness.put(BOX, "c1", "c2")
    lease, started = await worker.start()
    before = await harness.everything()
    other = harness.worker("w2")
    wrong = [
        other.lease("box:nobody", lease.activation),
        other.lease(BOX, "1-1"),
        other.lease(BOX, lease.activation),
        Lease(0, BOX, lease.activation, 0.0, "w2#1", f"{int(started.fence) - 1}|{started.message}"),
        Lease(0, BOX, lease.activation, 0.0, "w2#1", f"{started.fence}|1-1"),
    ]
    for invented in wrong:
        assert await other.do(invented, step_for("c1")) == LeaseLost()
    assert await harness.everything() == before


# The fence.


async def test_the_fence_grows_with_every_start_whatever_becomes_of_its_key(
    harness: TransportHarness, worker: ManualWorker
) -> None:
    fences: list[int] = []

    async def start_one(name: str) -> int:
        await harness.put(BOX, name)
        lease, started = await worker.start()
        await worker.do(lease, done(name))
        fences.append(int(started.fence))
        return fences[-1]

    for number in range(3):
        await start_one(f"a{number}")
    seconds, micros = await harness.client.time()
    assert abs(fences[-1] - (seconds * 1_000_000 + micros)) < 60_000_000, "it is the server's clock in µs"
    await harness.client.delete(harness.shard.fence)
    await start_one("lost")
    ahead = fences[-1] + 3_600_000_000
    await harness.client.set(harness.shard.fence, str(ahead))
    assert await start_one("ahead") == ahead + 1
    assert await start_one("still ahead") == ahead + 2
    assert await harness.client.get(harness.shard.fence) == str(ahead + 2).encode()
    assert fences == sorted(set(fences))


async def test_each_start_of_a_batch_has_a_fence_of_its_own(harness: TransportHarness, worker: ManualWorker) -> None:
    for number in range(20):
        await harness.put(f"box:{number}", f"c{number}")
    answers = [worker.steps.advance(lease, TAKE) for lease in await worker.read()]
    fences = [int((await answer).fence) for answer in answers]  # type: ignore[union-attr]
    assert len(set(fences)) == 20
    assert fences == sorted(fences)
    assert await harness.client.get(harness.shard.fence) == str(fences[-1]).encode()


async def test_a_repeated_step_burns_no_fence(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    before = await harness.client.get(harness.shard.fence)
    await worker.again(worker.lease(BOX, lease.activation), TAKE)
    assert await harness.client.get(harness.shard.fence) == before


# Time.


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


async def test_a_retry_waits_outside_the_ready_stream_and_comes_back_with_its_attempt(
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
    assert not {harness.shard.due, harness.shard.delayed, harness.shard.later} & set(await harness.everything())


# Whose turn it is.


async def test_a_slot_is_yielded_only_if_somebody_waits(harness: TransportHarness, worker: ManualWorker) -> None:
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
async def test_what_is_given_back_starts_again_at_once(harness: TransportHarness, worker: ManualWorker, counts: bool) -> None:
    await harness.put(BOX, "c1")
    lease, first = await worker.start()
    assert await worker.do(lease, GiveBack(counts)) == Released("yield")
    _, again = await harness.worker("w2").start()
    assert (again.attempt, again.message, again.first_ms) == (1 + counts, first.message, first.first_ms)


async def test_what_was_delivered_and_not_taken_is_handed_back_untouched(harness: TransportHarness, worker: ManualWorker) -> None:
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


@pytest.mark.parametrize("decision", [GiveBack(counts=True), bury("c1", "leave"), park("c1")], ids=["again", "bury", "park"])
async def test_a_lost_command_is_settled_by_whoever_takes_over(
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


# Paused and parked.


async def _stopped(harness: TransportHarness) -> None:
    record = await harness.record(BOX)
    assert record is not None
    assert record.state == "s"
    assert await harness.activations() == []


async def _resume_runs(harness: TransportHarness, worker: ManualWorker, command: bytes, attempt: int = 1) -> None:
    assert await harness.scopes.resume(BOX)
    lease, started = await worker.start()
    assert (started.envelope, started.attempt) == (command, attempt)
    assert await worker.do(lease, done(command.decode(), "leave")) in (Released("idle"), Released("yield"))


async def test_paused_before_the_first_command(harness: TransportHarness, worker: ManualWorker) -> None:
    assert await harness.scopes.pause(BOX, "why")
    assert not await harness.scopes.pause(BOX, "why")
    await harness.put(BOX, "c1")
    await _stopped(harness)
    await _resume_runs(harness, worker, b"c1")
    assert not await harness.scopes.resume(BOX)
    assert await harness.nothing_of(BOX)


async def test_paused_between_ready_and_take(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease = await worker.read_one()
    await harness.scopes.pause(BOX, "")
    assert await worker.do(lease, TAKE) == Released("stop")
    await _stopped(harness)
    await _resume_runs(harness, worker, b"c1")


@each({**SETTLING, "leave": lambda name: done(name, "leave")})
async def test_paused_while_a_command_runs(
    harness: TransportHarness, worker: ManualWorker, step_for: Callable[[str], Step]
) -> None:
    await harness.put(BOX, "c1", "c2")
    lease, _ = await worker.start()
    await harness.scopes.pause(BOX, "")
    assert await worker.do(lease, step_for("c1")) == Released("stop")
    await _stopped(harness)
    await _resume_runs(harness, worker, b"c2")
    assert await harness.nothing_of(BOX)


async def test_paused_while_the_last_command_runs_leaves_nothing(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    await harness.scopes.pause(BOX, "")
    assert await worker.do(lease, done("c1")) == Released("idle")
    assert await harness.nothing_of(BOX)
    assert await harness.scopes.resume(BOX)
    assert await harness.nothing_of(BOX)


async def test_paused_while_a_retry_waits(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    await worker.do(lease, Retry(0))
    await harness.scopes.pause(BOX, "")
    await harness.promote(worker)
    await _stopped(harness)
    await _resume_runs(harness, worker, b"c1", attempt=2)


async def test_resumed_while_a_retry_waits_keeps_waiting(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    await worker.do(lease, Retry(60_000))
    await harness.scopes.pause(BOX, "")
    await harness.scopes.resume(BOX)
    assert await harness.activations() == []
    record = await harness.record(BOX)
    assert record is not None
    assert record.state == "w"


async def test_paused_when_a_delayed_command_comes_due(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.scopes.pause(BOX, "")
    await harness.put(BOX, "d1", delay_ms=1)
    while await harness.client.zcard(harness.shard.due):
        await harness.promote(worker)
    await _stopped(harness)
    await _resume_runs(harness, worker, b"d1")


@pytest.mark.parametrize("verb", ["replay", "discard"])
@pytest.mark.parametrize("paused", [True, False])
async def test_parked_and_paused_are_independent(
    harness: TransportHarness, worker: ManualWorker, verb: str, paused: bool
) -> None:
    await harness.put(BOX, "c1", "c2")
    lease, _ = await worker.start()
    if paused:
        await harness.scopes.pause(BOX, "")
    assert await worker.do(lease, park("c1")) == Released("stop")
    await _stopped(harness)
    await harness.put(BOX, "c3")
    await _stopped(harness)
    (letter,) = [letter async for letter in harness.dead_letters.all()]
    assert letter.parked
    if not paused:
        assert not await harness.scopes.resume(BOX)
        await _stopped(harness)
    assert await harness.dead_letters.settle(letter, verb, left("c1"))
    assert not await harness.dead_letters.settle(letter, verb, left("c1"))
    first = b"c1" if verb == "replay" else b"c2"
    if paused:
        await _stopped(harness)
        await _resume_runs(harness, worker, first)
    else:
        _, started = await worker.start()
        assert (started.envelope, started.attempt) == (first, 1)
    assert await harness.client.xlen(harness.shard.dead) == 0


async def test_resumed_while_parked_stays_parked(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    await harness.scopes.pause(BOX, "")
    await worker.do(lease, park("c1"))
    assert await harness.scopes.resume(BOX)
    await _stopped(harness)
    (letter,) = [letter async for letter in harness.dead_letters.all()]
    await harness.dead_letters.settle(letter, "discard", left("c1"))
    assert await harness.nothing_of(BOX)


# What an operator removes.


@pytest.mark.parametrize("state", ["ready", "delivered", "held", "waiting", "paused", "parked"])
async def test_a_purge_leaves_the_running_command_alone_and_nothing_else(
    harness: TransportHarness, worker: ManualWorker, state: str
) -> None:
    await harness.put(BOX, "c1", "c2")
    await harness.put(BOX, "d1", delay_ms=60_000)
    lease = None
    if state != "ready":
        lease = await worker.read_one()
    if state not in ("ready", "delivered"):
        assert lease is not None
        await worker.do(lease, TAKE)
    if state == "waiting":
        await worker.do(lease, Retry(60_000))  # type: ignore[arg-type]
    if state == "parked":
        await worker.do(lease, park("c1"))  # type: ignore[arg-type]
    if state == "paused":
        await harness.scopes.pause(BOX, "")
        await worker.do(lease, GiveBack(counts=False))  # type: ignore[arg-type]
        assert await worker.do(await worker.read_one(), TAKE) == Released("stop")
    removed = 0
    async for page in harness.mailboxes.waiting(BOX):
        removed += await harness.mailboxes.remove(
            BOX, [(command, left(command.envelope.decode(), inbox="p")) for command in page]
        )
    assert removed == (2 if state == "held" else 3)
    if state == "held":
        assert lease is not None
        assert await worker.do(lease, done("c1")) == Released("idle")
    assert await harness.nothing_of(BOX)
    assert (await harness.counters())["depth"] == 0
    assert len(await harness.client.lrange(harness.shard.inbox("p"), 0, -1)) == removed  # type: ignore[misc]
    keys = set(await harness.everything())
    assert not {harness.shard.due, harness.shard.delayed, harness.shard.later, harness.shard.parked} & keys
    assert await harness.client.xlen(harness.shard.dead) == 0
    if state == "delivered":
        assert lease is not None
        assert await worker.do(lease, TAKE) == LeaseLost()


@pytest.mark.parametrize("state", ["waiting", "parked"])
async def test_removing_the_head_frees_its_followers(harness: TransportHarness, worker: ManualWorker, state: str) -> None:
    await harness.put(BOX, "c1", "c2")
    lease, _ = await worker.start()
    await worker.do(lease, Retry(60_000) if state == "waiting" else park("c1"))
    page = [page async for page in harness.mailboxes.waiting(BOX)][0]  # noqa: RUF015 - there is no async next()
    assert await harness.mailboxes.remove(BOX, [(page[0], left("c1"))]) == 1
    _, started = await worker.start()
    assert (started.envelope, started.attempt) == (b"c2", 1)


# The server forgets.


async def test_scripts_are_loaded_again_when_the_server_forgot_them(harness: TransportHarness, worker: ManualWorker) -> None:
    async def forget() -> None:
        await harness.client.script_flush()

    await forget()
    assert await harness.put(BOX, "c1", "c2", "c3") == [Admission.ACCEPTED] * 3
    await forget()
    lease, _ = await worker.start()
    await forget()
    await worker.do(lease, Retry(0))
    await forget()
    await harness.promote(worker)
    lease = await worker.read_one()
    await forget()
    assert await harness.scopes.pause(BOX, "")
    await worker.do(lease, TAKE)
    await forget()
    assert await harness.scopes.resume(BOX)
    lease, _ = await worker.start()
    await forget()
    assert isinstance(await worker.do(lease, bury("c1")), Started)
    (letter,) = [letter async for letter in harness.dead_letters.all()]
    await forget()
    assert await harness.dead_letters.settle(letter, "replay", left("c1"))
    waiting = [page async for page in harness.mailboxes.waiting(BOX)][0]  # noqa: RUF015 - there is no async next()
    await forget()
    assert await harness.mailboxes.remove(BOX, [(waiting[1], left("c3"))]) == 1
    await forget()
    assert isinstance(await worker.do(lease, done("c2")), Started)
    assert await worker.do(lease, done("c1")) == Released("idle")
    await forget()
    assert await harness.connections.run(FORGET, [harness.shard.ready, harness.shard.workers], [GROUP, worker.owner]) == 1
    assert await harness.nothing_of(BOX)


async def test_a_worker_that_holds_something_is_not_forgotten(harness: TransportHarness, worker: ManualWorker) -> None:
    async def forget() -> Any:
        return await harness.connections.run(FORGET, [harness.shard.ready, harness.shard.workers], [GROUP, worker.owner])

    await harness.client.hset(harness.shard.workers, worker.owner, "here")  # type: ignore[misc]
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    assert await forget() == 0
    assert await harness.client.hexists(harness.shard.workers, worker.owner)  # type: ignore[misc]
    await worker.do(lease, done("c1"))
    assert await forget() == 1
    assert await forget() == 1
    assert not await harness.client.hexists(harness.shard.workers, worker.owner)  # type: ignore[misc]


async def test_a_lost_worker_is_told_of_for_an_hour_and_then_forgotten(
    harness: TransportHarness, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def swept() -> bool:
        await harness.recovery(harness.worker("w2"), lease=0.01).upkeep[0].turn()
        return not await harness.client.hexists(harness.shard.workers, worker.owner)  # type: ignore[misc]

    await harness.client.hset(harness.shard.workers, worker.owner, "here")  # type: ignore[misc]
    await harness.put(BOX, "c1")
    lease = await worker.read_one()
    await asyncio.sleep(0.2)
    monkeypatch.setattr("command_bus.transport.redis.worker.upkeep._TOLD_OF", 0.1)
    assert not await swept()  # it holds something
    await worker.do(lease, TAKE)
    await worker.do(lease, done("c1"))
    await asyncio.sleep(0.2)
    monkeypatch.undo()
    assert not await swept()
    monkeypatch.setattr("command_bus.transport.redis.worker.upkeep._TOLD_OF", 0.1)
    assert await swept()


async def test_repair_gives_lost_activations_back_and_only_those(harness: TransportHarness, worker: ManualWorker) -> None:
    for box in ("box:ready", "box:held", "box:waiting", "box:stopped", "box:fine"):
        await harness.put(box, f"{box}1", f"{box}2")
    await harness.scopes.pause("box:stopped", "")
    leases = {lease.mailbox: lease for lease in await worker.read()}
    for box in ("box:held", "box:waiting", "box:stopped"):
        await worker.do(leases[box], TAKE)
    await worker.do(leases["box:waiting"], Retry(60_000))
    for box in ("box:ready", "box:held"):
        await harness.client.xdel(harness.shard.ready, leases[box].activation)
    names = [name.decode() for name in await harness.client.hkeys(harness.shard.active)]  # type: ignore[misc]
    run: Any = harness.connections.run
    assert (
        await run(
            REPAIR, [harness.shard.ready, harness.shard.active, harness.shard.paused, harness.shard.parked], [GROUP, *names]
        )
        == 2
    )
    assert (
        await run(
            REPAIR, [harness.shard.ready, harness.shard.active, harness.shard.paused, harness.shard.parked], [GROUP, *names]
        )
        == 0
    )
    assert sorted(await harness.activations()) == ["box:fine", "box:held", "box:ready"]
    other = harness.worker("w2")
    again = {lease.mailbox: lease for lease in await other.read()}
    assert isinstance(await other.do(again["box:ready"], TAKE), Started)
    assert await other.do(again["box:held"], TAKE) == LeaseLost(), "it was started: that is for the recovery to decide"
    assert await worker.do(leases["box:held"], done("box:held1")) == LeaseLost(), "and not by its old holder"


# The headers are the contract.

_USED = re.compile(r"\b(KEYS|ARGV)\[(\d+)\]")
_DECLARED = re.compile(r"^-- (KEYS|ARGV)\[(\d*)(…?)\] +(\w+)", re.MULTILINE)
_BOUND = re.compile(r"^local ([\w, ]+) = ((?:(?:KEYS|ARGV)\[\d+\](?:, )?)+)$", re.MULTILINE)
_SHORT = {"box": "mailbox", "boxes": "count", "id": "letter"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_header_of_a_script_says_what_its_body_uses(script: Any) -> None:
    lines = script.text.removeprefix(TELLING).splitlines()
    header = "\n".join(line for line in lines if line.startswith("--"))
    body = "\n".join(line for line in lines if not line.startswith("--"))
    assert header.startswith(f"-- {script.name}: ")
    assert "\n-- returns " in header
    for kind in ("KEYS", "ARGV"):
        declared = [found[1:] for found in _DECLARED.findall(header) if found[0] == kind]
        fixed = {int(number): word for number, more, word in declared if not more}
        assert sorted(fixed) == list(range(1, len(fixed) + 1)), "numbered without a gap"
        used = {int(number) for found, number in _USED.findall(body) if found == kind}
        assert set(fixed) <= used, f"{kind} declared and not used"
        is_open = any(more for _, more, _ in declared)
        assert is_open or used <= set(fixed), f"{kind} used and not declared"
        assert is_open == bool(re.search(rf"\b{kind}\[(?!\d+\])", body)), f"whether {kind} goes on is said if the body goes on"
        for names, values in _BOUND.findall(body):
            for name, (found, number) in zip(names.split(", "), _USED.findall(values), strict=True):
                if found == kind and int(number) in fixed:
                    assert fixed[int(number)] == _SHORT.get(name, name.partition("_")[0]), "declared under another name"


def test_every_script_file_is_loaded() -> None:
    found = {path.name.removesuffix(".lua") for path in files("command_bus.transport.redis").joinpath("lua").iterdir()}
    assert found == {script.name for script in SCRIPTS} | {"telling"}  # a part of several
    for script in SCRIPTS:
        assert ("local function teller(" in script.text) == ("teller(KEYS[" in script.text)


async def test_large_payloads_are_taken_a_few_at_a_time(
    harness: TransportHarness, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer with a hundred megabytes would hold up the server, and not get through a slow link in time."""
    names = [f"box:{number}" for number in range(80)]
    await harness.producer.enqueue_many([Submission(name, name, b"x" * 200_000, NO_DIGEST, 10, 0) for name in names], 20)
    sizes: list[int] = []
    ask = _Shard._ask

    async def spied(self: _Shard, keys: Any, args: Any) -> Any:
        sizes.append(args[4])  # how many steps it has
        return await ask(self, keys, args)

    monkeypatch.setattr(_Shard, "_ask", spied)
    leases = await worker.read(100)
    started = await asyncio.gather(*(worker.do(lease, TAKE) for lease in leases))
    assert all(isinstance(each, Started) and each.envelope == b"x" * 200_000 for each in started)
    assert sum(sizes) == len(leases) == 80
    assert max(sizes[1:]) <= 5, "once it is known how large they are"
    await asyncio.gather(*(worker.do(lease, done(lease.mailbox)) for lease in leases))
