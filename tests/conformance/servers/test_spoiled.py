"""Foreign data in one mailbox or counter harms only what is in that place."""

from __future__ import annotations

from hashlib import sha1
from typing import Any

import pytest
import pytest_asyncio
from redis.exceptions import ResponseError

from command_bus import InvalidCommand, UnsuitableServer
from command_bus.transport.ports.bulk import Opening, Version
from command_bus.transport.redis.ready_stream import ensure_ready
from command_bus.transport.redis.scripts import ENQUEUE, Script
from command_bus.transport.steps import GiveBack, Released, Retry, Started
from command_bus.transport.submissions import NO_DIGEST, Admission, Submission
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import TAKE, TransportHarness, bury, done, transport_harness
from tests.conformance.put_service import Put, PutService, put_service, until

LAST = "18446744073709551615-18446744073709551615"
"""The highest id that a stream can have: behind it there is none."""
HIGHEST = 2**63 - 1
ACCEPTED, SPOILED = Admission.ACCEPTED, Admission.WRONG_TYPE
COUNTERS = ("depth", "accepted", "settled", "rejected", "expired", "buried", "dead", "retried", "handed_back", "pruned")
VALUES = (HIGHEST, -HIGHEST - 1, "no number", "")


@pytest_asyncio.fixture
async def harness(sandbox: Sandbox) -> Any:
    async with transport_harness(sandbox.clients, sandbox.namespace) as harness:
        yield harness


async def spoil(harness: TransportHarness, mailbox: str, how: str) -> None:
    key = harness.shard.mailbox(mailbox)
    if how == "type":
        await harness.client.set(key, "something else")
    else:
        await harness.client.xadd(key, {"e": "x"}, id=LAST)
        if how == "emptied":
            await harness.client.xdel(key, LAST)


def submission(box: str, name: str, **options: Any) -> Submission:
    return Submission(box, name, name.encode(), NO_DIGEST, 99, **options)


@pytest.mark.promise("A broken mailbox is reported alone")
@pytest.mark.parametrize("how", ["ids", "emptied", "type"])
@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("first", ["spoiled", "good"])
async def test_a_spoiled_mailbox_is_refused_alone(harness: TransportHarness, how: str, marked: bool, first: str) -> None:
    await spoil(harness, "box:bad", how)
    boxes = (
        ["box:bad", "box:a", "box:bad", "box:b", "box:a"]
        if first == "spoiled"
        else ["box:a", "box:bad", "box:b", "box:a", "box:bad"]
    )
    commands = [submission(box, f"c{number}", marked=marked) for number, box in enumerate(boxes)]
    expected = [SPOILED if box == "box:bad" else ACCEPTED for box in boxes]
    assert await harness.producer.enqueue_many(commands, 5) == expected
    worker = harness.worker()
    leases = {lease.mailbox: lease for lease in await worker.read()}
    assert leases.keys() >= {"box:a", "box:b"}, "the others are activated"
    stats = await harness.client.hgetall(harness.shard.stats)
    assert stats[b"depth"] == stats[b"accepted"] == b"3"
    for number, outcome in enumerate(expected):
        mark = await harness.client.get(harness.shard.mark(f"c{number}"))
        assert bool(mark) == (marked and outcome is ACCEPTED), "a refused id may be sent again"
    started = await worker.do(leases["box:a"], TAKE)
    assert isinstance(started, Started)
    assert started.envelope == f"c{boxes.index('box:a')}".encode()


@pytest.mark.parametrize("how", ["ids", "type"])
async def test_a_repeated_batch_with_a_spoiled_mailbox_gets_the_first_answer(harness: TransportHarness, how: str) -> None:
    await spoil(harness, "box:bad", how)
    commands = [submission("box:a", "c1"), submission("box:bad", "c2", marked=False), submission("box:b", "c3")]
    keys, args = harness.enqueue_request(commands, 7)
    assert await harness.connections.run(ENQUEUE, keys, args) == b"+w+"
    before = await harness.everything()
    args[1] = 1
    assert await harness.connections.run(ENQUEUE, keys, args) == b"+w+"
    assert await harness.everything() == before


