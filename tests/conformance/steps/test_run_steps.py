"""Single steps of a run: it is extended over what stands there, and settled as far as it got, also over lost replies and lost writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from command_bus.transport.steps import (
    Extend,
    Extended,
    GiveBack,
    Lease,
    LeaseLost,
    Park,
    PutOff,
    Released,
    Retry,
    RunStep,
    Started,
)
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, bury, done, park

pytestmark = pytest.mark.server
BOX = "box:a"
IDS = ("c1", "c2", "c3", "c4", "c5")


class Run:
    """A run that was extended: its worker, lease, and commands as they were started."""

    def __init__(self, worker: ManualWorker, lease: Lease, started: list[Started]) -> None:
        self.worker = worker
        self.lease = lease
        self.started = started
        self.extended = Extend(started[-1].message, len(started))

    def step(self, number: int, step: Any, state: bytes | None = None) -> RunStep:
        """Return the step of one command, behind those before it, which are done."""
        before = [(each, done(f"c{at}")) for at, each in enumerate(self.started[:number], 1)]
        return RunStep(self.extended, before, self.started[number], step, state)

    async def do(self, number: int, step: Any, state: bytes | None = None) -> Any:
        return await self.worker.do(self.lease, self.step(number, step, state))


async def extended(harness: TransportHarness, count: int = 4, ids: tuple[str, ...] = IDS, *, worker: str = "w1") -> Run:
    if ids:
        await harness.put(BOX, *ids)
    by = harness.worker(worker)
    lease, head = await by.start()
    entries: Any = await harness.client.xrange(harness.shard.mailbox(BOX), min=head.message)
    run = Run(by, lease, [replace(head, message=entry.decode()) for entry, _ in entries[:count]])
    assert await by.do(lease, run.extended) == Extended()
    lease.ahead, lease.record = None, ""
    return run


async def test_all_of_it_is_settled_by_one_step_and_the_next_starts(harness: TransportHarness) -> None:
    run = await extended(harness)
    answer = await run.do(3, done("c4"), b"state")
    assert isinstance(answer, Started)
    assert answer.envelope == b"c5"
    assert (answer.attempt, answer.replayed) == (1, False)
    assert await harness.waiting(BOX) == [b"c5"]
    assert (await harness.counters())["settled"] == 4
    assert await harness.client.hget(harness.shard.states, BOX) == b"state"  # type: ignore[misc]
    assert await harness.client.get(harness.shard.mark("c2")) is not None
    record = await harness.record(BOX)
    assert record is not None
    assert record.parts == ()
    assert await run.worker.do(run.lease, done("c5")) == Released("idle")
    assert await harness.nothing_of(BOX)


async def test_a_repeated_step_changes_nothing(harness: TransportHarness) -> None:
    run = await extended(harness)
    first, second = await run.worker.again(run.lease, run.extended)
    assert (first, second) == (Extended(), Extended())
    run.lease.ahead = None
    first, second = await run.worker.again(run.lease, run.step(3, done("c4"), b"state"))
    assert isinstance(first, Started)
    assert isinstance(second, Started)
    assert first.message == second.message
    assert (await harness.counters())["settled"] == 4


@pytest.mark.parametrize("number", [0, 2, 3])
async def test_who_fails_is_retried_with_an_attempt_of_its_own(harness: TransportHarness, number: int) -> None:
    await harness.put(BOX, *IDS)
    first = harness.worker()
    lease, _ = await first.start()
    await first.do(lease, Retry(0))  # so that the head has an attempt
    await harness.promote(first)
    run = await extended(harness, ids=())
    step = Retry(0, error="broken") if number == 0 else run.step(number, Retry(0, error="broken"))
    assert await run.worker.do(run.lease, step) == Released("wait")
    record = await harness.record(BOX)
    assert record is not None
    assert (record.state, record.attempt) == ("w", 2 if number == 0 else 1)
    assert await harness.waiting(BOX) == [each.encode() for each in IDS[number:]]
    await harness.promote(run.worker)
    _, again = await harness.worker("w2").start()
    assert (again.message, again.attempt) == (run.started[number].message, record.attempt + 1)


async def test_what_was_behind_it_may_have_run_until_it_is_past(harness: TransportHarness) -> None:
    run = await extended(harness)
    answer = await run.do(1, bury("c2"))
    assert isinstance(answer, Started)
    assert (answer.message, answer.attempt) == (run.started[2].message, 1)
    assert answer.replayed, "its deadline counts no more"
    assert answer.run.begun == run.started[3].message
    after = await run.worker.do(run.lease, done("c3"))
    assert isinstance(after, Started)
    assert after.replayed
    last = await run.worker.do(run.lease, done("c4"))
    assert isinstance(last, Started)
    assert not last.replayed, "it was behind the run"
    assert last.run.begun == ""


@pytest.mark.parametrize("number", [0, 2])
async def test_a_run_that_is_given_back_counts_for_nobody_and_the_next_is_smaller(harness: TransportHarness, number: int) -> None:
    run = await extended(harness)
    step = GiveBack(counts=True) if number == 0 else run.step(number, GiveBack(counts=True))
    assert await run.worker.do(run.lease, step) == Released("yield")
    _, again = await harness.worker("w2").start()
    assert (again.message, again.attempt) == (run.started[number].message, 1)
    assert again.run.cap == 1, "its own worker knows that it hangs"
    assert again.replayed
    assert "retried" not in await harness.counters()


async def test_a_lost_run_is_halved_and_each_that_settles_something_doubles_the_next(harness: TransportHarness) -> None:
    run = await extended(harness)
    await harness.recovery(harness.worker("w9")).settle(0, [(run.lease.activation, BOX)])
    worker = harness.worker("w2")
    lease, again = await worker.start()
    assert (again.attempt, again.run.cap, again.run.begun) == (1, 2, run.started[3].message)
    answer = await worker.do(lease, done("c1"))
    assert isinstance(answer, Started)
    assert answer.run.cap == 4


async def test_a_run_that_the_record_does_not_have_settles_nothing(harness: TransportHarness) -> None:
    run = await extended(harness)
    before: Any = await harness.client.hget(harness.shard.active, BOX)  # type: ignore[misc]
    lost = before[: before.index(b"|run=")]  # a failover has lost the step that extended it
    await harness.client.hset(harness.shard.active, BOX, lost)  # type: ignore[misc]
    assert await run.do(3, done("c4"), b"state") == LeaseLost()
    assert await harness.waiting(BOX) == [each.encode() for each in IDS]
    assert "settled" not in await harness.counters()


async def test_a_run_with_something_removed_in_it_is_not_extended(harness: TransportHarness) -> None:
    await harness.put(BOX, *IDS)
    worker = harness.worker()
    lease, head = await worker.start()
    entries: Any = await harness.client.xrange(harness.shard.mailbox(BOX))
    record: Any = await harness.client.hget(harness.shard.active, BOX)  # type: ignore[misc]
    await harness.client.hset(harness.shard.active, BOX, b"H" + record[1:])  # type: ignore[misc]  # as `remove.lua` writes it
    answer = await worker.do(lease, Extend(entries[3][0].decode(), 4))
    assert isinstance(answer, Started)
    assert answer.message == head.message
    record = await harness.record(BOX)
    assert record is not None
    assert record.parts == ()


@pytest.mark.parametrize("step", [park("c3"), PutOff(60_000), bury("c3")])
async def test_every_step_settles_what_was_before_it(harness: TransportHarness, step: Any) -> None:
    run = await extended(harness)
    await run.do(2, step, b"state")
    rest = IDS[3:] if not isinstance(step, Park | PutOff) else IDS[2:]
    assert await harness.waiting(BOX) == [each.encode() for each in rest]
    counters = await harness.counters()
    assert counters["settled"] == len(IDS) - len(rest)
    assert counters["depth"] == len(rest)
    assert await harness.client.hget(harness.shard.states, BOX) == b"state"  # type: ignore[misc]


async def test_dead_letters_of_a_run_stand_in_their_order(harness: TransportHarness) -> None:
    run = await extended(harness)
    before = [(each, bury(f"c{at}")) for at, each in enumerate(run.started[:2], 1)]
    await run.worker.do(run.lease, RunStep(run.extended, before, run.started[2], bury("c3")))
    letters: Any = await harness.client.xrange(harness.shard.dead)
    assert [fields[b"e"] for _, fields in letters] == [b"c1", b"c2", b"c3"]
    assert (await harness.counters())["dead"] == 3


async def test_a_worker_that_has_lost_its_lease_settles_nothing(harness: TransportHarness) -> None:
    run = await extended(harness)
    await harness.recovery(harness.worker("w9")).settle(0, [(run.lease.activation, BOX)])
    assert await run.do(3, done("c4")) == LeaseLost()
    other = harness.worker("w2")
    lease, _ = await other.start()
    assert lease.mailbox == BOX
    assert await run.worker.do(run.lease, TAKE) == LeaseLost()
