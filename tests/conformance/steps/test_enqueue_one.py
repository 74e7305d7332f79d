"""The step that accepts one command: it leaves what `enqueue.lua` leaves, or asks for that and changes nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from command_bus.errors import CommandBusError
from command_bus.transport.redis.scripts import ENQUEUE, ENQUEUE_ONE
from command_bus.transport.submissions import NO_DIGEST, Admission, Submission
from tests.conformance.harness import ManualWorker, TransportHarness, done

BOX = "box:a"
UNUSUAL = b"?"


def plain(name: str, room: int = 9) -> Submission:
    return Submission(BOX, name, name.encode(), NO_DIGEST, room, marked=False)


def marked(name: str, digest: bytes = b"12345678") -> Submission:
    return Submission(BOX, name, name.encode(), digest, 9)


async def one(harness: TransportHarness, submission: Submission, number: int, again: int = 0) -> Any:
    keys, args = harness.single_request(submission, number)
    return await harness.connections.run(ENQUEUE_ONE, keys, [args[0], again, *args[2:]])


async def many(harness: TransportHarness, submission: Submission, number: int) -> Any:
    keys, args = harness.enqueue_request([submission], number)
    return await harness.connections.run(ENQUEUE, keys, args)


@pytest.mark.parametrize("submission", [plain("c1"), marked("c1")], ids=["plain", "marked"])
async def test_it_leaves_what_the_step_for_many_leaves(
    harness: TransportHarness, worker: ManualWorker, submission: Submission
) -> None:
    for number, (step, box) in enumerate([(one, "box:a"), (many, "box:b")]):
        same = replace(submission, mailbox=box, command_id=box)
        assert await step(harness, same, 2 * number + 1) == b"+"
        assert await step(harness, replace(plain("c2"), mailbox=box), 2 * number + 2) == b"+"
    records = [await harness.record(box) for box in ("box:a", "box:b")]
    assert [record and (record.state, record.attempt, record.holder) for record in records] == [("r", 0, "")] * 2
    assert await harness.activations() == ["box:a", "box:b"]
    assert await harness.counters() == {"depth": 4, "accepted": 4}
    contents = [await harness.client.xrange(harness.shard.mailbox(box)) for box in ("box:a", "box:b")]
    assert [fields for _, fields in contents[0]] == [fields for _, fields in contents[1]]
    marks = [await harness.client.get(harness.shard.mark(box)) for box in ("box:a", "box:b")]
    assert (marks[0] and marks[0][:9]) == (marks[1] and marks[1][:9]) == (b"q12345678" if submission.marked else None)


async def test_asked_again_it_answers_as_the_first_time(harness: TransportHarness) -> None:
    assert await one(harness, plain("c1"), 8) == b"+"
    before = await harness.everything()
    assert await one(harness, plain("c1"), 8, again=1) == b"+"
    assert await harness.everything() == before
    with pytest.raises(CommandBusError, match="STALE"):
        await one(harness, plain("c1"), 7)
    assert await harness.everything() == before


async def test_a_batch_whose_first_answer_is_gone_is_not_applied_again(harness: TransportHarness) -> None:
    keys, _ = harness.single_request(plain("c1"), 8)
    assert await one(harness, plain("c1"), 8) == b"+"
    await harness.client.delete(keys[6])
    before = await harness.everything()
    assert await one(harness, plain("c2"), 9, again=1) == b"gone"
    assert await harness.everything() == before


async def test_it_leaves_known_ids_to_the_other(harness: TransportHarness) -> None:
    assert await one(harness, marked("c1"), 1) == b"+"
    before = await harness.everything()
    assert await one(harness, marked("c1"), 2) == UNUSUAL, "the step for many compares"
    assert await harness.everything() == before
    assert await many(harness, marked("c1"), 2) == b"="
    assert await many(harness, marked("c1", b"12345679"), 3) == b"!"
    assert await many(harness, marked("c1", b"12345679"), 3) == b"!", "as the first time"
    assert await harness.counters() == {"depth": 1, "accepted": 1}
    assert await one(harness, plain("c2"), 4) == b"+"


@pytest.mark.parametrize("unusual", ["paused", "watched", "delayed_counts"])
async def test_it_leaves_pauses_events_and_delays_to_the_other(harness: TransportHarness, unusual: str) -> None:
    await harness.client.hset(getattr(harness.shard, unusual), "x", "1")  # type: ignore[misc]
    before = await harness.everything()
    assert await one(harness, marked("c1"), 1) == UNUSUAL
    assert await harness.everything() == before


async def test_it_leaves_full_mailboxes_and_shards_to_the_other(harness: TransportHarness) -> None:
    assert await one(harness, plain("c1"), 1) == b"+"
    before = await harness.everything()
    assert await one(harness, plain("c2", room=1), 2) == UNUSUAL
    await harness.client.hset(harness.shard.stats, "depth", 1_000_000_000)  # type: ignore[misc]
    assert await one(harness, plain("c2"), 2) == UNUSUAL
    await harness.client.hset(harness.shard.stats, "depth", 1)  # type: ignore[misc]
    assert await harness.everything() == before
    await harness.client.set(harness.shard.mailbox("box:b"), "text")
    assert await one(harness, Submission("box:b", "c9", b"x", b"12345678", 9), 2) == UNUSUAL
    assert await harness.client.get(harness.shard.mark("c9")) is None, "its mark was never written"
    assert await many(harness, plain("c2"), 2) == b"+", "asked with the same number"


@pytest.mark.parametrize("submission", [plain("c9"), marked("c9")], ids=["plain", "marked"])
async def test_a_mailbox_of_another_type_is_told_by_the_other(harness: TransportHarness, submission: Submission) -> None:
    await harness.client.set(harness.shard.mailbox(BOX), "text")
    for _ in range(20):  # not a conflict with a mark of its own that was just taken back
        harness.producer._lines[0]._in_general_until = 0.0
        assert await harness.producer.enqueue(submission, 5) is Admission.WRONG_TYPE
        await asyncio.sleep(0.002)


async def test_a_producer_asks_the_other_step_in_its_place(harness: TransportHarness, worker: ManualWorker) -> None:
    assert await harness.producer.enqueue(plain("c1", room=1), 5) is Admission.ACCEPTED
    assert await harness.producer.enqueue(plain("c2", room=1), 5) is Admission.ENTITY_FULL
    lease, _ = await worker.start()
    await worker.do(lease, done("c1"))
    assert await harness.producer.enqueue(plain("c3", room=1), 5) is Admission.ACCEPTED
