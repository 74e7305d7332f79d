"""States of a mailbox that only a later release knows: every step leaves record, head and activation alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from command_bus import Command, EntityId, NewerState
from command_bus.transport.ports.bulk import Opening, Version
from command_bus.transport.records import WaitingEntry
from command_bus.transport.redis.bulk.dispatches import RedisBulkDispatches
from command_bus.transport.redis.keys import GROUP
from command_bus.transport.redis.mailbox_record import parse_record
from command_bus.transport.redis.ready_stream import repair_page
from command_bus.transport.redis.scripts import CLAIM, REACTIVATE
from command_bus.transport.retention import Retention
from command_bus.transport.steps import GiveBack, LeaseLost, Removal, Retry
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, bury, done, left, park
from tests.conformance.put_service import until

BOX = "box:a"
STATES = ("y", "x", "P", "wait", "su", "hx", "rr")

pytestmark = pytest.mark.parametrize("state", STATES)
Action = Callable[[TransportHarness], Awaitable[Any]]


async def become(harness: TransportHarness, state: str, activation: str = "", message: str = "", holder: str = "") -> bytes:
    """Write a record of a state that only a later release knows; return it."""
    record = f"{state}|{activation}|{17 if message else ''}|{message}|1|1000|{holder}|until=5".encode()
    await harness.client.hset(harness.shard.active, BOX, record)  # type: ignore[misc]
    return record


@asynccontextmanager
async def untouched(harness: TransportHarness) -> AsyncIterator[None]:
    """Check that no key changes."""
    before = await harness.everything()
    yield
    assert await harness.everything() == before


async def test_no_step_of_its_lease_changes_it(harness: TransportHarness, worker: ManualWorker, state: str) -> None:
    await harness.put(BOX, "c1", "c2")
    lease, started = await worker.start()
    await become(harness, state, lease.activation, started.message, lease.holder)
    async with untouched(harness):
        for step in (TAKE, done("c1"), bury("c1"), park("c1"), Retry(0), GiveBack(counts=True)):
            assert await worker.do(lease, step) == LeaseLost(), step
        taker = worker.lease(BOX, lease.activation)
        for step in (TAKE, GiveBack(counts=False)):
            assert await worker.do(taker, step) == LeaseLost(), step


async def test_its_lease_is_not_taken_over(harness: TransportHarness, worker: ManualWorker, state: str) -> None:
    await harness.put(BOX, "c1")
    lease, started = await worker.start()
    other = harness.worker("w2")
    await become(harness, state, lease.activation, started.message, lease.holder)
    (pending,) = await harness.client.xpending_range(harness.shard.ready, GROUP, "-", "+", 10)
    recovery = harness.recovery(other)
    async with untouched(harness):
        args = [GROUP, "w2", 0, lease.activation, pending["times_delivered"]]
        assert await harness.connections.run(CLAIM, [harness.shard.ready, harness.shard.active], args) == []
        await recovery.settle(0, [(lease.activation, BOX)])
        await recovery.settle(0, [(lease.activation, BOX)], ours=True)
        await become(harness, state, "1-1", started.message, lease.holder)  # and whatever else the record says
        await recovery.settle(0, [(lease.activation, BOX)])
        await become(harness, state, lease.activation, started.message, lease.holder)
    assert recovery.recovered == 0


async def test_repair_makes_no_activation_of_it(harness: TransportHarness, worker: ManualWorker, state: str) -> None:
    await harness.put(BOX, "c1", "c2")
    ((message, _), _) = await harness.client.xrange(harness.shard.mailbox(BOX))
    await harness.client.xtrim(harness.shard.ready, maxlen=0)
    await become(harness, state, "9-9", message.decode())
    shard = harness.shard
    async with untouched(harness):
        assert (
            await harness.connections.run(
                REACTIVATE, [shard.ready, shard.active, shard.paused, shard.parked, *shard.fair, shard.mailbox(BOX)], [GROUP, BOX]
            )
            == 0
        )
        assert (await repair_page(harness.connections, harness.keys.shards[0], 0))[1] == 0


OPERATIONS: dict[str, Action] = {
    "pause": lambda harness: harness.scopes.pause(BOX, "why"),
    "drain": lambda harness: harness.scopes.drain(BOX, "why"),
    "resume": lambda harness: harness.scopes.resume(BOX),
}


@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_operator_is_told(harness: TransportHarness, state: str, name: str) -> None:
    await harness.put(BOX, "c1")
    await become(harness, state)
    async with untouched(harness):
        with pytest.raises(NewerState, match="box:a is in a state that only a later release") as caught:
            await OPERATIONS[name](harness)
    assert caught.value.code == "newer_state"


async def test_a_wide_pause_and_resume_pass_it_over(harness: TransportHarness, state: str) -> None:
    await harness.put(BOX, "c1")
    record = await become(harness, state)
    for scope in ("box:*", "*"):
        assert await harness.scopes.pause(scope, "")
        assert await harness.scopes.resume(scope)
        assert await harness.client.hget(harness.shard.active, BOX) == record  # type: ignore[misc]
    assert await harness.activations() == [BOX], "that of its first command"


async def test_none_of_its_commands_is_taken_out(harness: TransportHarness, state: str) -> None:
    await harness.put(BOX, "c1", "c2")
    await harness.put(BOX, "d1", delay_ms=60_000)
    waiting = [command async for page in harness.mailboxes.lined_up(BOX) for command in page]
    await become(harness, state, "", waiting[0].id)
    async with untouched(harness):
        for command in (*waiting, WaitingEntry("d1", b"d1", delayed=True)):
            with pytest.raises(NewerState):
                await harness.mailboxes.remove(BOX, [Removal(command, left(command.id), left(command.id))])
    await harness.client.delete(harness.shard.mailbox(BOX))
    async with untouched(harness):  # also without a head
        with pytest.raises(NewerState):
            await harness.mailboxes.remove(BOX, [Removal(waiting[0], left("c1"), left("c1"))])


@pytest.mark.parametrize("verb", ["replay", "discard"])
async def test_a_letter_that_parks_it_stays(harness: TransportHarness, worker: ManualWorker, state: str, verb: Any) -> None:
    await harness.put(BOX, "c1", "c2")
    lease, started = await worker.start()
    await worker.do(lease, park("c1"))
    await become(harness, state, "", started.message)
    (letter,) = [each async for each in harness.dead_letters.all()]
    async with untouched(harness):
        with pytest.raises(NewerState):
            await harness.dead_letters.settle(letter, verb, left("c1"))


async def test_its_retry_stays_due_and_is_asked_for_once_a_second(
    harness: TransportHarness, worker: ManualWorker, state: str
) -> None:
    await harness.put(BOX, "c1")
    await become(harness, state)
    await harness.client.zadd(harness.shard.due, {f"r:{BOX}": 5})
    due = harness.recovery(worker).due[0]
    due.beat.left = lambda _: 1.0  # type: ignore[method-assign, assignment]  # it may be a moment only
    asked = 0
    run = harness.connections.run

    async def counted(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        return await run(*args)

    harness.connections.run = counted  # type: ignore[method-assign, assignment]
    async with untouched(harness):
        assert await due.turn() > 0.5
        assert await due.turn() > 0.3
    assert asked == 1
    await harness.client.hset(harness.shard.active, BOX, "w||||1|1000||until=5")  # type: ignore[misc]

    async def woken() -> bool:
        await due.turn()
        record = await harness.record(BOX)
        assert record is not None
        return record.state == "r" and record.parts == ("until=5",)

    await until(woken)


async def test_new_commands_join_its_line_and_activate_nothing(
    harness: TransportHarness, worker: ManualWorker, state: str
) -> None:
    await harness.put(BOX, "c0", "c1")
    await harness.client.xtrim(harness.shard.ready, maxlen=0)
    record = await become(harness, state)
    await harness.put(BOX, "c2")  # alone: by enqueue_one.lua
    await harness.put(BOX, "c3", "c4")
    await harness.put(BOX, "c5", delay_ms=1)

    async def promoted() -> bool:
        await harness.promote(worker)
        return not await harness.client.hlen(harness.shard.delayed)  # type: ignore[misc]

    await until(promoted)
    bulk = RedisBulkDispatches(
        harness.connections, harness.keys, max_depth=100, max_total_depth=1000, patience=5, retention=Retention(600_000, 60_000)
    )
    await bulk.open(Version("d"), Opening(keep_ms=0, remember_ms=60_000))
    packed = b"\x96\x01\xa2c6\xa3Put\xa3box\xa1a\xc4\x00"
    assert not (await bulk.load(Version("d"), 0, [(BOX, "c6", b"abcd", packed, "a", 0, "", None)])).done
    letter = await harness.client.xadd(harness.shard.dead, {"r": b"", "e": b"c7", "m": BOX, "p": "0"})
    stored = await harness.dead_letters.get(f"0-{letter.decode()}")
    assert stored is not None
    assert await harness.dead_letters.settle(stored, "replay", left("c7"))
    entries: Any = await harness.client.xrange(harness.shard.mailbox(BOX))
    assert [fields[b"e"] for _, fields in entries] == [b"c0", b"c1", b"c2", b"c3", b"c4", b"c5", packed, b"c7"]
    assert await harness.client.hget(harness.shard.active, BOX) == record  # type: ignore[misc]
    assert await harness.activations() == []


async def test_views_show_it_and_a_purge_of_its_type_leaves_it(sandbox: Sandbox, state: str) -> None:
    class Fill(Command[None], entity="box"):
        box: EntityId

    async with sandbox.bus() as bus:
        await bus.dispatch_batch(Fill(box=box) for box in ("a", "a", "b", "c"))
        client, active = sandbox.client(), bus.session.redis.keys.shards[0].active
        record = f"{state}||||1|1000||until=5"
        await client.hset(active, BOX, record)  # type: ignore[misc]
        assert await bus.entities.of("box").purge() == 2
        assert await client.hget(active, BOX) == record.encode()  # type: ignore[misc]
        (entity,) = (await bus.entities.list()).entities
        assert (entity.name, entity.depth) == (BOX, 2)
        with pytest.raises(NewerState):
            await bus.entity("box", "a").purge()
        await client.aclose()


def test_the_record_says_so(state: str) -> None:
    record = parse_record(f"{state}|1-1|2|3-3|4|5|w#1|a=b|c=".encode())
    assert record.is_newer
    assert not record.is_held
    assert (record.holder, dict(record.parts)) == ("w#1", {"a": "b", "c": ""})
