"""The Lua steps as a table of behaviours: what each does, what it leaves, and that asking again or too late changes nothing."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from command_bus.clock import mono
from command_bus.errors import CommandBusError, TransportUnavailable
from command_bus.transport.redis.keys import GROUP
from command_bus.transport.redis.scripts import ENQUEUE, REACTIVATE, REMOVE_WORKER
from command_bus.transport.redis.sending.producer import _Waiting
from command_bus.transport.redis.worker.step_batcher import _Shard
from command_bus.transport.steps import Done, GiveBack, Lease, LeaseLost, Released, Retry, Settlement, Started, Step, StepFailed
from command_bus.transport.submissions import NO_DIGEST, Admission, Submission
from tests.conformance.bare import TAKE, Bare, Hand, bare, bury, done, left, park
from tests.conformance.conftest import Bench

BOX = "box:a"


@pytest.fixture
async def shelf(bench: Bench) -> AsyncIterator[Bare]:
    async with bare(bench.clients, bench.namespace) as shelf:
        yield shelf


@pytest.fixture
def hand(shelf: Bare) -> Hand:
    return shelf.hand()


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


async def test_the_first_command_makes_a_mailbox_and_one_activation(shelf: Bare, hand: Hand) -> None:
    assert await shelf.put(BOX, "c1", "c2") == [Admission.ACCEPTED] * 2
    assert await shelf.put(BOX, "c3") == [Admission.ACCEPTED]
    assert await shelf.activations() == [BOX]
    record = await shelf.record(BOX)
    assert record is not None
    assert (record.state, record.attempt, record.holder) == ("r", 0, "")
    assert await shelf.counters() == {"depth": 3, "accepted": 3}


async def test_the_same_batch_asked_again_is_answered_as_the_first_time(shelf: Bare, hand: Hand) -> None:
    lane = shelf.producer._shards[0]
    submissions = [Submission(BOX, name, b"x", NO_DIGEST, 2, delay) for name, delay in (("c1", 0), ("c2", 10_000), ("c3", 0))]
    submissions.append(Submission("box:b", "c1", b"x", NO_DIGEST, 5))
    waiting: Any = type("W", (), {"submissions": submissions, "deadline": mono() + 5})
    keys, args = lane._arguments([waiting], 8)
    first = await shelf.connections.run(ENQUEUE, keys, args)
    before = await shelf.everything()
    assert first == b"++e="
    assert await shelf.connections.run(ENQUEUE, keys, args) == b"++e="
    assert await shelf.everything() == before
    _, later = lane._arguments([waiting], 9)
    assert await shelf.connections.run(ENQUEUE, keys, later) == b"==e="
    assert {**await shelf.everything(), keys[7]: None} == {**before, keys[7]: None}


async def test_a_refused_batch_that_was_stuck_on_its_way_is_refused_when_it_arrives(shelf: Bare, hand: Hand) -> None:
    """Its caller was told that it was refused, and may have given up: there being room by then must not matter."""
    lane = shelf.producer._shards[0]
    await shelf.put(BOX, "c1")
    waiting: Any = type(
        "W", (), {"submissions": [Submission(BOX, "c2", b"x", NO_DIGEST, 1, marked=False)], "deadline": mono() + 5}
    )
    keys, args = lane._arguments([waiting], 8)
    assert await shelf.connections.run(ENQUEUE, keys, args) == b"e"
    lease, _ = await hand.start()
    assert await hand.do(lease, done("c1")) == Released("idle")
    assert await shelf.connections.run(ENQUEUE, keys, args) == b"e"
    _, later = lane._arguments([waiting], 9)
    assert await shelf.connections.run(ENQUEUE, keys, later) == b"+"


async def test_a_batch_without_marks_asked_again_is_answered_as_the_first_time_even_if_all_is_settled(
    shelf: Bare, hand: Hand
) -> None:
    lane = shelf.producer._shards[0]
    submissions = [Submission(BOX, name, b"x", NO_DIGEST, 2, delay, marked=False) for name, delay in (("c1", 0), ("c2", 10_000))]
    waiting: Any = type("W", (), {"submissions": submissions, "deadline": mono() + 5})
    keys, args = lane._arguments([waiting], 8)
    assert await shelf.connections.run(ENQUEUE, keys, args) == b"++"
    lease, _ = await hand.start()
    await hand.do(lease, done("c1"))
    before = await shelf.everything()
    assert await shelf.connections.run(ENQUEUE, keys, args) == b"++"
    assert await shelf.everything() == before


async def test_a_batch_whose_first_answer_is_gone_is_not_applied_again(shelf: Bare) -> None:
    lane = shelf.producer._shards[0]
    await shelf.put(BOX, "c1")
    waiting: Any = type(
        "W", (), {"submissions": [Submission(BOX, "c2", b"x", NO_DIGEST, 9, marked=False)], "deadline": mono() + 5}
    )
    keys, args = lane._arguments([waiting], 8)
    await shelf.client.delete(keys[7])
    before = await shelf.everything()
    assert await shelf.connections.run(ENQUEUE, keys, [args[0], 1, *args[2:]]) == b"gone"
    assert await shelf.everything() == before


@pytest.mark.parametrize("applied", [False, True])
async def test_a_producer_that_was_silent_for_long_asks_again_like_any_other(
    shelf: Bare, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    lane = shelf.producer._shards[0]
    run = lane._connections.run_confirmed
    ways = ["cut off", "through"]

    async def cut_off_once(*request: Any) -> Any:
        broken = ways.pop(0) == "cut off"
        answer = await run(*request) if applied or not broken else None
        if broken:
            raise TransportUnavailable("cut off", outcome_unknown=True)
        return answer

    await shelf.put(BOX, "c1")
    await shelf.put(BOX, "c2")
    (last,) = [key async for key in shelf.client.scan_iter(f"{shelf.shard.prefix}p:*")]
    await shelf.client.delete(last)  # as it ends by itself
    monkeypatch.setattr("command_bus.transport.redis.sending.producer.mono", lambda: mono() + 3700)
    monkeypatch.setattr(lane._connections, "run_confirmed", cut_off_once)
    assert await shelf.producer.enqueue(Submission(BOX, "c3", b"x", NO_DIGEST, 9, marked=False), 5) is Admission.ACCEPTED
    assert await shelf.client.xlen(shelf.shard.mailbox(BOX)) == 3


async def test_a_delayed_command_for_what_is_no_mailbox_is_refused(shelf: Bare) -> None:
    await shelf.client.set(shelf.shard.mailbox(BOX), "text")
    before = await shelf.everything()
    refused = Submission(BOX, "c1", b"x", NO_DIGEST, 9, 60_000, marked=False)
    assert await shelf.producer.enqueue(refused, 5) is Admission.WRONG_TYPE
    assert await shelf.everything() == before


async def test_a_batch_that_was_stuck_on_the_way_is_refused_when_a_later_one_was_answered(shelf: Bare) -> None:
    lane = shelf.producer._shards[0]
    stuck, later = (
        lane._arguments([_Waiting([Submission(BOX, name, b"x", NO_DIGEST, 9, marked=False)], Future(), mono() + 5)], number)
        for number, name in ((8, "c1"), (9, "c2"))
    )
    assert await shelf.connections.run(ENQUEUE, *later) == b"+"
    before = await shelf.everything()
    with pytest.raises(CommandBusError, match="STALE"):
        await shelf.connections.run(ENQUEUE, *stuck)
    assert await shelf.everything() == before


async def test_a_settled_command_asked_again_is_a_duplicate(shelf: Bare, hand: Hand) -> None:
    await shelf.put(BOX, "c1")
    lease, _ = await hand.start()
    await hand.do(lease, done("c1"))
    assert await shelf.put(BOX, "c1") == [Admission.DUPLICATE]
    assert await shelf.nothing_of(BOX)


async def test_another_digest_is_a_conflict_and_adds_nothing(shelf: Bare) -> None:
    await shelf.put(BOX, "c1")
    before = await shelf.everything()
    other = Submission("box:b", "c1", b"y", b"digest-8", 5)
    assert await shelf.producer.enqueue(other, 5) is Admission.CONFLICT
    assert await shelf.everything() == before


async def test_after_a_refusal_its_mailbox_takes_no_more_of_the_batch(shelf: Bare) -> None:
    await shelf.put(BOX, "c0")
    names = ("c1", "c2", "c3", "c0")
    batch = [Submission(BOX, name, b"x", NO_DIGEST, limit) for name, limit in zip(names, (2, 9, 9, 9), strict=True)]
    assert await shelf.producer.enqueue_many([*batch, Submission("box:b", "d", b"x", NO_DIGEST, 9)], 5) == [
        Admission.ACCEPTED,
        Admission.ENTITY_FULL,
        Admission.PREDECESSOR_REFUSED,
        Admission.DUPLICATE,
        Admission.ACCEPTED,
    ]
    assert await shelf.client.xlen(shelf.shard.mailbox(BOX)) == 2


# Taking.


async def test_a_repeated_take_starts_nothing_new(shelf: Bare, hand: Hand) -> None:
    await shelf.put(BOX, "c1", "c2")
    first, again = await hand.again(await hand.read_one(), TAKE)
    assert isinstance(first, Started)
    assert isinstance(again, Started)
    assert (first.fence, first.message, first.attempt, first.envelope) == (again.fence, again.message, again.attempt, b"c1")
    assert first.attempt == 1


async def test_another_lease_of_the_same_worker_takes_nothing_that_is_started(shelf: Bare, hand: Hand) -> None:
    """A worker that lost sight of its lease, or reads it again from a group made anew, must not start the command twice."""
    await shelf.put(BOX, "c1")
    lease, started = await hand.start()
    before = await shelf.everything()
    assert await hand.do(hand.lease(BOX, lease.activation), TAKE) == LeaseLost()
    assert await shelf.everything() == before
    assert await hand.do(lease, done("c1")) == Released("idle")
    assert started.attempt == 1


async def test_a_take_in_another_name_claims_the_activation(shelf: Bare, hand: Hand) -> None:
    """The pending entry is the lease: who starts the command must be the one whose renewals count."""
    await shelf.put(BOX, "c1")
    lease = await hand.read_one()
    other = shelf.hand("w2")
    assert isinstance(await other.do(other.lease(BOX, lease.activation), TAKE), Started)
    (pending,) = await shelf.client.xpending_range(shelf.shard.ready, GROUP, min="-", max="+", count=10)
    assert pending["consumer"] == b"w2"
    assert await hand.do(lease, TAKE) == LeaseLost()


# Settling.


@each(SETTLING)
async def test_a_repeated_settling_counts_once_and_gives_the_same_next(
    shelf: Bare, hand: Hand, step_for: Callable[[str], Step]
) -> None:
    await shelf.put(BOX, "c1", "c2")
    lease, _ = await hand.start()
    first, again = await hand.again(lease, step_for("c1"))
    assert isinstance(first, Started)
    assert isinstance(again, Started)
    assert (first.fence, first.message, first.envelope) == (again.fence, again.message, b"c2")
    counters = await shelf.counters()
    assert (counters["settled"], counters["depth"]) == (1, 1)
    assert await shelf.client.xlen(shelf.shard.dead) == (1 if step_for is bury else 0)
    first, again = await hand.again(lease, step_for("c2"))
    assert (first, again) == (Released("idle"), LeaseLost())
    assert await shelf.nothing_of(BOX)
    assert (await shelf.counters())["settled"] == 2


@each(LETTING_GO)
async def test_a_repeated_letting_go_is_gone_and_changes_nothing(
    shelf: Bare, hand: Hand, step_for: Callable[[str], Step]
) -> None:
    await shelf.put(BOX, "c1")
    lease, _ = await hand.start()
    assert isinstance(await hand.do(Lease(**_as_dict(lease)), step_for("c1")), Released)
    before = await shelf.everything()
    assert await hand.do(lease, step_for("c1")) == LeaseLost()
    assert await shelf.everything() == before


def _as_dict(lease: Lease) -> dict[str, Any]:
    return {name: getattr(lease, name) for name in Lease.__slots__}


async def test_settling_leaves_mark_and_reply_in_one_step(shelf: Bare, hand: Hand) -> None:
    await shelf.put(BOX, "c1", "c2")
    lease, _ = await hand.start()
    await hand.again(lease, done("c1", inbox="p1", mark_ms=5000))
    inbox, mark = shelf.shard.inbox("p1"), shelf.shard.mark("c1")
    assert await shelf.client.lrange(inbox, 0, -1) == [b"reply of c1"]  # type: ignore[misc]
    assert 0 < await shelf.client.pttl(inbox) <= 60_000
    assert await shelf.client.get(mark) == b"d" + NO_DIGEST + b"outcome"
    assert 0 < await shelf.client.pttl(mark) <= 5000
    await hand.do(lease, Done(Settlement("c2", b"", 0)))
    assert await shelf.client.get(shelf.shard.mark("c2")) == b"q" + NO_DIGEST + BOX.encode(), "as it was put"


async def test_one_broken_mailbox_fails_alone_in_its_batch(shelf: Bare, hand: Hand) -> None:
    for box in ("box:a", "box:b", "box:c"):
        await shelf.put(box, f"{box}1", f"{box}2")
    leases = await hand.read()
    for lease in leases:
        await hand.do(lease, TAKE)
    broken = shelf.shard.mailbox("box:b")
    aside = f"{broken}:aside"
    await shelf.client.rename(broken, aside)
    await shelf.client.set(broken, "text")
    answers = [hand.steps.advance(lease, bury(f"{lease.mailbox}1")) for lease in leases]
    good, bad, also_good = [await answer for answer in answers]
    assert isinstance(good, Started)
    assert isinstance(also_good, Started)
    assert isinstance(bad, StepFailed)
    assert "WRONGTYPE" in bad.reason
    assert await shelf.client.xlen(shelf.shard.dead) == 2
    await shelf.client.rename(aside, broken)
    assert isinstance(await hand.do(leases[1], bury("box:b1")), Started)
    assert await shelf.client.xlen(shelf.shard.dead) == 3


# Who no longer holds changes nothing.


async def _overtaken(shelf: Bare, hand: Hand, lease: Lease) -> None:
    """Another worker took the lease over and runs the command."""
    other = shelf.hand("w2")
    await other.claim(lease.activation)
    await shelf.recovery(other).settle(0, [(lease.activation, lease.mailbox)])
    await other.start()


async def _overtaken_and_settled(shelf: Bare, hand: Hand, lease: Lease) -> None:
    other = shelf.hand("w2")
    await other.claim(lease.activation)
    await shelf.recovery(other).settle(0, [(lease.activation, lease.mailbox)])
    taken, _ = await other.start()
    await other.do(taken, done("c1"))


async def _purged(shelf: Bare, hand: Hand, lease: Lease) -> None:
    """The mailbox was deleted with its record, and is in use again."""
    await shelf.client.delete(shelf.shard.mailbox(BOX))
    await shelf.client.hdel(shelf.shard.active, BOX)  # type: ignore[misc]
    await shelf.put(BOX, "n1")


async def _given_back(shelf: Bare, hand: Hand, lease: Lease) -> None:
    await hand.do(Lease(**_as_dict(lease)), GiveBack(counts=True))


LOSSES = {
    "overtaken": _overtaken,
    "overtaken and settled": _overtaken_and_settled,
    "purged": _purged,
    "given back": _given_back,
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES.keys())
@each(EVERY_VERB)
async def test_a_lost_lease_changes_nothing(
    shelf: Bare, hand: Hand, step_for: Callable[[str], Step], lose: Callable[[Bare, Hand, Lease], Awaitable[None]]
) -> None:
    await shelf.put(BOX, "c1", "c2")
    lease, _ = await hand.start()
    await lose(shelf, hand, lease)
    before = await shelf.everything()
    assert await hand.do(lease, step_for("c1")) == LeaseLost()
    assert await shelf.everything() == before


@each(EVERY_VERB)
async def test_an_invented_lease_changes_nothing(shelf: Bare, hand: Hand, step_for: Callable[[str], Step]) -> None:
    await shelf.put(BOX, "c1", "c2")
    lease, started = await hand.start()
    before = await shelf.everything()
    other = shelf.hand("w2")
    wrong = [
        other.lease("box:nobody", lease.activation),
        other.lease(BOX, "1-1"),
        other.lease(BOX, lease.activation),
        Lease(0, BOX, lease.activation, 0.0, "w2#1", f"{int(started.fence) - 1}|{started.message}"),
        Lease(0, BOX, lease.activation, 0.0, "w2#1", f"{started.fence}|1-1"),
    ]
    for invented in wrong:
        assert await other.do(invented, step_for("c1")) == LeaseLost()
    assert await shelf.everything() == before


# The fence.


async def test_the_fence_grows_with_every_start_whatever_becomes_of_its_key(shelf: Bare, hand: Hand) -> None:
    fences: list[int] = []

    async def start_one(name: str) -> int:
        await shelf.put(BOX, name)
        lease, started = await hand.start()
        await hand.do(lease, done(name))
        fences.append(int(started.fence))
        return fences[-1]

    for number in range(3):
        await start_one(f"a{number}")
    seconds, micros = await shelf.client.time()
    assert abs(fences[-1] - (seconds * 1_000_000 + micros)) < 60_000_000, "it is the server's clock in µs"
    await shelf.client.delete(shelf.shard.fence)
    await start_one("lost")
    ahead = fences[-1] + 3_600_000_000
    await shelf.client.set(shelf.shard.fence, str(ahead))
    assert await start_one("ahead") == ahead + 1
    assert await start_one("still ahead") == ahead + 2
    assert await shelf.client.get(shelf.shard.fence) == str(ahead + 2).encode()
    assert fences == sorted(set(fences))


async def test_each_start_of_a_batch_has_a_fence_of_its_own(shelf: Bare, hand: Hand) -> None:
    for number in range(20):
        await shelf.put(f"box:{number}", f"c{number}")
    answers = [hand.steps.advance(lease, TAKE) for lease in await hand.read()]
    fences = [int((await answer).fence) for answer in answers]  # type: ignore[union-attr]
    assert len(set(fences)) == 20
    assert fences == sorted(fences)
    assert await shelf.client.get(shelf.shard.fence) == str(fences[-1]).encode()


async def test_a_repeated_step_burns_no_fence(shelf: Bare, hand: Hand) -> None:
    await shelf.put(BOX, "c1")
    lease, _ = await hand.start()
    before = await shelf.client.get(shelf.shard.fence)
    await hand.again(hand.lease(BOX, lease.activation), TAKE)
    assert await shelf.client.get(shelf.shard.fence) == before


# Time.


async def test_a_tick_comes_with_every_earlier_due_time_and_with_no_later(shelf: Bare, hand: Hand) -> None:
    for name, delay, ticks in (("d1", 60_000, 1), ("d2", 90_000, 1), ("d3", 30_000, 2), ("d4", 30_500, 2)):
        await shelf.put(BOX, name, delay_ms=delay)
        assert await shelf.ticks() == ticks, name
    await shelf.put("box:r", "c1", "c2")
    ready = [lease for lease in await hand.read() if lease.mailbox == "box:r"]
    assert await shelf.ticks() == 0
    await hand.do(ready[0], TAKE)
    await hand.do(ready[0], Retry(45_000))
    assert await shelf.ticks() == 0
    await shelf.put("box:s", "e1")
    lease, _ = await hand.start()
    await hand.do(lease, Retry(10_000))
    assert await shelf.ticks() == 1


async def test_a_batch_of_delays_adds_a_tick_per_new_minimum_only(shelf: Bare) -> None:
    batch = [Submission(BOX, f"d{delay}", b"x", NO_DIGEST, 99, delay) for delay in (50_000, 60_000, 40_000, 70_000)]
    await shelf.producer.enqueue_many(batch, 5)
    assert await shelf.ticks() == 2


async def test_a_retry_waits_outside_the_ready_stream_and_comes_back_with_its_attempt(shelf: Bare, hand: Hand) -> None:
    await shelf.put(BOX, "c1", "c2")
    lease, first = await hand.start()
    assert await hand.do(lease, Retry(0)) == Released("wait")
    record = await shelf.record(BOX)
    assert record is not None
    assert (record.state, record.activation, record.attempt) == ("w", "", 1)
    assert await shelf.activations() == []
    await shelf.promote(hand)
    lease, second = await hand.start()
    assert (second.attempt, second.message, second.first_ms) == (2, first.message, first.first_ms)
    assert int(second.fence) > int(first.fence)
    await hand.do(lease, Retry(0, counts=False))
    await shelf.promote(hand)
    lease, third = await hand.start()
    assert (third.attempt, third.message) == (2, first.message)
    await hand.do(lease, Retry(60_000))
    await shelf.promote(hand)
    assert await shelf.activations() == [], "not before its time"


async def test_a_delayed_command_takes_its_place_when_it_is_due(shelf: Bare, hand: Hand) -> None:
    await shelf.put(BOX, "d1", delay_ms=1)
    assert await shelf.record(BOX) is None
    assert await shelf.mailboxes.depth(BOX) == 1
    await shelf.put(BOX, "c1")
    while await shelf.client.zcard(shelf.shard.due):
        await shelf.promote(hand)
    await shelf.promote(hand)
    lease, started = await hand.start()
    assert started.envelope == b"c1"
    second = await hand.do(lease, done("c1"))
    assert isinstance(second, Started)
    assert second.envelope == b"d1"
    assert await hand.do(lease, done("d1")) == Released("idle")
    assert await shelf.nothing_of(BOX)
    assert not {shelf.shard.due, shelf.shard.delayed, shelf.shard.delayed_counts} & set(await shelf.everything())


# Whose turn it is.


async def test_a_slot_is_yielded_only_if_somebody_waits(shelf: Bare, hand: Hand) -> None:
    await shelf.put(BOX, "c1", "c2", "c3")
    lease, _ = await hand.start()
    assert isinstance(await hand.do(lease, done("c1", "yield")), Started)
    await shelf.put("box:b", "d1")
    assert await hand.do(lease, done("c2", "yield")) == Released("yield")
    assert await shelf.activations() == ["box:b", BOX]
    record = await shelf.record(BOX)
    assert record is not None
    assert (record.state, record.attempt) == ("r", 0)


@pytest.mark.parametrize("counts", [True, False])
async def test_what_is_given_back_starts_again_at_once(shelf: Bare, hand: Hand, counts: bool) -> None:
    await shelf.put(BOX, "c1")
    lease, first = await hand.start()
    assert await hand.do(lease, GiveBack(counts)) == Released("yield")
    _, again = await shelf.hand("w2").start()
    assert (again.attempt, again.message, again.first_ms) == (1 + counts, first.message, first.first_ms)


async def test_what_was_delivered_and_not_taken_is_handed_back_untouched(shelf: Bare, hand: Hand) -> None:
    await shelf.put(BOX, "c1")
    lease = await hand.read_one()
    assert await hand.do(lease, GiveBack(counts=False)) == Released("yield")
    assert await hand.do(lease, TAKE) == LeaseLost()
    _, started = await shelf.hand("w2").start()
    assert started.attempt == 1


async def test_leaving_starts_no_next_command(shelf: Bare, hand: Hand) -> None:
    await shelf.put(BOX, "c1", "c2")
    lease, _ = await hand.start()
    assert await hand.do(lease, done("c1", "leave")) == Released("yield")
    lease, started = await hand.start()
    assert (started.envelope, started.attempt) == (b"c2", 1)
    assert await hand.do(lease, done("c2", "leave")) == Released("idle")
    assert await shelf.nothing_of(BOX)


@pytest.mark.parametrize("decision", [GiveBack(counts=True), bury("c1", "leave"), park("c1")], ids=["again", "bury", "park"])
async def test_a_lost_command_is_settled_by_whoever_takes_over(shelf: Bare, hand: Hand, decision: Step) -> None:
    await shelf.put(BOX, "c1", "c2")
    lease, _ = await hand.start()
    other = shelf.hand("w2")
    await other.claim(lease.activation)
    await shelf.recovery(other, decision).settle(0, [(lease.activation, BOX)])
    record = await shelf.record(BOX)
    assert record is not None
    assert record.state == ("s" if decision == park("c1") else "r")
    assert await shelf.client.xlen(shelf.shard.dead) == (0 if isinstance(decision, GiveBack) else 1)
    if record.state == "r":
        _, started = await other.start()
        assert (started.envelope, started.attempt) == ((b"c1", 2) if isinstance(decision, GiveBack) else (b"c2", 1))


# Paused and parked.


async def _stopped(shelf: Bare) -> None:
    record = await shelf.record(BOX)
    assert record is not None
    assert record.state == "s"
    assert await shelf.activations() == []


async def _resume_runs(shelf: Bare, hand: Hand, command: bytes, attempt: int = 1) -> None:
    assert await shelf.scopes.resume(BOX)
    lease, started = await hand.start()
    assert (started.envelope, started.attempt) == (command, attempt)
    assert await hand.do(lease, done(command.decode(), "leave")) in (Released("idle"), Released("yield"))


async def test_paused_before_the_first_command(shelf: Bare, hand: Hand) -> None:
    assert await shelf.scopes.pause(BOX, "why")
    assert not await shelf.scopes.pause(BOX, "why")
    await shelf.put(BOX, "c1")
    await _stopped(shelf)
    await _resume_runs(shelf, hand, b"c1")
    assert not await shelf.scopes.resume(BOX)
    assert await shelf.nothing_of(BOX)


async def test_paused_between_ready_and_take(shelf: Bare, hand: Hand) -> None:
    await shelf.put(BOX, "c1")
    lease = await hand.read_one()
    await shelf.scopes.pause(BOX, "")
    assert await hand.do(lease, TAKE) == Released("stop")
    await _stopped(shelf)
    await _resume_runs(shelf, hand, b"c1")


@each({**SETTLING, "leave": lambda name: done(name, "leave")})
async def test_paused_while_a_command_runs(shelf: Bare, hand: Hand, step_for: Callable[[str], Step]) -> None:
    await shelf.put(BOX, "c1", "c2")
    lease, _ = await hand.start()
    await shelf.scopes.pause(BOX, "")
    assert await hand.do(lease, step_for("c1")) == Released("stop")
    await _stopped(shelf)
    await _resume_runs(shelf, hand, b"c2")
    assert await shelf.nothing_of(BOX)


async def test_paused_while_the_last_command_runs_leaves_nothing(shelf: Bare, hand: Hand) -> None:
    await shelf.put(BOX, "c1")
    lease, _ = await hand.start()
    await shelf.scopes.pause(BOX, "")
    assert await hand.do(lease, done("c1")) == Released("idle")
    assert await shelf.nothing_of(BOX)
    assert await shelf.scopes.resume(BOX)
    assert await shelf.nothing_of(BOX)


async def test_paused_while_a_retry_waits(shelf: Bare, hand: Hand) -> None:
    await shelf.put(BOX, "c1")
    lease, _ = await hand.start()
    await hand.do(lease, Retry(0))
    await shelf.scopes.pause(BOX, "")
    await shelf.promote(hand)
    await _stopped(shelf)
    await _resume_runs(shelf, hand, b"c1", attempt=2)


async def test_resumed_while_a_retry_waits_keeps_waiting(shelf: Bare, hand: Hand) -> None:
    await shelf.put(BOX, "c1")
    lease, _ = await hand.start()
    await hand.do(lease, Retry(60_000))
    await shelf.scopes.pause(BOX, "")
    await shelf.scopes.resume(BOX)
    assert await shelf.activations() == []
    record = await shelf.record(BOX)
    assert record is not None
    assert record.state == "w"


async def test_paused_when_a_delayed_command_comes_due(shelf: Bare, hand: Hand) -> None:
    await shelf.scopes.pause(BOX, "")
    await shelf.put(BOX, "d1", delay_ms=1)
    while await shelf.client.zcard(shelf.shard.due):
        await shelf.promote(hand)
    await _stopped(shelf)
    await _resume_runs(shelf, hand, b"d1")


@pytest.mark.parametrize("verb", ["replay", "discard"])
@pytest.mark.parametrize("paused", [True, False])
async def test_parked_and_paused_are_independent(shelf: Bare, hand: Hand, verb: str, paused: bool) -> None:
    await shelf.put(BOX, "c1", "c2")
    lease, _ = await hand.start()
    if paused:
        await shelf.scopes.pause(BOX, "")
    assert await hand.do(lease, park("c1")) == Released("stop")
    await _stopped(shelf)
    await shelf.put(BOX, "c3")
    await _stopped(shelf)
    (letter,) = [letter async for letter in shelf.dead_letters.all()]
    assert letter.parked
    if not paused:
        assert not await shelf.scopes.resume(BOX)
        await _stopped(shelf)
    assert await shelf.dead_letters.settle(letter, verb, left("c1"))
    assert not await shelf.dead_letters.settle(letter, verb, left("c1"))
    first = b"c1" if verb == "replay" else b"c2"
    if paused:
        await _stopped(shelf)
        await _resume_runs(shelf, hand, first)
    else:
        _, started = await hand.start()
        assert (started.envelope, started.attempt) == (first, 1)
    assert await shelf.client.xlen(shelf.shard.dead) == 0


async def test_resumed_while_parked_stays_parked(shelf: Bare, hand: Hand) -> None:
    await shelf.put(BOX, "c1")
    lease, _ = await hand.start()
    await shelf.scopes.pause(BOX, "")
    await hand.do(lease, park("c1"))
    assert await shelf.scopes.resume(BOX)
    await _stopped(shelf)
    (letter,) = [letter async for letter in shelf.dead_letters.all()]
    await shelf.dead_letters.settle(letter, "discard", left("c1"))
    assert await shelf.nothing_of(BOX)


# What an operator removes.


@pytest.mark.parametrize("state", ["ready", "delivered", "held", "waiting", "paused", "parked"])
async def test_a_purge_leaves_the_running_command_alone_and_nothing_else(shelf: Bare, hand: Hand, state: str) -> None:
    await shelf.put(BOX, "c1", "c2")
    await shelf.put(BOX, "d1", delay_ms=60_000)
    lease = None
    if state != "ready":
        lease = await hand.read_one()
    if state not in ("ready", "delivered"):
        assert lease is not None
        await hand.do(lease, TAKE)
    if state == "waiting":
        await hand.do(lease, Retry(60_000))  # type: ignore[arg-type]
    if state == "parked":
        await hand.do(lease, park("c1"))  # type: ignore[arg-type]
    if state == "paused":
        await shelf.scopes.pause(BOX, "")
        await hand.do(lease, GiveBack(counts=False))  # type: ignore[arg-type]
        assert await hand.do(await hand.read_one(), TAKE) == Released("stop")
    removed = 0
    async for page in shelf.mailboxes.waiting(BOX):
        removed += await shelf.mailboxes.remove(BOX, [(command, left(command.envelope.decode(), inbox="p")) for command in page])
    assert removed == (2 if state == "held" else 3)
    if state == "held":
        assert lease is not None
        assert await hand.do(lease, done("c1")) == Released("idle")
    assert await shelf.nothing_of(BOX)
    assert (await shelf.counters())["depth"] == 0
    assert len(await shelf.client.lrange(shelf.shard.inbox("p"), 0, -1)) == removed  # type: ignore[misc]
    keys = set(await shelf.everything())
    assert not {shelf.shard.due, shelf.shard.delayed, shelf.shard.delayed_counts, shelf.shard.parked} & keys
    assert await shelf.client.xlen(shelf.shard.dead) == 0
    if state == "delivered":
        assert lease is not None
        assert await hand.do(lease, TAKE) == LeaseLost()


@pytest.mark.parametrize("state", ["waiting", "parked"])
async def test_removing_the_head_frees_its_followers(shelf: Bare, hand: Hand, state: str) -> None:
    await shelf.put(BOX, "c1", "c2")
    lease, _ = await hand.start()
    await hand.do(lease, Retry(60_000) if state == "waiting" else park("c1"))
    page = [page async for page in shelf.mailboxes.waiting(BOX)][0]  # noqa: RUF015 - there is no async next()
    assert await shelf.mailboxes.remove(BOX, [(page[0], left("c1"))]) == 1
    _, started = await hand.start()
    assert (started.envelope, started.attempt) == (b"c2", 1)


# The server forgets.


async def test_scripts_are_loaded_again_when_the_server_forgot_them(shelf: Bare, hand: Hand) -> None:
    async def forget() -> None:
        await shelf.client.script_flush()

    await forget()
    assert await shelf.put(BOX, "c1", "c2", "c3") == [Admission.ACCEPTED] * 3
    await forget()
    lease, _ = await hand.start()
    await forget()
    await hand.do(lease, Retry(0))
    await forget()
    await shelf.promote(hand)
    lease = await hand.read_one()
    await forget()
    assert await shelf.scopes.pause(BOX, "")
    await hand.do(lease, TAKE)
    await forget()
    assert await shelf.scopes.resume(BOX)
    lease, _ = await hand.start()
    await forget()
    assert isinstance(await hand.do(lease, bury("c1")), Started)
    (letter,) = [letter async for letter in shelf.dead_letters.all()]
    await forget()
    assert await shelf.dead_letters.settle(letter, "replay", left("c1"))
    waiting = [page async for page in shelf.mailboxes.waiting(BOX)][0]  # noqa: RUF015 - there is no async next()
    await forget()
    assert await shelf.mailboxes.remove(BOX, [(waiting[1], left("c3"))]) == 1
    await forget()
    assert isinstance(await hand.do(lease, done("c2")), Started)
    assert await hand.do(lease, done("c1")) == Released("idle")
    await forget()
    assert await shelf.connections.run(REMOVE_WORKER, [shelf.shard.ready, shelf.shard.workers], [GROUP, hand.owner]) == 1
    assert await shelf.nothing_of(BOX)


async def test_a_worker_that_holds_something_is_not_forgotten(shelf: Bare, hand: Hand) -> None:
    async def forget() -> Any:
        return await shelf.connections.run(REMOVE_WORKER, [shelf.shard.ready, shelf.shard.workers], [GROUP, hand.owner])

    await shelf.client.hset(shelf.shard.workers, hand.owner, "here")  # type: ignore[misc]
    await shelf.put(BOX, "c1")
    lease, _ = await hand.start()
    assert await forget() == 0
    assert await shelf.client.hexists(shelf.shard.workers, hand.owner)  # type: ignore[misc]
    await hand.do(lease, done("c1"))
    assert await forget() == 1
    assert await forget() == 1
    assert not await shelf.client.hexists(shelf.shard.workers, hand.owner)  # type: ignore[misc]


async def test_a_lost_worker_is_told_of_for_an_hour_and_then_forgotten(
    shelf: Bare, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def swept() -> bool:
        await shelf.recovery(shelf.hand("w2"), lease=0.01).upkeep[0].turn()
        return not await shelf.client.hexists(shelf.shard.workers, hand.owner)  # type: ignore[misc]

    await shelf.client.hset(shelf.shard.workers, hand.owner, "here")  # type: ignore[misc]
    await shelf.put(BOX, "c1")
    lease = await hand.read_one()
    await asyncio.sleep(0.2)
    monkeypatch.setattr("command_bus.transport.redis.worker.upkeep._TOLD_OF", 0.1)
    assert not await swept()  # it holds something
    await hand.do(lease, TAKE)
    await hand.do(lease, done("c1"))
    await asyncio.sleep(0.2)
    monkeypatch.undo()
    assert not await swept()
    monkeypatch.setattr("command_bus.transport.redis.worker.upkeep._TOLD_OF", 0.1)
    assert await swept()


async def test_repair_gives_lost_activations_back_and_only_those(shelf: Bare, hand: Hand) -> None:
    for box in ("box:ready", "box:held", "box:waiting", "box:stopped", "box:fine"):
        await shelf.put(box, f"{box}1", f"{box}2")
    await shelf.scopes.pause("box:stopped", "")
    leases = {lease.mailbox: lease for lease in await hand.read()}
    for box in ("box:held", "box:waiting", "box:stopped"):
        await hand.do(leases[box], TAKE)
    await hand.do(leases["box:waiting"], Retry(60_000))
    for box in ("box:ready", "box:held"):
        await shelf.client.xdel(shelf.shard.ready, leases[box].activation)
    names = [name.decode() for name in await shelf.client.hkeys(shelf.shard.active)]  # type: ignore[misc]
    run: Any = shelf.connections.run
    assert (
        await run(REACTIVATE, [shelf.shard.ready, shelf.shard.active, shelf.shard.paused, shelf.shard.parked], [GROUP, *names])
        == 2
    )
    assert (
        await run(REACTIVATE, [shelf.shard.ready, shelf.shard.active, shelf.shard.paused, shelf.shard.parked], [GROUP, *names])
        == 0
    )
    assert sorted(await shelf.activations()) == ["box:fine", "box:held", "box:ready"]
    other = shelf.hand("w2")
    again = {lease.mailbox: lease for lease in await other.read()}
    assert isinstance(await other.do(again["box:ready"], TAKE), Started)
    assert await other.do(again["box:held"], TAKE) == LeaseLost(), "it was started: that is for the recovery to decide"
    assert await hand.do(leases["box:held"], done("box:held1")) == LeaseLost(), "and not by its old holder"


async def test_large_payloads_are_taken_a_few_at_a_time(shelf: Bare, hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer with a hundred megabytes would hold up the server, and not get through a slow link in time."""
    names = [f"box:{number}" for number in range(80)]
    await shelf.producer.enqueue_many([Submission(name, name, b"x" * 200_000, NO_DIGEST, 10, 0) for name in names], 20)
    sizes: list[int] = []
    ask = _Shard._ask

    async def spied(self: _Shard, keys: Any, args: Any) -> Any:
        sizes.append(args[4])  # how many steps it has
        return await ask(self, keys, args)

    monkeypatch.setattr(_Shard, "_ask", spied)
    leases = await hand.read(100)
    started = await asyncio.gather(*(hand.do(lease, TAKE) for lease in leases))
    assert all(isinstance(each, Started) and each.envelope == b"x" * 200_000 for each in started)
    assert sum(sizes) == len(leases) == 80
    assert max(sizes[1:]) <= 5, "once it is known how large they are"
    await asyncio.gather(*(hand.do(lease, done(lease.mailbox)) for lease in leases))
