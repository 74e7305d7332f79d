"""The Lua steps: what each does and leaves; repeated or late, a step changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from command_bus.transport.redis.keys import GROUP
from command_bus.transport.redis.worker.step_batcher import _Shard
from command_bus.transport.steps import Done, GiveBack, Lease, LeaseLost, Released, Retry, Settlement, Started, Step, StepFailed
from command_bus.transport.submissions import NO_DIGEST, Submission
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, bury, done, park
from tests.conformance.steps.step_tables import SETTLING, each

BOX = "box:a"


LETTING_GO: dict[str, Callable[[str], Step]] = {
    "park": park,
    "retry": lambda _: Retry(0),
    "retry uncounted": lambda _: Retry(0, counts=False),
    "back": lambda _: GiveBack(counts=True),
    "back uncounted": lambda _: GiveBack(counts=False),
}


EVERY_VERB: dict[str, Callable[[str], Step]] = {"take": lambda _: TAKE, **SETTLING, **LETTING_GO}


# Taking.


async def test_a_repeated_take_starts_nothing_new(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1", "c2")
    first, again = await worker.again(await worker.read_one(), TAKE)
    assert isinstance(first, Started)
    assert isinstance(again, Started)
    assert (first.fence, first.message, first.attempt, first.envelope) == (again.fence, again.message, again.attempt, b"c1")
    assert first.attempt == 1


async def test_another_lease_of_the_same_worker_takes_no_started_command(harness: TransportHarness, worker: ManualWorker) -> None:
    """A worker that lost its lease, or reads it again from a new group, must not start the command twice."""
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


@pytest.mark.promise("Reply and settlement are one step")
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
    """Delete the mailbox with its record, and use it again."""
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


@pytest.mark.promise("A lost lease changes nothing")
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


@pytest.mark.promise("A lost lease changes nothing")
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


@pytest.mark.promise("The fence grows")
async def test_the_fence_grows_even_if_its_key_is_lost(harness: TransportHarness, worker: ManualWorker) -> None:
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


async def test_large_payloads_are_taken_a_few_at_a_time(
    harness: TransportHarness, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer with a hundred megabytes would hold up the server, and not get through a slow link in time."""
    names = [f"box:{number}" for number in range(80)]
    await harness.producer.enqueue_many([Submission(name, name, b"x" * 200_000, NO_DIGEST, 10, 0) for name in names], 20)
    sizes: list[int] = []
    hear = _Shard._heard

    def spied(self: _Shard, batch: Any, answer: Any) -> None:
        sizes.append(len(batch.items))
        hear(self, batch, answer)

    monkeypatch.setattr(_Shard, "_heard", spied)
    leases = await worker.read(100)
    started = await asyncio.gather(*(worker.do(lease, TAKE) for lease in leases))
    assert all(isinstance(each, Started) and each.envelope == b"x" * 200_000 for each in started)
    assert sum(sizes) == len(leases) == 80
    assert max(sizes[1:]) <= 5, "once it is known how large they are"
    await asyncio.gather(*(worker.do(lease, done(lease.mailbox)) for lease in leases))