async def test_a_mailbox_without_ids_left_is_created_again_when_empty(sandbox: Sandbox) -> None:
    async with put_service(sandbox) as service:
        client = sandbox.client()
        await client.xadd(service.keys.mailbox("box:a"), {"e": "x"}, id=LAST)
        await client.aclose()
        with pytest.raises(InvalidCommand, match="used up") as refused:
            await service.bus.dispatch(Put(box="a", value=1))
        assert "Nothing was accepted" in refused.value.message
        assert (await service.letter()).reason == "undecodable"
        await until(lambda: took_it(service))
        await service.assert_runs("a")


async def took_it(service: PutService) -> bool:
    try:
        return (await service.bus.dispatch(Put(box="a", value=2))).status == "accepted"
    except InvalidCommand:
        return False


async def test_a_delayed_command_waits_until_its_mailbox_takes_it(sandbox: Sandbox) -> None:
    async with put_service(sandbox) as service:
        await service.bus.dispatch(Put(box="a", value=1), delay=0.3)
        client = sandbox.client()
        await client.xadd(service.keys.mailbox("box:a"), {"e": "x"}, id=LAST)
        await client.aclose()
        await until(lambda: service.seen == [("a", 1)])
        await service.assert_runs("a")


@pytest.mark.parametrize("how", ["ids", "type"])
async def test_a_bulk_load_notes_only_what_is_in_its_mailbox(sandbox: Sandbox, how: str) -> None:
    async with sandbox.bus() as bus, transport_harness(sandbox.clients, sandbox.namespace) as harness:
        version = Version("d")
        await bus.session.transport.bulk.open(version, Opening())
        await spoil(harness, "box:bad", how)

        async def load(*names: str) -> list[Admission]:
            items = [
                (
                    f"box:{name[:-1]}",
                    name,
                    b"same",
                    b"\x96\x01" + bytes([0xA0 + len(name)]) + name.encode(),
                    name[:-1],
                    0,
                    "",
                    None,
                )
                for name in names
            ]
            return (await bus.session.transport.bulk.load(version, 0, items, suspects=())).admissions

        assert await load("a1", "bad1", "b1", "bad2", "bad1", "a2") == [ACCEPTED, SPOILED, ACCEPTED, SPOILED, SPOILED, ACCEPTED]
        assert await load("a1", "bad1", "b1") == [Admission.DUPLICATE, SPOILED, Admission.DUPLICATE]
        facts = await bus.session.transport.bulk.facts("d")
        assert facts is not None
        assert facts.added == 3
        assert {lease.mailbox for lease in await harness.worker().read()} >= {"box:a", "box:b"}
        await harness.client.delete(harness.shard.mailbox("box:bad"))
        assert await load("bad1", "bad2") == [ACCEPTED, ACCEPTED], "they were not taken for loaded"


@pytest.mark.parametrize("value", VALUES)
async def test_counters_that_cannot_grow_do_not_prevent_answers(harness: TransportHarness, value: Any) -> None:
    await harness.client.hset(
        harness.shard.stats, mapping={name: value for name in COUNTERS if name != "depth" or value != HIGHEST}
    )
    assert await harness.put("box:a", "c1", "c2", "c3") == [ACCEPTED] * 3
    worker = harness.worker()
    lease, _ = await worker.start()
    for step in (done("c1"), bury("c2")):
        assert isinstance(await worker.do(lease, step), Started)
    assert await worker.do(lease, Retry(0)) == Released("wait")
    assert await harness.client.xlen(harness.shard.dead) == 1
    record = await harness.record("box:a")
    assert record is not None
    assert (record.state, record.attempt) == ("w", 1)


