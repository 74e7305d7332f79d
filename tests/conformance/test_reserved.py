"""The parts of a later release that format 3 keeps: parts of a record, fields of an entry, members of `due`. Every step carries them along."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from command_bus.transport.mailboxes import envelope_in, pack_entry, unpack_entry
from command_bus.transport.records import WaitingEntry
from command_bus.transport.redis.keys import GROUP, delayed_member
from command_bus.transport.redis.scripts import REACTIVATE
from command_bus.transport.steps import DeadLetterStep, GiveBack, Park, Released, Retry, Started
from tests.conformance.harness import TAKE, ManualWorker, Record, TransportHarness, bury, done, left, park, removal

BOX = "box:a"
PARTS = ("most=3", "note=a b;c", "none=")
FURTHER = {b"e": b"c1", b"k": b"a:b\n|\x00\xc1", b"empty": b""}


async def with_parts(harness: TransportHarness) -> None:
    """Append parts to the record."""
    record: Any = await harness.client.hget(harness.shard.active, BOX)  # type: ignore[misc]
    await harness.client.hset(harness.shard.active, BOX, "|".join((record.decode(), *PARTS)))  # type: ignore[misc]


async def state_of(harness: TransportHarness) -> str:
    """Return the record's state; check that it has all its parts, besides the first start of what was replayed, and the last error."""
    record = await harness.record(BOX)
    assert record is not None
    assert tuple(each for each in record.parts if not each.startswith(("z=", "err="))) == PARTS, record
    return record.state


async def started(harness: TransportHarness, worker: ManualWorker) -> Any:
    await harness.put(BOX, "c1", "c2", "c3")
    await with_parts(harness)
    lease, first = await worker.start()
    assert (first.attempt, first.envelope) == (1, b"c1")
    assert await state_of(harness) == "h"
    return lease, first


@pytest.mark.parametrize("step", [done("c1"), done("c1", inbox="i"), bury("c1"), replace(done("c1"), status="expired")])
async def test_parts_stay_from_command_to_command(harness: TransportHarness, worker: ManualWorker, step: Any) -> None:
    lease, _ = await started(harness, worker)
    following, again = await worker.again(lease, step)
    assert isinstance(following, Started)
    assert isinstance(again, Started)
    assert (following.envelope, again.fence) == (b"c2", following.fence)
    assert await state_of(harness) == "h"
    record: Record | None = await harness.record(BOX)
    assert record is not None
    assert record.holder == lease.holder
    assert isinstance(await worker.do(lease, done("c2")), Started)
    assert await worker.do(lease, done("c3")) == Released("idle")
    assert await harness.nothing_of(BOX)


async def test_parts_stay_through_retries_and_what_is_given_back(harness: TransportHarness, worker: ManualWorker) -> None:
    lease, _ = await started(harness, worker)
    assert await worker.do(lease, Retry(0)) == Released("wait")
    assert await state_of(harness) == "w"
    await harness.promote(worker)
    assert await state_of(harness) == "r"
    lease = await worker.read_one()
    assert await worker.do(lease, GiveBack(counts=False)) == Released("yield")
    assert await state_of(harness) == "r"
    lease, again = await worker.start()
    assert again.attempt == 2
    assert await worker.do(lease, GiveBack(counts=True)) == Released("yield")
    assert await state_of(harness) == "r"
    lease, _ = await worker.start()
    assert await worker.do(lease, done("c1", "leave")) == Released("yield")
    assert await state_of(harness) == "r"


async def test_parts_stay_where_an_entity_is_paused(harness: TransportHarness, worker: ManualWorker) -> None:
    lease, _ = await started(harness, worker)
    await harness.scopes.pause(BOX, "")
    assert await worker.do(lease, done("c1")) == Released("stop")
    assert await state_of(harness) == "s"
    await harness.scopes.resume(BOX)
    assert await state_of(harness) == "r"
    lease, _ = await worker.start()
    await worker.do(lease, Retry(60_000))
    await harness.scopes.pause(BOX, "")
    await harness.client.zadd(harness.shard.due, {f"r:{BOX}": 1})
    await harness.promote(worker)
    assert await state_of(harness) == "s"
    await harness.client.zadd(harness.shard.due, {f"r:{BOX}": 9e12})
    await harness.scopes.resume(BOX)
    assert await state_of(harness) == "w"


