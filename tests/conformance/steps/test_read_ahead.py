"""Commands that are read ahead: started and settled one by one all the same, and what was settled stands in no one's way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from command_bus.transport.records import WaitingEntry
from command_bus.transport.steps import Done, GiveBack, Lease, LeaseLost, Released, Removal, Retry, Started
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, bury, done, left, park

BOX = "box:a"
NAMES = [f"c{number}" for number in range(1, 7)]


async def in_line(harness: TransportHarness) -> list[str]:
    """Return what the mailbox holds, settled commands included."""
    entries: Any = await harness.client.xrange(harness.shard.mailbox(BOX))
    return [fields[b"e"].decode() for _, fields in entries]


async def seen(harness: TransportHarness) -> list[str]:
    """Return what operators see in the mailbox."""
    return [command.envelope.decode() async for page in harness.mailboxes.lined_up(BOX) for command in page]


async def begun(harness: TransportHarness, worker: ManualWorker) -> tuple[Lease, Started]:
    """Start the third command, with others read ahead and two settled before it."""
    await harness.put(BOX, *NAMES)
    lease, started = await worker.start()
    assert lease.ahead, "the others were read ahead"
    for name in NAMES[:2]:
        assert started.envelope == name.encode()
        answer = await worker.do(lease, done(name))
        assert isinstance(answer, Started)
        started = answer
    return lease, started


async def test_commands_are_started_one_by_one_in_order(harness: TransportHarness, worker: ManualWorker) -> None:
    lease, started = await begun(harness, worker)
    answer: Any = None
    fences = []
    for name in NAMES[2:]:
        assert (started.envelope, started.attempt) == (name.encode(), 1)
        record = await harness.record(BOX)
        assert record is not None
        assert (record.state, record.fence, record.message, record.holder) == ("h", started.fence, started.message, lease.holder)
        fences.append(int(started.fence))
        assert (await harness.counters())["depth"] == len(NAMES) - NAMES.index(name)
        answer = await worker.do(lease, done(name))
        if isinstance(answer, Started):
            started = answer
    assert answer == Released("idle")
    assert fences == sorted(set(fences))
    assert await harness.nothing_of(BOX)
    assert await harness.counters() == {"depth": 0, "accepted": 6, "settled": 6}


async def test_operators_see_what_is_not_settled(harness: TransportHarness, worker: ManualWorker) -> None:
    await begun(harness, worker)
    assert await in_line(harness) == NAMES, "settled ones still stand there"
    assert await seen(harness) == NAMES[2:]
    assert await harness.mailboxes.depth(BOX) == 4
    ((entity,),) = [page async for page in harness.mailboxes._entities.pages(0)]
    record = await harness.record(BOX)
    assert record is not None
    assert (entity.depth, entity.oldest_id) == (4, record.message)
    contents = [[each.envelope for each in held] async for page in harness.mailboxes.contents(0) for _, held in page]
    assert contents == [[name.encode() for name in NAMES[2:]]]


Release = Callable[[TransportHarness, ManualWorker, Lease], Awaitable[Any]]


async def pauses(harness: TransportHarness, worker: ManualWorker, lease: Lease) -> Any:
    await harness.scopes.pause(BOX, "")
    return await worker.do(lease, done("c3"))


async def yields(harness: TransportHarness, worker: ManualWorker, lease: Lease) -> Any:
    await harness.put("box:b", "other")
    return await worker.do(lease, done("c3", follow="yield"))


RELEASES: dict[str, tuple[Release, int]] = {
    "give back": (lambda harness, worker, lease: worker.do(lease, GiveBack(counts=False)), 2),
    "retry": (lambda harness, worker, lease: worker.do(lease, Retry(60_000)), 2),
    "park": (lambda harness, worker, lease: worker.do(lease, park("c3")), 2),
    "leave": (lambda harness, worker, lease: worker.do(lease, done("c3", follow="leave")), 3),
    "yield": (yields, 3),
    "dead letter, leave": (lambda harness, worker, lease: worker.do(lease, bury("c3", follow="leave")), 3),
    "pause": (pauses, 3),
}


@pytest.mark.parametrize("release", RELEASES)
async def test_whatever_ends_the_lease_removes_what_is_settled(
    harness: TransportHarness, worker: ManualWorker, release: str
) -> None:
    lease, _ = await begun(harness, worker)
    perform, settled = RELEASES[release]
    assert isinstance(await perform(harness, worker, lease), Released)
    assert await in_line(harness) == NAMES[settled:], "no settled command starts again"


async def test_another_worker_goes_on_behind_what_is_settled(harness: TransportHarness, worker: ManualWorker) -> None:
    lease, _ = await begun(harness, worker)
    other = harness.worker("w2")
    await other.claim(lease.activation)
    await harness.recovery(other).settle(0, [(lease.activation, BOX)])
    again, restarted = await other.start()
    assert (restarted.envelope, restarted.attempt) == (b"c3", 2)
    assert await worker.do(lease, done("c3")) == LeaseLost()
    following = await other.do(again, done("c3"))
    assert isinstance(following, Started)
    assert following.envelope == b"c4"


@pytest.mark.parametrize("step", [done("c3"), bury("c3")], ids=["done", "dead letter"])
async def test_a_repeated_step_starts_nothing_twice(harness: TransportHarness, worker: ManualWorker, step: Any) -> None:
    lease, _ = await begun(harness, worker)
    first, again = await worker.again(lease, step)
    assert isinstance(first, Started)
    assert isinstance(again, Started)
    assert (again.fence, again.message, again.envelope) == (first.fence, first.message, b"c4")
    assert (await harness.counters())["settled"] == 3
    following = await worker.do(lease, done("c4"))
    assert isinstance(following, Started)
    assert following.envelope == b"c5"


@pytest.mark.parametrize(("cancelled", "runs"), [("c4", "c5"), ("c5", "c4")])
async def test_a_command_that_was_read_ahead_can_be_cancelled(
    harness: TransportHarness, worker: ManualWorker, cancelled: str, runs: str
) -> None:
    lease, _ = await begun(harness, worker)
    entries: Any = await harness.client.xrange(harness.shard.mailbox(BOX))
    (entry,) = [entry.decode() for entry, fields in entries if fields[b"e"] == cancelled.encode()]
    assert await harness.mailboxes.remove(BOX, [Removal(WaitingEntry(entry, b""), left(cancelled), left("begun"))]) == 1
    record = await harness.record(BOX)
    assert record is not None
    assert record.state == "H"
    ran = []
    answer = await worker.do(lease, done("c3"))
    while isinstance(answer, Started):
        assert answer.envelope is not None
        ran.append(answer.envelope.decode())
        answer = await worker.do(lease, done(ran[-1]))
    assert ran == [name for name in NAMES[3:] if name != cancelled]
    assert ran[0] == runs
    assert await harness.nothing_of(BOX)
    assert (await harness.counters())["depth"] == 0


@pytest.mark.parametrize("index", [0, 1, 2])
async def test_what_is_settled_or_runs_cannot_be_cancelled(harness: TransportHarness, worker: ManualWorker, index: int) -> None:
    await begun(harness, worker)
    entries: Any = await harness.client.xrange(harness.shard.mailbox(BOX))
    waiting = WaitingEntry(entries[index][0].decode(), b"")
    assert await harness.mailboxes.remove(BOX, [Removal(waiting, left(NAMES[index]), left("begun"))]) == 0
    record = await harness.record(BOX)
    assert record is not None
    assert record.state == "h"


async def test_all_behind_a_running_command_can_be_purged(harness: TransportHarness, worker: ManualWorker) -> None:
    lease, _ = await begun(harness, worker)
    entries: Any = await harness.client.xrange(harness.shard.mailbox(BOX))
    removed = [
        Removal(WaitingEntry(entry.decode(), b""), left(fields[b"e"].decode()), left("begun")) for entry, fields in entries
    ]
    assert await harness.mailboxes.remove(BOX, removed) == 3
    assert await worker.do(lease, done("c3")) == Released("idle")
    assert await harness.nothing_of(BOX)
    assert (await harness.counters())["depth"] == 0


async def test_an_entry_with_further_fields_is_not_read_ahead(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1", "c2")
    await harness.client.xadd(harness.shard.mailbox(BOX), {"e": "c3", "x": "y"})
    await harness.put(BOX, "c4")
    lease, started = await worker.start()
    envelopes = []
    answer: Any = started
    while isinstance(answer, Started):
        envelopes.append((answer.envelope, list(answer.raw)))
        answer = await worker.do(lease, done((answer.envelope or b"").decode()))
    assert envelopes == [(b"c1", []), (b"c2", []), (b"c3", [b"e", b"c3", b"x", b"y"]), (b"c4", [])]


async def test_large_envelopes_are_not_read_ahead(harness: TransportHarness, worker: ManualWorker) -> None:
    for number in range(3):
        await harness.put("box:big", *[f"{number}-{each}".ljust(100_000, "x") for each in range(4)])
        lease, _ = await worker.start()
        ahead = lease.ahead or []
        answer: Any = await worker.do(lease, Done(left("x")))
        while isinstance(answer, Started):
            answer = await worker.do(lease, Done(left("x")))
        assert len(ahead) <= (3 if number == 0 else 0), "once it is known how large they are"


async def test_mailboxes_that_hold_few_commands_are_not_read_ahead(harness: TransportHarness) -> None:
    worker = harness.worker()
    worker.batches._reads_ahead = lambda mailbox: False
    await harness.put(BOX, *NAMES, max_depth=len(NAMES))
    lease, _ = await worker.start()
    assert isinstance(await worker.do(lease, done("c1")), Started)
    assert await in_line(harness) == NAMES[1:]
    assert [admission.value for admission in await harness.put(BOX, "c7", max_depth=len(NAMES))] == ["+"], "there is room at once"


async def test_a_type_that_is_watched_from_now_on_has_all_its_events(harness: TransportHarness, worker: ManualWorker) -> None:
    """An event has the envelope, which the server must read: what was read ahead is not used."""
    lease, _ = await begun(harness, worker)
    await harness.client.hset(harness.shard.watched, "box", "100")  # type: ignore[misc]
    answer: Any = None
    for name in NAMES[2:]:
        answer = await worker.do(lease, done(name))
    assert answer == Released("idle")
    events: Any = await harness.client.xrange(harness.shard.events)
    assert len(events) == 4 + 3, "four ends and three starts"
    assert await harness.nothing_of(BOX)


@pytest.mark.parametrize("stale_first", [True, False], ids=["the stale step first", "the stale step last"])
async def test_two_steps_of_a_mailbox_in_one_request(harness: TransportHarness, worker: ManualWorker, stale_first: bool) -> None:
    """A worker that was paused beyond its lease sends its old step along with the take of the new activation."""
    await harness.put(BOX, "c1")
    old, _ = await worker.start()
    await harness.put(BOX, "c2", "c3", "c4")
    await worker.claim(old.activation)
    await harness.recovery(worker).settle(0, [(old.activation, BOX)])
    new = await worker.read_one()
    steps = [(old, done("c1")), (new, TAKE)]
    answers = await asyncio.gather(*(worker.do(*step) for step in (steps if stale_first else steps[::-1])))
    assert LeaseLost() in answers
    (answer,) = [each for each in answers if isinstance(each, Started)]
    ran = []
    while isinstance(answer, Started):
        ran.append((answer.envelope or b"").decode())
        answer = await worker.do(new, done(ran[-1]))  # type: ignore[assignment]
    assert ran == ["c1", "c2", "c3", "c4"]


async def test_a_repeated_take_and_a_settling_in_one_request(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    await harness.put(BOX, "c2", "c3", "c4")
    again = worker.lease(BOX, lease.activation)
    answers = await asyncio.gather(worker.do(again, TAKE), worker.do(lease, done("c1")))
    assert answers[0] == LeaseLost()
    answer, ran = answers[1], list[str]()
    while isinstance(answer, Started):
        ran.append((answer.envelope or b"").decode())
        answer = await worker.do(lease, done(ran[-1]))
    assert ran == ["c2", "c3", "c4"]


async def test_shallow_mailboxes_are_read_one_by_one(harness: TransportHarness, worker: ManualWorker) -> None:
    line = worker.batches
    deep, shallow = worker.lease("deep:a", "1-0"), worker.lease("shallow:a", "2-0")
    line._reads_ahead = lambda mailbox: mailbox.startswith("deep")
    assert line._to_read([shallow, shallow]) == 1
    assert line._to_read([shallow, deep]) > 1
    assert line._to_read([]) == 1
    line._ahead.observe(100, 10)
    for _ in range(20):
        line._ahead.observe(100, 10)
    assert (line._to_read([deep] * 10), line._to_read([deep] * 256)) == (12, 4)