async def test_counters_of_another_type_cost_no_worker_an_answer(harness: TransportHarness) -> None:
    await harness.put("box:a", "c1", "c2")
    await harness.client.delete(harness.shard.stats)
    await harness.client.set(harness.shard.stats, "something else")
    worker = harness.worker()
    lease, _ = await worker.start()
    assert isinstance(await worker.do(lease, done("c1")), Started)
    before = await harness.everything()
    with pytest.raises(UnsuitableServer):
        await harness.producer.enqueue(submission("box:b", "c3"), 5)
    assert await harness.everything() == before, "it is refused before anything is written"


@pytest.mark.parametrize("value", VALUES)
async def test_the_number_of_delayed_commands_may_be_anything(harness: TransportHarness, value: Any) -> None:
    await harness.client.hset(harness.shard.delayed_counts, "box:a", value)
    boxes = [submission("box:b", "c1"), submission("box:a", "c2", delay_ms=1), submission("box:b", "c3")]
    answers = await harness.producer.enqueue_many(boxes, 5)
    assert answers[::2] == [ACCEPTED, ACCEPTED]
    if answers[1] is ACCEPTED:
        await until(lambda: promoted(harness))
        assert await harness.client.xlen(harness.shard.mailbox("box:a")) == 1


async def promoted(harness: TransportHarness) -> bool:
    await harness.promote(harness.worker())
    return bool(await harness.client.hlen(harness.shard.delayed) == 0)


async def test_a_ready_stream_that_takes_nothing_loses_nothing(harness: TransportHarness) -> None:
    worker = harness.worker()
    assert await harness.put("box:a", "c1", "c2") == [ACCEPTED] * 2
    lease, _ = await worker.start()
    await harness.client.xadd(harness.shard.ready, {"tick": "1"}, id=LAST)
    assert await harness.put("box:b", "c3", "c4") == [ACCEPTED] * 2
    assert await worker.do(lease, bury("c1", "leave")) == Released("yield")
    assert await harness.client.xlen(harness.shard.dead) == 1
    await harness.client.delete(harness.shard.ready)
    await ensure_ready(harness.connections, harness.shard)
    found = {each.mailbox: each for each in await worker.read()}
    assert found.keys() == {"box:a", "box:b"}, "as if the stream had been deleted: it is repaired"
    started = await worker.do(found["box:a"], TAKE)
    assert isinstance(started, Started)
    assert started.envelope == b"c2"
    assert await worker.do(found["box:a"], GiveBack(counts=False)) == Released("yield")


async def test_a_letter_stays_when_its_mailbox_takes_nothing(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        service = PutService(sandbox, bus)
        async with bus.worker():
            await service.inject("box:a", {"e": b"no envelope"})
            letter = await service.letter()
            await bus.wait_idle(5)
        async with transport_harness(sandbox.clients, sandbox.namespace) as harness:
            await spoil(harness, "box:a", "ids")
            with pytest.raises(UnsuitableServer, match="does not expect"):
                await bus.dead_letters.replay(letter.id)
            assert (await service.letter()).id == letter.id


async def test_an_unexpected_error_of_a_script_leaves_the_outcome_unknown(harness: TransportHarness) -> None:
    text = "redis.call('SET', KEYS[1], 'written')\nreturn redis.call('HINCRBY', KEYS[1], 'n', 1)"
    script = Script("half", text, sha1(text.encode(), usedforsecurity=False).hexdigest())
    with pytest.raises(UnsuitableServer) as half:
        await harness.connections.run(script, [harness.shard.fence], [])
    assert half.value.outcome_unknown
    assert await harness.client.get(harness.shard.fence) == b"written"
    with pytest.raises(UnsuitableServer) as refused:
        await harness.connections.ask(lambda client: client.hget(harness.shard.fence, "n"))
    assert not refused.value.outcome_unknown
    assert isinstance(half.value.__cause__, ResponseError)