@pytest.mark.parametrize("verb", ["replay", "discard"])
async def test_parts_stay_where_an_entity_is_parked(harness: TransportHarness, worker: ManualWorker, verb: Any) -> None:
    lease, _ = await started(harness, worker)
    assert await worker.do(lease, park("c1")) == Released("stop")
    assert await state_of(harness) == "s"
    (letter,) = [each async for each in harness.dead_letters.all()]
    await harness.dead_letters.settle(letter, verb, left("c1"))
    assert await state_of(harness) == "r"
    _, again = await worker.start()
    assert again.envelope == (b"c1" if verb == "replay" else b"c2")
    assert await state_of(harness) == "h"


async def test_parts_stay_when_commands_are_taken_out(harness: TransportHarness, worker: ManualWorker) -> None:
    async def take_out(name: str) -> None:
        found = [each async for page in harness.mailboxes.lined_up(BOX) for each in page if each.envelope == name.encode()]
        assert await harness.mailboxes.remove(BOX, [removal(found[0], left(name))]) == 1

    lease, _ = await started(harness, worker)
    await take_out("c2")
    assert await state_of(harness) == "H"
    await worker.do(lease, Retry(60_000))
    assert await state_of(harness) == "w"
    await take_out("c1")
    assert await state_of(harness) == "r"
    await harness.put(BOX, "c4")
    await take_out("c3")
    assert await state_of(harness) == "r"


@pytest.mark.parametrize("state", ["r", "h", "s"])
async def test_parts_stay_when_an_activation_is_repaired(harness: TransportHarness, worker: ManualWorker, state: str) -> None:
    await started(harness, worker)
    value: Any = await harness.client.hget(harness.shard.active, BOX)  # type: ignore[misc]
    await harness.client.hset(harness.shard.active, BOX, state.encode() + value[1:])  # type: ignore[misc]
    await harness.client.xtrim(harness.shard.ready, maxlen=0)
    keys = [harness.shard.ready, harness.shard.active, harness.shard.paused, harness.shard.parked, *harness.shard.fair]
    keys.append(harness.shard.mailbox(BOX))
    assert await harness.connections.run(REACTIVATE, keys, [GROUP, BOX]) == 1
    assert await state_of(harness) == ("h" if state == "h" else "r")
    record = await harness.record(BOX)
    assert record is not None
    assert record.holder == ""


async def further(harness: TransportHarness) -> list[dict[bytes, bytes]]:
    """Return the entries of the mailbox."""
    found: Any = await harness.client.xrange(harness.shard.mailbox(BOX))
    return [fields for _, fields in found]


@pytest.mark.parametrize("fields", [FURTHER, {b"e": b"c1"}, {b"e": b"\xc1e:1:x"}, {b"k": b"", b"e": b""}])
@pytest.mark.parametrize("parks", [False, True])
async def test_all_fields_of_an_entry_come_back_from_a_dead_letter(
    harness: TransportHarness, worker: ManualWorker, fields: dict[bytes, bytes], parks: bool
) -> None:
    await harness.put(BOX, "b0", "c0")
    await harness.client.xadd(harness.shard.mailbox(BOX), fields)  # type: ignore[arg-type]
    lease, _ = await worker.start()
    await worker.do(lease, done("b0"))
    run = await worker.do(lease, done("c0"))
    assert isinstance(run, Started)
    assert run.envelope == fields[b"e"]
    step = Park(left("c1"), b"why", run.entry) if parks else DeadLetterStep(left("c1"), b"why", run.entry)
    await worker.do(lease, step)
    (letter,) = [each async for each in harness.dead_letters.all()]
    assert letter.raw == fields[b"e"]
    ((_, stored),) = await harness.client.xrange(harness.shard.dead)
    assert (stored[b"e"] == b"c1") == (fields == {b"e": b"c1"}), "a plain entry is stored as ever"
    assert await harness.dead_letters.settle(letter, "replay", left("c1"))
    assert await further(harness) == [fields]
    _, again = await worker.start()
    assert (again.envelope, again.entry) == (run.envelope, run.entry)


