"""The enqueue step: a batch asked again, late or refused is answered as the first time and adds nothing."""

from __future__ import annotations

from typing import Any

import pytest

from command_bus.clock import mono
from command_bus.errors import CommandBusError, TransportUnavailable
from command_bus.transport.redis.scripts import ENQUEUE
from command_bus.transport.steps import Released
from command_bus.transport.submissions import NO_DIGEST, Admission, Submission
from tests.conformance.harness import ManualWorker, TransportHarness, done

BOX = "box:a"


async def test_the_first_command_makes_a_mailbox_and_one_activation(harness: TransportHarness, worker: ManualWorker) -> None:
    assert await harness.put(BOX, "c1", "c2") == [Admission.ACCEPTED] * 2
    assert await harness.put(BOX, "c3") == [Admission.ACCEPTED]
    assert await harness.activations() == [BOX]
    record = await harness.record(BOX)
    assert record is not None
    assert (record.state, record.attempt, record.holder) == ("r", 0, "")
    assert await harness.counters() == {"depth": 3, "accepted": 3}


@pytest.mark.promise("A repeated request adds nothing")
async def test_the_same_batch_asked_again_is_answered_as_the_first_time(harness: TransportHarness, worker: ManualWorker) -> None:
    submissions = [Submission(BOX, name, b"x", NO_DIGEST, 2, delay) for name, delay in (("c1", 0), ("c2", 10_000), ("c3", 0))]
    submissions.append(Submission("box:b", "c1", b"x", NO_DIGEST, 5))
    keys, args = harness.enqueue_request(submissions, 8)
    first = await harness.connections.run(ENQUEUE, keys, args)
    before = await harness.everything()
    assert first == b"++e="
    assert await harness.connections.run(ENQUEUE, keys, args) == b"++e="
    assert await harness.everything() == before
    _, later = harness.enqueue_request(submissions, 9)
    assert await harness.connections.run(ENQUEUE, keys, later) == b"==e="
    assert {**await harness.everything(), keys[7]: None} == {**before, keys[7]: None}


async def test_a_refused_batch_that_arrives_again_late_is_refused(harness: TransportHarness, worker: ManualWorker) -> None:
    """Its caller got the refusal and may have given up, so it stays refused even if there is room by then."""
    await harness.put(BOX, "c1")
    submissions = [Submission(BOX, "c2", b"x", NO_DIGEST, 1, marked=False)]
    keys, args = harness.enqueue_request(submissions, 8)
    assert await harness.connections.run(ENQUEUE, keys, args) == b"e"
    lease, _ = await worker.start()
    assert await worker.do(lease, done("c1")) == Released("idle")
    assert await harness.connections.run(ENQUEUE, keys, args) == b"e"
    _, later = harness.enqueue_request(submissions, 9)
    assert await harness.connections.run(ENQUEUE, keys, later) == b"+"


async def test_a_repeated_batch_without_marks_gets_the_first_answer(harness: TransportHarness, worker: ManualWorker) -> None:
    submissions = [Submission(BOX, name, b"x", NO_DIGEST, 2, delay, marked=False) for name, delay in (("c1", 0), ("c2", 10_000))]
    keys, args = harness.enqueue_request(submissions, 8)
    assert await harness.connections.run(ENQUEUE, keys, args) == b"++"
    lease, _ = await worker.start()
    await worker.do(lease, done("c1"))
    before = await harness.everything()
    assert await harness.connections.run(ENQUEUE, keys, args) == b"++"
    assert await harness.everything() == before


@pytest.mark.promise("A repeated request adds nothing")
async def test_a_batch_whose_first_answer_is_gone_is_not_applied_again(harness: TransportHarness) -> None:
    await harness.put(BOX, "c1")
    submissions = [Submission(BOX, "c2", b"x", NO_DIGEST, 9, marked=False)]
    keys, args = harness.enqueue_request(submissions, 8)
    await harness.client.delete(keys[7])
    before = await harness.everything()
    assert await harness.connections.run(ENQUEUE, keys, [args[0], 1, *args[2:]]) == b"gone"
    assert await harness.everything() == before


@pytest.mark.parametrize("applied", [False, True])
async def test_a_producer_repeats_a_request_after_a_long_silence(
    harness: TransportHarness, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    connections: Any = harness.producer_connections
    run = connections.run_confirmed
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
    monkeypatch.setattr("command_bus.transport.redis.sending.enqueue_line.mono", lambda: mono() + 3700)
    monkeypatch.setattr(connections, "run_confirmed", cut_off_once)
    monkeypatch.setattr(connections, "post", lambda *_: False)
    assert await harness.producer.enqueue(Submission(BOX, "c3", b"x", NO_DIGEST, 9, marked=False), 5) is Admission.ACCEPTED
    assert await harness.client.xlen(harness.shard.mailbox(BOX)) == 3


async def test_a_delayed_command_for_what_is_no_mailbox_is_refused(harness: TransportHarness) -> None:
    await harness.client.set(harness.shard.mailbox(BOX), "text")
    before = await harness.everything()
    refused = Submission(BOX, "c1", b"x", NO_DIGEST, 9, 60_000, marked=False)
    assert await harness.producer.enqueue(refused, 5) is Admission.WRONG_TYPE
    assert await harness.everything() == before


async def test_a_delayed_batch_is_refused_after_a_later_one_was_answered(harness: TransportHarness) -> None:
    stuck, later = (
        harness.enqueue_request([Submission(BOX, name, b"x", NO_DIGEST, 9, marked=False)], number)
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
    answers = harness.producer._lines[0]._head_keys[7]
    before = await harness.everything()
    other = Submission("box:b", "c1", b"y", b"digest-8", 5)
    assert await harness.producer.enqueue(other, 5) is Admission.CONFLICT
    assert {**await harness.everything(), answers: None} == {**before, answers: None}


@pytest.mark.promise("Refusals keep the order")
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
