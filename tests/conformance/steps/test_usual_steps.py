"""Usual steps go a short way, which compares the whole record: whatever else is stored, it is as if they went the long way."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from command_bus.transport.redis.keys import GROUP
from command_bus.transport.redis.mailbox_record import LONE_HELD
from command_bus.transport.redis.scripts import FETCH
from command_bus.transport.redis.worker.consumer import Delivery, parse_fetched
from command_bus.transport.steps import (
    NO_SETTLEMENT,
    Done,
    GiveBack,
    Lease,
    LeaseLost,
    Released,
    Retry,
    Settlement,
    Started,
)
from command_bus.transport.submissions import NO_DIGEST, Submission
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, left

BOX = "box:a"
NAMES = ["c1", "c2", "c3", "c4"]
LONG_AGO = -math.inf


LEFT = {
    "nothing": NO_SETTLEMENT,
    "a mark": left("c1"),
    "a reply": Settlement("c1", b"", 0, "p1", b"reply"),
    "both": left("c1", inbox="p1"),
}
leaves = pytest.mark.parametrize("what_is_left", LEFT.values(), ids=LEFT)


def settled(what_is_left: Settlement = NO_SETTLEMENT) -> Done:
    return Done(what_is_left)


def goes_short(worker: ManualWorker, lease: Lease, step: Done) -> bool:
    """Return whether the request of this step says what its record becomes."""
    batch = worker.batches._batch([(lease, step, None)])
    return batch.args[4] == 0


def send_all_long(worker: ManualWorker) -> None:
    worker.batches._usual_from = math.inf


def shape(value: Any) -> Any:
    """Return a record or an answer without ids and times."""
    match value:
        case Started(envelope=envelope, attempt=attempt, is_first=is_first, confirmed=confirmed):
            return "started", envelope, attempt, is_first, confirmed
        case _:
            return value


async def put(harness: TransportHarness, box: str, *names: str) -> None:
    """Send commands with generated ids: nothing is remembered of them."""
    await harness.producer.enqueue_many(
        [Submission(box, f"{box} {name}", name.encode(), NO_DIGEST, 1000, marked=False) for name in names], 5
    )


async def begun(harness: TransportHarness, worker: ManualWorker, box: str, names: Sequence[str] = NAMES) -> Lease:
    await put(harness, box, *names)
    lease = await worker.read_one()
    started = await worker.do(lease, TAKE)
    assert isinstance(started, Started)
    return lease


async def delivered(harness: TransportHarness, worker: ManualWorker, *boxes: str) -> list[Lease]:
    """Return the leases of lone commands that a fetch has started."""
    for box in boxes:
        await put(harness, box, "c1")
    shard = harness.shard
    names = [shard.ready, shard.active, shard.lone, shard.fence, shard.paused, shard.watched, shard.rules]
    fetched = parse_fetched(await harness.connections.run(FETCH, names, [GROUP, worker.owner, 10, 1, 0]), worker.owner, 1)
    return [_lease(worker, each) for each in fetched]


def _lease(worker: ManualWorker, delivery: Delivery) -> Lease:
    lease = worker.lease(str(delivery.mailbox), delivery.activation)
    lease.holder, lease.attempt_id, lease.record = delivery.holder, delivery.attempt_id, delivery.record
    return lease


@leaves
async def test_a_mailbox_is_drained_as_on_the_long_way(harness: TransportHarness, what_is_left: Settlement) -> None:
    """The same commands of two entities, one after the other on both ways: equal answers, records, counters, marks and replies."""
    found, marked = [], harness.shard.mark("c1")
    for box, owner in ((BOX, "w1"), ("box:b", "w2")):
        worker = harness.worker(owner)
        lease = await begun(harness, worker, box)
        seen = []
        if owner == "w2":
            send_all_long(worker)
        before = await harness.counters()
        for _ in NAMES:
            assert goes_short(worker, lease, settled(what_is_left)) == (owner == "w1" and bool(lease.ahead))
            answer = await worker.do(lease, settled(what_is_left))
            record, counters = await harness.record(box), await harness.counters()
            if isinstance(answer, Started):
                assert record is not None
                assert (record.fence, record.message, record.holder) == (answer.fence, answer.message, lease.holder)
                assert (record.attempt, record.first_ms) == (answer.attempt, answer.now_ms)
                assert lease.attempt_id == f"{answer.fence}|{answer.message}"
            shown = record and (record.state, record.attempt, record.parts)
            seen.append((shape(answer), shown, counters["depth"], counters["settled"] - before.get("settled", 0)))
            seen.append((await harness.client.get(marked), await harness.client.ttl(marked) > 0))
        assert await harness.nothing_of(box)
        replies: Any = await harness.client.lrange(harness.shard.inbox("p1"), 0, -1)  # type: ignore[misc]
        assert bool(replies) == (await harness.client.ttl(harness.shard.inbox("p1")) > 0), "what nobody reads ends"
        found.append((seen, replies))
        await harness.client.delete(marked, harness.shard.inbox("p1"))
    assert found[0] == found[1]
    assert len(found[0][1]) == len(NAMES) * bool(what_is_left.reply)


async def test_many_entities_in_one_request(harness: TransportHarness, worker: ManualWorker) -> None:
    boxes = [f"box:{number}" for number in range(40)]
    for box in boxes:
        await put(harness, box, *NAMES)
    leases = await worker.read()
    await asyncio.gather(*(worker.do(lease, TAKE) for lease in leases))
    fences: list[int] = []
    for name in NAMES[1:]:
        answers = await asyncio.gather(*(worker.do(lease, settled()) for lease in leases))
        for answer in answers:
            assert isinstance(answer, Started)
            assert answer.envelope == name.encode()
            fences.append(int(answer.fence))
    assert fences == sorted(set(fences)), "each start has a number of its own, and they grow"
    assert int(await harness.client.get(harness.shard.fence) or 0) == fences[-1]
    assert set(await asyncio.gather(*(worker.do(lease, settled()) for lease in leases))) == {Released("idle")}
    assert await harness.counters() == {"depth": 0, "accepted": 160, "settled": 160}


async def test_lone_commands_end_together(harness: TransportHarness, worker: ManualWorker) -> None:
    boxes = [f"box:{number}" for number in range(6)]
    leases = await delivered(harness, worker, *boxes)
    assert all(goes_short(worker, lease, settled()) for lease in leases)
    assert set(await asyncio.gather(*(worker.do(lease, settled()) for lease in leases))) == {Released("idle")}
    assert await harness.nothing_of(*boxes)
    assert await harness.counters() == {"depth": 0, "accepted": 6, "settled": 6}
    pending: Any = await harness.client.xpending(harness.shard.ready, GROUP)
    assert pending["pending"] == 0


async def test_a_second_command_keeps_a_lone_one_from_ending_its_entity(harness: TransportHarness, worker: ManualWorker) -> None:
    (lease,) = await delivered(harness, worker, BOX)
    await put(harness, BOX, "c2")
    answer = await worker.do(lease, settled())
    assert isinstance(answer, Started)
    assert answer.envelope == b"c2"


async def test_odd_bytes_in_one_record_spoil_no_other_delivery(harness: TransportHarness) -> None:
    """The id of a lone command that was in the line is in its record: it may be any bytes."""
    odd = b"1795\xff-0"
    now = [b"1795", b"1795-0", b"box:a", b"77|" + odd + b"|1|1795", b"c1", b"1795-1", b"box:b", b"78|1795-1|1|1795", b"c2"]
    first, second = parse_fetched(now, "w1", 7)
    assert first.attempt_id == "77|1795\\xff-0"
    assert second.record == "O|1795-1|78|1795-1|1|1795|w1#f8"


def changed(record: bytes, at: int) -> bytes:
    """Return a record that differs in one byte, a number where there was one."""
    other = b"8" if record[at : at + 1] == b"7" else b"7" if record[at : at + 1].isdigit() else b"x"
    return record[:at] + other + record[at + 1 :]


@pytest.mark.parametrize("is_lone", [False, True], ids=["held", "lone"])
@pytest.mark.parametrize("what_is_left", [LEFT["nothing"], LEFT["both"]], ids=["nothing left", "both left"])
async def test_a_record_that_differs_in_one_byte_goes_the_long_way(
    harness: TransportHarness, worker: ManualWorker, what_is_left: Settlement, *, is_lone: bool
) -> None:
    """The answer and what is stored then are those of a worker that knows no short way."""
    active, long = harness.shard.active, harness.worker("w1")
    send_all_long(long)
    if is_lone:
        (lease,) = await delivered(harness, worker, BOX)
    else:
        lease = await begun(harness, worker, BOX)
    record, ahead = lease.record.encode(), lease.ahead and [*lease.ahead]
    before = await harness.everything()
    assert before[active][BOX.encode()] == record
    for at in [*range(len(record)), None]:
        ends = []
        for each in (worker, long):
            lease.ahead, lease.record = ahead and [*ahead], record.decode()
            lease.attempt_id = "|".join(lease.record.split("|")[2:4])
            await restore(harness, before)
            await harness.client.hset(active, BOX, record + b"|z=1" if at is None else changed(record, at))  # type: ignore[misc]
            answer = await each.do(lease, settled(what_is_left))
            ends.append((shape(answer), without_times(await harness.everything())))
            each.batches._usual_from = math.inf if each is long else LONG_AGO
        assert ends[0] == ends[1], f"byte {at} of {record!r}"


async def restore(harness: TransportHarness, before: dict[str, Any]) -> None:
    """Write all hashes and the ready stream as they were; a mailbox is left, because nothing is trimmed here without an end."""
    await harness.client.delete(harness.shard.mark("c1"), harness.shard.inbox("p1"))
    for key in (harness.shard.active, harness.shard.lone, harness.shard.stats):
        await harness.client.delete(key)
        if before.get(key):
            await harness.client.hset(key, mapping=before[key])  # type: ignore[misc]
    entries = {entry for entry, _ in await harness.client.xrange(harness.shard.ready)}
    for entry, fields in before[harness.shard.ready]:
        if entry not in entries:
            await harness.client.delete(harness.shard.ready)
            await harness.client.xgroup_create(harness.shard.ready, GROUP, "0", mkstream=True)
            await harness.client.xadd(harness.shard.ready, fields, id=entry)
            await harness.client.xreadgroup(GROUP, "w1", {harness.shard.ready: ">"})


def without_times(found: dict[str, Any]) -> dict[str, Any]:
    """Return what is stored, without the fence and the times in records."""
    kept = {key: value for key, value in found.items() if not key.endswith("fence")}
    for key, value in kept.items():
        if key.endswith("active"):
            kept[key] = {
                name: [part for at, part in enumerate(record.split(b"|")) if at not in {1, 2, 5}]
                for name, record in value.items()
            }
        elif key.endswith("ready"):
            kept[key] = [fields for _, fields in value]
    return kept | {"pending": len(found["pending"])}


async def test_another_step_of_the_same_attempt_in_one_request_wins(harness: TransportHarness, worker: ManualWorker) -> None:
    """Recovery settles without a holder what its own worker has forgotten: both may stand in one request."""
    lease = await begun(harness, worker, BOX)
    other = Lease(0, BOX, lease.activation, lease.deadline, "", lease.attempt_id)
    answers = await asyncio.gather(worker.do(lease, settled()), worker.do(other, Retry(60_000)))
    assert answers == [LeaseLost(), Released("wait")]
    assert "settled" not in await harness.counters()
    assert await harness.waiting(BOX) == [name.encode() for name in NAMES]


Use = Callable[[TransportHarness, ManualWorker], Awaitable[Any]]


async def pauses_another(harness: TransportHarness, _: ManualWorker) -> None:
    await harness.scopes.pause("box:other", "")


async def pauses_it(harness: TransportHarness, _: ManualWorker) -> None:
    await harness.scopes.pause(BOX, "")


async def watches(harness: TransportHarness, _: ManualWorker) -> None:
    await harness.client.hset(harness.shard.watched, "box", 100)  # type: ignore[misc]


IN_USE: dict[str, tuple[Use, bool]] = {
    "another entity is paused": (pauses_another, True),
    "it is paused": (pauses_it, False),
    "its type is watched": (watches, True),
}


@pytest.mark.parametrize("what", IN_USE)
async def test_where_more_is_in_use_all_steps_go_the_long_way(harness: TransportHarness, worker: ManualWorker, what: str) -> None:
    lease = await begun(harness, worker, BOX)
    use, goes_on = IN_USE[what]
    await use(harness, worker)
    answer = await worker.do(lease, settled())
    assert isinstance(answer, Started) == goes_on
    assert (await harness.counters())["settled"] == 1
    if goes_on:
        assert not goes_short(worker, lease, settled()), "it is not tried again with each request"
        events: Any = await harness.client.xrange(harness.shard.events)
        assert bool(events) == (what == "its type is watched")
    else:
        assert answer == Released("stop")


async def test_a_step_that_was_left_leaves_again_also_if_nobody_waits(harness: TransportHarness, worker: ManualWorker) -> None:
    lease = await begun(harness, worker, BOX)
    await harness.mailboxes.remove(BOX, [])
    record = lease.record
    await harness.client.hset(harness.shard.active, BOX, "H" + record[1:])  # type: ignore[misc]
    waits = asyncio.ensure_future(worker.do(lease, settled()))
    await asyncio.sleep(0)
    waits.cancel()
    await asyncio.wait([waits])
    await worker.steps.close(5)
    assert (await harness.counters())["settled"] == 1
    found = await harness.record(BOX)
    assert found is not None
    assert (found.state, found.attempt) == ("r", 0), "the next command was started, and given back uncounted"


async def test_the_next_command_of_a_cancelled_task_is_given_back(harness: TransportHarness, worker: ManualWorker) -> None:
    lease = await begun(harness, worker, BOX)
    waits = asyncio.ensure_future(worker.do(lease, settled()))
    await asyncio.sleep(0)
    waits.cancel()
    await asyncio.wait([waits])
    await worker.steps.close(5)
    _, started = await harness.worker("w2").start()
    assert (started.envelope, started.attempt) == (b"c2", 1)


async def test_a_lost_answer(harness: TransportHarness, worker: ManualWorker) -> None:
    lease = await begun(harness, worker, BOX)
    first, again = await worker.again(lease, settled(LEFT["both"]))
    assert await harness.client.llen(harness.shard.inbox("p1")) == 1, "one reply"  # type: ignore[misc]
    assert isinstance(first, Started)
    assert isinstance(again, Started)
    assert (again.fence, again.message, again.envelope) == (first.fence, first.message, b"c2")
    assert (await harness.counters())["settled"] == 1


async def test_a_lost_answer_of_a_lone_command(harness: TransportHarness, worker: ManualWorker) -> None:
    (lease,) = await delivered(harness, worker, BOX)
    assert await worker.again(lease, settled()) == (Released("idle"), LeaseLost())
    assert await harness.counters() == {"depth": 0, "accepted": 1, "settled": 1}


async def test_a_worker_may_be_called_as_formats_are(harness: TransportHarness) -> None:
    worker = harness.worker("%s%d%%")
    lease = await begun(harness, worker, BOX)
    assert goes_short(worker, lease, settled())
    for name in NAMES[1:]:
        answer = await worker.do(lease, settled())
        assert isinstance(answer, Started)
        assert answer.envelope == name.encode()
        record = await harness.record(BOX)
        assert record is not None
        assert record.holder == lease.holder


@leaves
async def test_who_yields_goes_the_short_way_as_long_as_nobody_waits(
    harness: TransportHarness, worker: ManualWorker, what_is_left: Settlement
) -> None:
    lease = await begun(harness, worker, BOX)
    yields = Done(what_is_left, "yield")
    assert goes_short(worker, lease, yields)
    answer = await worker.do(lease, yields)
    assert isinstance(answer, Started)
    assert answer.envelope == b"c2"
    await put(harness, "box:other", "c1")
    assert goes_short(worker, lease, yields)
    assert await worker.do(lease, yields) == Released("yield")
    assert await harness.waiting(BOX) == [b"c3", b"c4"]
    assert (await harness.counters())["settled"] == 2
    assert worker.batches._usual_from == 0, "that one was left says nothing of others"
    assert [each.mailbox for each in await harness.worker("w2").read()] == ["box:other", BOX]


async def test_the_marks_and_replies_of_several_in_one_request(harness: TransportHarness, worker: ManualWorker) -> None:
    """Each is written for its own command, also beside those that leave nothing and those that are left for the long way."""
    boxes = [f"box:{number}" for number in range(8)]
    leases = await delivered(harness, worker, *boxes)
    await harness.client.hset(harness.shard.active, boxes[3], leases[3].record + "|z=1")  # type: ignore[misc]
    ways = [LEFT["nothing"], left("n1"), Settlement("n2", b"", 0, "p2", b"two"), left("n3", inbox="p3"), left("n4", inbox="p4")]
    steps = [settled(way) for way in [*ways, LEFT["nothing"], left("n6", inbox="p4"), left("n7")]]
    answers = await asyncio.gather(*(worker.do(lease, step) for lease, step in zip(leases, steps, strict=True)))
    assert set(answers) == {Released("idle")}
    marks = [await harness.client.get(harness.shard.mark(f"n{number}")) for number in range(8)]
    assert marks == [step.left.mark or None for step in steps]
    read = [await harness.client.lrange(harness.shard.inbox(f"p{number}"), 0, -1) for number in (2, 3, 4)]  # type: ignore[misc]
    assert read == [[b"two"], [b"reply of n3"], [b"reply of n6", b"reply of n4"]]


async def test_what_is_not_usual_goes_the_long_way(harness: TransportHarness, worker: ManualWorker) -> None:
    lease = await begun(harness, worker, BOX)
    for step in (Done(NO_SETTLEMENT, "leave"), Done(NO_SETTLEMENT, status="rejected")):
        assert not goes_short(worker, lease, step)
    await worker.do(lease, GiveBack(counts=True))
    again, started = await worker.start()
    assert started.attempt == 2
    assert not goes_short(worker, again, settled()), "its record has a part that says that it was started before"
    assert isinstance(await worker.do(again, settled()), Started)
    assert goes_short(worker, again, settled())
    (lone,) = await delivered(harness, worker, "box:lone")
    assert lone.record[0] == LONE_HELD
    assert goes_short(worker, lone, Done(NO_SETTLEMENT, "leave"))