@pytest.mark.parametrize("fields", [FURTHER, {b"e": b"c1"}])
async def test_all_fields_of_a_delayed_entry_enter_the_mailbox(
    harness: TransportHarness, worker: ManualWorker, fields: dict[bytes, bytes]
) -> None:
    await harness.put(BOX, "c1", delay_ms=60_000)
    assert await harness.client.hget(harness.shard.delayed, "c1") == b"box:a\nc1", "as ever"  # type: ignore[misc]
    text = pack_entry([part for pair in fields.items() for part in pair])
    await harness.client.hset(harness.shard.delayed, "c1", b"box:a\n" + text)  # type: ignore[misc]
    assert await harness.mailboxes.find_delayed("c1") == (BOX, b"c1")
    found = [pair async for page in harness.mailboxes.delayed(0) for pair in page]
    assert found == [(BOX, WaitingEntry("c1", b"c1", delayed=True))]
    await harness.client.zadd(harness.shard.due, {delayed_member(b"1", "c1"): 5})
    await harness.promote(worker)
    assert await further(harness) == [fields]
    _, first = await worker.start()
    assert first.envelope == b"c1"


@pytest.mark.parametrize(
    "text", [b"", b"\xc1", b"\xc1e", b"\xc1e:", b"\xc1e:9:x", b"\xc1e:-1:", b"\xc1:1:x", b"\xc1e:1:xk:99999999999:", b"\xc1" + b"k:0:" * 200]
)  # fmt: skip
async def test_what_is_no_text_of_an_entry_is_an_envelope(harness: TransportHarness, worker: ManualWorker, text: bytes) -> None:
    assert unpack_entry(text) == [(b"e", text)]
    assert envelope_in(text) == text
    await harness.put(BOX, "c1", delay_ms=60_000)
    await harness.client.hset(harness.shard.delayed, "c1", b"box:a\n" + text)  # type: ignore[misc]
    await harness.client.zadd(harness.shard.due, {delayed_member(b"1", "c1"): 5})
    await harness.promote(worker)
    assert await further(harness) == [{b"e": text}]


@pytest.mark.parametrize("many", [1, 199, 200, 450])
async def test_unknown_members_of_due_stay_and_hold_nobody_up(harness: TransportHarness, worker: ManualWorker, many: int) -> None:
    others = {f"s:{number}": float(number) for number in range(many)} | {"later": 7.0, "x:" + BOX: 9e12}
    await harness.client.zadd(harness.shard.due, others)
    due = harness.recovery(worker).due[0]
    due.beat.left = lambda _: 1.0  # type: ignore[method-assign, assignment]  # it may be a moment only
    assert await due.turn() > 0.5, "nothing of ours: it is not looked at all the time"
    names = [f"d{number}" for number in range(250)]
    await harness.put(BOX, *names, delay_ms=60_000)
    await harness.client.zadd(
        harness.shard.due, {delayed_member(b"%d" % number, name): 1000 + number for number, name in enumerate(names, 1)}
    )
    await harness.put("box:r", "c1")
    lease = [lease for lease in await worker.read() if lease.mailbox == "box:r"][0]  # noqa: RUF015
    await worker.do(lease, TAKE)
    await worker.do(lease, Retry(0))
    for _ in range(100):
        await due.turn()
        record = await harness.record("box:r")
        if record is None or record.state != "w":
            break
    assert [fields[b"e"].decode() for fields in await further(harness)] == names
    scored: Any = await harness.client.zrange(harness.shard.due, 0, -1, withscores=True)
    assert {name.decode(): score for name, score in scored} == others
    assert await due.turn() > 0.5
