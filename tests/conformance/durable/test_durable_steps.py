"""Durable commands on the server: what is stored under a lease, what a suspension waits for, and whom an outcome reaches."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from command_bus.transport.ports.durable import Note, SignalToBring
from command_bus.transport.redis.durable.commands import RedisDurableCommands
from command_bus.transport.redis.durable.side_records import RedisSideRecords
from command_bus.transport.redis.keys import delayed_member
from command_bus.transport.steps import (
    NO_SETTLEMENT,
    ChildOutcome,
    Done,
    FollowUp,
    GiveBack,
    Lease,
    Released,
    Started,
    Step,
    Suspend,
)
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, done, left, removal

BOX, OTHER = "box:a", "box:b"
OUTCOME = "o:call#1"


@pytest.fixture
def records(harness: TransportHarness) -> RedisSideRecords:
    return RedisSideRecords(harness.connections, harness.keys)


def call_of(child: str = "child") -> Note:
    """Return the note of a call, which sends its command."""
    return Note("c:call#1", b"8 bytes." + f"{child}|{OTHER}".encode(), child=FollowUp(OTHER, child, child.encode(), mark=b"q"))


def telling(child: str = "child", call: str = "call#1", of: str = "c1") -> Done:
    """Return the settlement of a command that a durable one has called."""
    return Done(replace(NO_SETTLEMENT, command_id=child, waiting=ChildOutcome(BOX, of, child, call, b"outcome")))


def suspended(*awaited: str, wanted: int = 1, until_ms: int | None = None) -> Suspend:
    return Suspend("c1", awaited, wanted, until_ms)


async def side(harness: TransportHarness, command_id: str = "c1") -> dict[bytes, bytes]:
    found: Any = await harness.client.hgetall(harness.shard.side(command_id))  # type: ignore[misc]
    return dict(found)


async def state(harness: TransportHarness) -> str | None:
    record = await harness.record(BOX)
    return None if record is None else record.state


async def calling(harness: TransportHarness, worker: ManualWorker, records: RedisSideRecords) -> tuple[Lease, Lease]:
    """Start a command that calls another, and that; return both leases."""
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    assert await records.store(lease, "c1", [call_of()], progressed=True) == [None]
    child, _ = await worker.start()
    return lease, child


async def test_a_field_is_stored_once_and_its_command_sent_once(
    harness: TransportHarness, worker: ManualWorker, records: RedisSideRecords
) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    step = Note("s:pay#1", b"first")
    assert await records.store(lease, "c1", [step, call_of()], progressed=True) == [None, None]
    assert await records.store(lease, "c1", [Note(step.name, b"second"), call_of()], progressed=True) == [
        b"first",
        call_of().value,
    ]
    assert await harness.activations() == [BOX, OTHER]
    assert (await harness.counters())["depth"] == 2
    assert await harness.client.get(harness.shard.mark("child")) == b"q"


async def test_who_has_lost_the_lease_stores_nothing(
    harness: TransportHarness, worker: ManualWorker, records: RedisSideRecords
) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    assert await worker.do(replace(lease), GiveBack(counts=True)) == Released("yield")
    before = await harness.everything()
    assert await records.store(lease, "c1", [Note("s:pay#1", b"x"), call_of()], progressed=True) is None
    again, _ = await worker.start()
    assert await records.store(lease, "c1", [Note("s:pay#1", b"x"), call_of()], progressed=True) is None
    assert await side(harness) == {}
    assert await records.store(again, "c1", [Note("s:pay#1", b"y")], progressed=True) == [None]
    assert before["pending"] == []


async def test_commands_of_one_request_go_each_its_own_way(
    harness: TransportHarness, worker: ManualWorker, records: RedisSideRecords
) -> None:
    """Of three commands that store a call at a time one has lost its lease; another calls two of one entity, later one of a class."""
    leases = []
    for name in ("a", "b", "d"):
        await harness.put(f"box:{name}", f"of-{name}")
        leases.append((await worker.start())[0])
    await worker.do(replace(leases[0]), GiveBack(counts=True))

    def note(number: int, mailbox: str, flow: str = "", delay_ms: int = 0) -> Note:
        child = FollowUp(mailbox, f"f{number}", f"f{number}".encode(), flow, delay_ms, b"q")
        return Note(f"c:call#{number}", b"8 bytes." + f"f{number}|{mailbox}".encode(), child=child)

    answers = [
        records.store(leases[0], "of-a", [note(1, "box:lost")], progressed=True),
        records.store(leases[1], "of-b", [note(2, "box:x"), note(3, "box:y"), note(4, "box:x")], progressed=True),
        records.store(leases[2], "of-d", [note(5, "box:z", delay_ms=60_000), note(6, BOX)], progressed=True),
    ]
    assert [await each for each in answers] == [None, [None, None, None], [None, None]]
    assert [await harness.waiting(box) for box in ("box:lost", "box:x", "box:y", "box:z")] == [[], [b"f2", b"f4"], [b"f3"], []]
    assert (await harness.waiting(BOX))[-1] == b"f6", "behind the command that waits there"
    assert await harness.client.hexists(harness.shard.delayed, "f5")  # type: ignore[misc]
    assert (await harness.counters())["depth"] == 8
    await records.store(leases[1], "of-b", [note(7, "box:v", flow="0")], progressed=True)
    assert await harness.client.hexists(harness.shard.flows, "c0"), "the first of a class puts the line into use"  # type: ignore[misc]


async def test_a_called_command_whose_mailbox_takes_nothing_comes_once_it_is_repaired(
    harness: TransportHarness, worker: ManualWorker, records: RedisSideRecords
) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    await harness.client.set(harness.shard.mailbox(OTHER), "not a stream")
    assert await records.store(lease, "c1", [call_of()], progressed=True) == [None]
    assert (await harness.counters())["depth"] == 2
    await harness.client.delete(harness.shard.mailbox(OTHER))
    await harness.client.zadd(harness.shard.due, {delayed_member(b"1", "child"): 1})
    await harness.promote(worker)
    assert await harness.waiting(OTHER) == [b"child"]


async def test_a_key_of_another_type_loses_no_command_beside_it(
    harness: TransportHarness, worker: ManualWorker, records: RedisSideRecords
) -> None:
    """The request fails until the key is repaired. What others have stored with it is not stored again, so their commands are sent at once."""
    leases = []
    for name in "abc":
        await harness.put(f"box:{name}", f"of-{name}")
        leases.append((await worker.start())[0])
    broken = harness.shard.side("of-b")
    await harness.client.set(broken, "not a hash")
    calls = [
        Note("c:call#1", b"8 bytes." + f"f{name}|box:x{name}".encode(), child=FollowUp(f"box:x{name}", f"f{name}", name.encode()))
        for name in "abc"
    ]
    answers = [
        records.store(lease, f"of-{name}", [call], progressed=True)
        for lease, name, call in zip(leases, "abc", calls, strict=True)
    ]
    while not (await harness.waiting("box:xa") and await harness.waiting("box:xc")):
        await asyncio.sleep(0.01)
    assert await harness.waiting("box:xb") == []
    await harness.client.delete(broken)
    assert [await each for each in answers] == [[calls[0].value], [None], [calls[2].value]]
    assert [await harness.waiting(f"box:x{name}") for name in "abc"] == [[b"a"], [b"b"], [b"c"]]


async def test_progress_counts_attempts_anew(harness: TransportHarness, worker: ManualWorker, records: RedisSideRecords) -> None:
    await harness.put(BOX, "c1")
    lease, started = await worker.start()
    for attempt in (2, 3):
        await worker.do(lease, GiveBack(counts=True))
        lease, started = await worker.start()
        assert started.attempt == attempt
    await records.store(lease, "c1", [Note("s:pay#1", b"x")], progressed=True)
    await worker.do(lease, GiveBack(counts=True))
    _, started = await worker.start()
    assert started.attempt == 2


@pytest.mark.promise("A durable wait holds no worker")
@pytest.mark.parametrize("order", ["it is suspended, then told", "it is told, then suspended"])
@pytest.mark.parametrize("batched", [False, True])
async def test_an_outcome_wakes_it(
    harness: TransportHarness, worker: ManualWorker, records: RedisSideRecords, order: str, batched: bool
) -> None:
    lease, child = await calling(harness, worker, records)
    steps = [(lease, suspended(OUTCOME)), (child, telling())]
    if order == "it is told, then suspended":
        steps.reverse()
    if batched:
        answers = [worker.steps.advance(*each) for each in steps]
        for answer in answers:
            await answer
    else:
        for each in steps:
            await worker.do(*each)
    assert (await side(harness))[OUTCOME.encode()] == b"outcome"
    record = await harness.record(BOX)
    assert record is not None
    assert record.state in ("h", "O", "o", "r"), "it goes on at once, or is ready"
    assert record.first_ms < 0, "its deadline is over"
    assert await harness.nothing_of(OTHER)


@pytest.mark.parametrize("order", ["the caller first", "the child first"])
@pytest.mark.parametrize("batched", [False, True])
async def test_caller_and_child_end_together(
    harness: TransportHarness,
    worker: ManualWorker,
    records: RedisSideRecords,
    monkeypatch: pytest.MonkeyPatch,
    order: str,
    batched: bool,
) -> None:
    """The caller has waited no longer. Whichever comes first, nothing is left of either, nor anything for a command that uses the id again."""
    lease, child = await calling(harness, worker, records)
    shard = worker.batches
    batch_of, sizes = shard._batch, list[int]()

    def counted(items: Any) -> Any:
        sizes.append(len(items))
        return batch_of(items)

    monkeypatch.setattr(shard, "_batch", counted)
    steps: list[tuple[Lease, Step]] = [(lease, Done(replace(left("c1"), side="ends"))), (child, telling())]
    if order == "the child first":
        steps.reverse()
    answers = [worker.steps.advance(*each) for each in steps] if batched else []
    for number, each in enumerate(steps):
        assert (await answers[number] if batched else await worker.do(*each)) == Released("idle")
    assert sizes == ([2] if batched else [1, 1])
    assert await side(harness) == {}
    assert await harness.nothing_of(BOX, OTHER)
    assert (await harness.counters())["depth"] == 0
    await harness.client.delete(harness.shard.mark("c1"))
    await harness.put(BOX, "c1")
    again, _ = await worker.start()
    assert await records.read(again, "c1") == {}


async def test_one_of_two_awaited_outcomes_does_not_wake_it(
    harness: TransportHarness, worker: ManualWorker, records: RedisSideRecords
) -> None:
    lease, child = await calling(harness, worker, records)
    assert await worker.do(lease, suspended(OUTCOME, "g:s#1", wanted=2)) == Released("wait")
    await worker.do(child, telling())
    assert await state(harness) == "U"
    wishes = RedisDurableCommands(harness.connections, harness.keys, patience=5)
    await harness.client.set(harness.shard.mark("c1"), b"q" + 8 * b"." + BOX.encode())
    assert await wishes.signal(BOX, "c1", SignalToBring("s", "once", b"value")) == "taken"
    assert await state(harness) == "o"


@pytest.mark.parametrize("what", ["an unknown child", "another child of this call", "another command"])
async def test_an_outcome_reaches_nobody_else(
    harness: TransportHarness, worker: ManualWorker, records: RedisSideRecords, what: str
) -> None:
    lease, child = await calling(harness, worker, records)
    await worker.do(lease, suspended(OUTCOME))
    told = {
        "an unknown child": telling(call="call#2"),
        "another child of this call": telling("other"),
        "another command": telling(of="c2"),
    }[what]
    await worker.do(child, told)
    assert await state(harness) == "U"
    assert OUTCOME.encode() not in await side(harness)
    assert await side(harness, "c2") == {}


async def test_what_a_former_command_of_its_id_waited_for_does_not_wake_it(
    harness: TransportHarness, worker: ManualWorker, records: RedisSideRecords
) -> None:
    lease, child = await calling(harness, worker, records)
    await worker.do(lease, suspended(OUTCOME))
    await harness.client.hset(harness.shard.side("c1"), "m", "1-1")  # type: ignore[misc]
    await worker.do(child, telling())
    assert await state(harness) == "U"


async def test_a_record_of_another_command_with_its_id_is_not_used(
    harness: TransportHarness, worker: ManualWorker, records: RedisSideRecords
) -> None:
    await harness.client.hset(harness.shard.side("c1"), mapping={"m": "1-1", "s:pay#1": b"foreign", "g:s#1": b"x"})  # type: ignore[misc]
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    assert await records.store(lease, "c1", [Note("s:pay#1", b"own")], progressed=True) == [None]
    assert await worker.do(lease, suspended("g:s#1")) == Released("wait")
    assert {name for name in await side(harness) if name[:2] in (b"s:", b"g:")} == {b"s:pay#1"}


async def test_a_suspension_goes_on_when_its_time_is_over(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, first = await worker.start()
    again = await worker.do(lease, suspended(until_ms=1))
    assert isinstance(again, Started)
    assert (again.message, again.attempt, again.replayed) == (first.message, 1, True)
    assert int(again.fence) > int(first.fence)


async def test_a_wait_of_which_nothing_was_stored_is_woken(harness: TransportHarness, worker: ManualWorker) -> None:
    """By a signal, also one that came before; neither ends with the time for which early signals are kept."""
    wishes = RedisDurableCommands(harness.connections, harness.keys, patience=5)
    await harness.put(BOX, "c1")
    await harness.client.set(harness.shard.mark("c1"), b"q" + 8 * b"." + BOX.encode())
    assert await wishes.signal(BOX, "c1", SignalToBring("s", "once", b"value")) == "taken"
    assert await wishes.signal(BOX, "c1", SignalToBring("s", "once", b"value")) == "repeated"
    assert await harness.client.pttl(harness.shard.side("c1")) > 0
    lease, _ = await worker.start()
    assert await worker.do(lease, suspended("g:s#2")) == Released("wait")
    assert await harness.client.pttl(harness.shard.side("c1")) == -1
    assert await wishes.signal(BOX, "c1", SignalToBring("s", "twice", b"value")) == "taken"
    assert await harness.activations() == [BOX]
    lease = await worker.read_one()
    again = await worker.do(lease, TAKE)
    assert isinstance(again, Started)
    assert again.replayed


async def test_a_wish_lets_it_go_on_at_once(harness: TransportHarness, worker: ManualWorker) -> None:
    wishes = RedisDurableCommands(harness.connections, harness.keys, patience=5)
    await harness.put(BOX, "c1")
    await harness.client.set(harness.shard.mark("c1"), b"q" + 8 * b"." + BOX.encode())
    lease, _ = await worker.start()
    assert await wishes.cancel(BOX, "c1", b"wrong day") == "taken"
    assert isinstance(await worker.do(lease, suspended("g:s#1")), Started)
    assert await worker.do(lease, replace(suspended("g:s#1"), knows_wish=True)) == Released("wait")
    assert await wishes.cancel(BOX, "c1", b"wrong day") == "repeated"
    assert await harness.activations() == [], "what undoes it waits"


async def is_streamed(harness: TransportHarness) -> bool:
    return bool(await harness.client.exists(harness.shard.mailbox(BOX)))


async def signal(harness: TransportHarness) -> None:
    await harness.client.set(harness.shard.mark("c1"), b"q" + 8 * b"." + BOX.encode())
    wishes = RedisDurableCommands(harness.connections, harness.keys, patience=5)
    assert await wishes.signal(BOX, "c1", SignalToBring("s", "once", b"value")) == "taken"


@pytest.mark.parametrize("behind", ["", "while it is suspended", "once it is woken"])
async def test_the_only_command_of_an_entity_is_suspended_without_a_stream(
    harness: TransportHarness, worker: ManualWorker, behind: str
) -> None:
    """It stays in `lone`, until another comes: that stands behind it."""
    await harness.put(BOX, "c1")
    lease, first = await worker.start()
    assert await worker.do(lease, suspended("g:s#1")) == Released("wait")
    assert not await is_streamed(harness)
    assert await state(harness) == "U"
    if behind == "while it is suspended":
        await harness.put(BOX, "c2")
        assert await state(harness) == "u"
        assert await harness.activations() == []
    await signal(harness)
    if behind == "once it is woken":
        await harness.put(BOX, "c2")
    assert await is_streamed(harness) is bool(behind)
    lease, again = await worker.start()
    assert (again.message, again.attempt, again.replayed, again.envelope) == (first.message, 1, True, b"c1")
    after = await worker.do(lease, done("c1"))
    if behind:
        assert isinstance(after, Started)
        assert after.envelope == b"c2"
        after = await worker.do(lease, done("c2"))
    assert after == Released("idle")
    assert await harness.nothing_of(BOX)


async def test_what_is_alone_and_paused_is_not_woken(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    await worker.do(lease, suspended("g:s#1"))
    await harness.scopes.pause(BOX, "stocktaking")
    await signal(harness)
    assert await state(harness) == "s"
    assert await harness.activations() == []
    await harness.scopes.resume(BOX)
    _, again = await worker.start()
    assert (again.envelope, again.replayed) == (b"c1", True)


async def test_a_worker_that_is_lost_after_a_wake_takes_nothing_away(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, first = await worker.start()
    await worker.do(lease, suspended("g:s#1"))
    await signal(harness)
    lease, _ = await worker.start()
    assert await worker.do(lease, GiveBack(counts=True)) == Released("yield")
    _, again = await worker.start()
    assert (again.message, again.attempt, again.envelope) == (first.message, 2, b"c1")


async def test_an_operator_sees_and_leaves_what_is_alone_and_suspended(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    await worker.do(lease, suspended("g:s#1"))
    pages = [page async for page in harness.mailboxes.lined_up(BOX)]
    assert [command.envelope for page in pages for command in page] == [b"c1"]
    assert await harness.mailboxes.remove(BOX, [removal(command, left("c1")) for page in pages for command in page]) == 0
    await signal(harness)
    _, again = await worker.start()
    assert again.envelope == b"c1"
