"""Commands that are alone in their mailbox: they need no stream, and become its first entry as soon as it needs one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from command_bus.transport.marks import accepted_ms
from command_bus.transport.ports.bulk import Opening, Version
from command_bus.transport.redis.admin.locator import RedisLocator
from command_bus.transport.redis.bulk.dispatches import RedisBulkDispatches
from command_bus.transport.redis.interrupts import RedisInterrupts
from command_bus.transport.redis.ready_stream import repair_page
from command_bus.transport.retention import Retention
from command_bus.transport.steps import Done, GiveBack, LeaseLost, Released, Retry, Started, StepFailed
from command_bus.transport.submissions import NO_DIGEST, Admission, Submission
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, bury, done, left, park, removal
from tests.conformance.put_service import until

BOX = "box:a"

Way = Callable[[TransportHarness], Awaitable[None]]


def submission(mailbox: str, command_id: str, envelope: bytes | None = None) -> Submission:
    return Submission(mailbox, command_id, envelope or command_id.encode(), NO_DIGEST, 1000)


async def in_stream(harness: TransportHarness) -> int:
    """Return how many entries the mailbox's stream has; -1 if there is none."""
    key = harness.shard.mailbox(BOX)
    return int(await harness.client.xlen(key)) if await harness.client.exists(key) else -1


async def state_of(harness: TransportHarness) -> str:
    record = await harness.record(BOX)
    return record.state if record else ""


async def seen(harness: TransportHarness) -> list[bytes]:
    """Return what operators see in the mailbox."""
    return [command.envelope for page in [each async for each in harness.mailboxes.lined_up(BOX)] for command in page]


async def run_all(worker: ManualWorker) -> list[bytes]:
    """Run what waits in the mailbox; return the envelopes in the order in which they were started."""
    lease, started = await worker.start()
    ran = []
    answer: Any = started
    while isinstance(answer, Started):
        assert answer.envelope is not None
        ran.append(answer.envelope)
        answer = await worker.do(lease, done(answer.envelope.decode()))
    assert answer == Released("idle")
    return ran


async def test_it_has_no_stream(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    assert await in_stream(harness) == -1
    record = await harness.record(BOX)
    assert record is not None
    assert record.state == "o"
    lease, started = await worker.start()
    assert (started.envelope, started.attempt, started.message) == (b"c1", 1, record.activation)
    assert await in_stream(harness) == -1
    held = await harness.record(BOX)
    assert held is not None
    assert (held.state, held.fence, held.message, held.holder) == ("O", started.fence, started.message, lease.holder)
    assert await worker.do(lease, done("c1")) == Released("idle")
    assert await harness.nothing_of(BOX)
    assert await harness.counters() == {"depth": 0, "accepted": 1, "settled": 1}


async def lined_up(harness: TransportHarness, _: ManualWorker) -> None:
    await harness.put(BOX, "c2")


async def paused(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.scopes.pause(BOX, "")
    assert await worker.do(await worker.read_one(), TAKE) == Released("stop")
    await harness.scopes.resume(BOX)


async def given_back(_: TransportHarness, worker: ManualWorker) -> None:
    await worker.do(await worker.read_one(), GiveBack(counts=False))


async def repaired(harness: TransportHarness, _: ManualWorker) -> None:
    await harness.client.xtrim(harness.shard.ready, maxlen=0)
    assert (await repair_page(harness.connections, harness.shard, 0))[1] == 1


async def retried(_: TransportHarness, worker: ManualWorker) -> None:
    lease, _started = await worker.start()
    assert await worker.do(lease, GiveBack(counts=True)) == Released("yield")


@pytest.mark.parametrize("way", [lined_up, paused, given_back, repaired, retried])
async def test_it_is_dated_by_its_first_activation(harness: TransportHarness, worker: ManualWorker, way: Any) -> None:
    """Who compares the time of acceptance with a moment relies on it, whatever happens to the command before it starts."""
    await harness.put(BOX, "c1")
    record = await harness.record(BOX)
    assert record is not None
    await way(harness, worker)
    await harness.client.xadd(harness.shard.ready, {"tick": "1"})  # so that no later id could be the same
    lease = next(lease for lease in await worker.read() if lease.mailbox == BOX)
    started = await worker.do(lease, TAKE)
    assert isinstance(started, Started)
    assert (started.envelope, started.message) == (b"c1", record.activation)
    seconds, _ = await harness.client.time()
    assert abs(accepted_ms(started.message) - int(seconds) * 1000) < 60_000


async def test_those_of_a_batch_have_none_either(harness: TransportHarness, worker: ManualWorker) -> None:
    boxes = [f"box:{number}" for number in range(40)]
    both = [submission(BOX, "c1"), submission(BOX, "c2")]
    await harness.producer.enqueue_many([*(submission(box, f"c-{box}") for box in boxes), *both], 5)
    for box in boxes:
        assert not await harness.client.exists(harness.shard.mailbox(box))
    assert await in_stream(harness) == 2, "two commands of one entity line up"
    leases = await worker.read()
    assert [lease.mailbox for lease in leases] == [*boxes, BOX]
    for lease in leases[:-1]:
        started = await worker.do(lease, TAKE)
        assert isinstance(started, Started)
        assert started.envelope == f"c-{lease.mailbox}".encode()
        assert await worker.do(lease, done(f"c-{lease.mailbox}")) == Released("idle")
    assert await harness.nothing_of(*boxes)


async def one(harness: TransportHarness) -> None:
    await harness.put(BOX, "c2")


async def several(harness: TransportHarness) -> None:
    await harness.put(BOX, "c2", "c3")


async def with_others(harness: TransportHarness) -> None:
    await harness.producer.enqueue_many([submission("box:b", "b1"), submission(BOX, "c2")], 5)


async def delayed(harness: TransportHarness) -> None:
    await harness.put(BOX, "c2", delay_ms=1)

    async def promoted() -> bool:
        await harness.promote(harness.worker("w9"))
        return not await harness.client.hlen(harness.shard.delayed)  # type: ignore[misc]

    await until(promoted)


async def loaded(harness: TransportHarness) -> None:
    bulk = RedisBulkDispatches(
        harness.connections, harness.keys, max_depth=100, max_total_depth=1000, patience=5, retention=Retention(600_000, 60_000)
    )
    await bulk.open(Version("d"), Opening(keep_ms=0, remember_ms=60_000))
    packed = b"\x96\x01\xa2c2\xa3Put\xa3box\xa1a\xc4\x00"
    assert not (await bulk.load(Version("d"), 0, [(BOX, "c2", b"abcd", packed, "a", 0, "", None)])).done


async def replayed(harness: TransportHarness) -> None:
    letter = await harness.client.xadd(harness.shard.dead, {"r": b"", "e": b"c2", "m": BOX, "p": "0"})
    stored = await harness.dead_letters.get(f"0-{letter.decode()}")
    assert stored is not None
    assert await harness.dead_letters.settle(stored, "replay", left("c2"))


WAYS: dict[str, Way] = {
    "one": one,
    "several": several,
    "with others": with_others,
    "delayed": delayed,
    "loaded": loaded,
    "replayed": replayed,
}


@pytest.mark.promise("A single command becomes the first")
@pytest.mark.parametrize("way", WAYS)
async def test_a_second_command_stands_behind_it(harness: TransportHarness, worker: ManualWorker, way: str) -> None:
    await harness.put(BOX, "c1")
    await WAYS[way](harness)
    assert await state_of(harness) == "r"
    assert await in_stream(harness) == (3 if way == "several" else 2)
    (first, *others) = await seen(harness)
    assert first == b"c1"
    leases = {lease.mailbox: lease for lease in await worker.read()}
    started = await worker.do(leases[BOX], TAKE)
    ran = []
    while isinstance(started, Started):
        ran.append(started.envelope)
        started = await worker.do(leases[BOX], done("c"))
    assert ran == [b"c1", *others]
    assert await harness.nothing_of(BOX)


@pytest.mark.promise("A single command becomes the first")
@pytest.mark.parametrize("way", WAYS)
async def test_a_second_command_stands_behind_it_while_it_runs(harness: TransportHarness, worker: ManualWorker, way: str) -> None:
    await harness.put(BOX, "c1")
    lease, started = await worker.start()
    await WAYS[way](harness)
    record = await harness.record(BOX)
    assert record is not None
    assert (record.state, record.fence, record.message, record.holder) == ("h", started.fence, started.message, lease.holder)
    following = (await seen(harness))[1:]
    assert await harness.mailboxes.depth(BOX) == 1 + len(following)
    answer: Any = await worker.do(lease, done("c1"))
    ran = []
    while isinstance(answer, Started):
        ran.append(answer.envelope)
        answer = await worker.do(lease, done("c"))
    assert ran == following
    assert await harness.nothing_of(BOX)


STEPS: dict[str, tuple[Any, Any, str]] = {
    "done": (done("c1"), Released("idle"), ""),
    "done, leave": (done("c1", follow="leave"), Released("idle"), ""),
    "rejected": (Done(left("c1"), status="rejected"), Released("idle"), ""),
    "expired": (Done(left("c1"), status="expired"), Released("idle"), ""),
    "dead letter": (bury("c1"), Released("idle"), ""),
    "parked": (park("c1"), Released("stop"), "s"),
    "retried": (Retry(60_000), Released("wait"), "w"),
    "given back": (GiveBack(counts=True), Released("yield"), "r"),
}


@pytest.mark.promise("A single command becomes the first")
@pytest.mark.parametrize("name", STEPS)
async def test_every_step_can_end_it(harness: TransportHarness, worker: ManualWorker, name: str) -> None:
    step, expected, state = STEPS[name]
    await harness.put(BOX, "c1")
    lease, started = await worker.start()
    assert await worker.do(lease, step) == expected
    assert await state_of(harness) == state
    if not state:
        assert await harness.nothing_of(BOX)
        assert (await harness.counters())["depth"] == 0
        return
    assert await seen(harness) == [b"c1"], "it waits where a second one would stand behind it"
    record = await harness.record(BOX)
    assert record is not None
    assert record.attempt == 1
    if state == "s":
        (letter,) = [each async for each in harness.dead_letters.all()]
        assert await harness.dead_letters.settle(letter, "replay", left("c1"))
    if state == "w":
        await harness.client.zadd(harness.shard.due, {f"r:{BOX}": 5})
        await harness.promote(worker)
    await harness.put(BOX, "c2")
    lease, again = await worker.start()
    assert (again.envelope, again.message) == (b"c1", started.message)
    assert int(again.fence) > int(started.fence)
    following = await worker.do(lease, done("c1"))
    assert isinstance(following, Started)
    assert following.envelope == b"c2"
    assert await worker.do(lease, done("c2")) == Released("idle")
    assert await harness.nothing_of(BOX)


@pytest.mark.parametrize("verb", ["replay", "discard"])
async def test_its_dead_letter_is_settled(harness: TransportHarness, worker: ManualWorker, verb: Any) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    await worker.do(lease, park("c1"))
    (letter,) = [each async for each in harness.dead_letters.all()]
    assert letter.raw == b"c1"
    assert await harness.dead_letters.settle(letter, verb, left("c1"))
    if verb == "replay":
        assert await run_all(worker) == [b"c1"]
    assert await harness.nothing_of(BOX)


async def test_a_repeated_take_answers_the_same(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    first, again = await worker.again(await worker.read_one(), TAKE)
    assert isinstance(first, Started)
    assert isinstance(again, Started)
    assert (again.fence, again.message, again.envelope) == (first.fence, first.message, b"c1")
    assert await in_stream(harness) == -1, "a repetition changes nothing"


async def test_of_another_lease_it_is_not_taken(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    before = await harness.everything()
    stranger = harness.worker("w2").lease(BOX, lease.activation)
    for step in (TAKE, done("c1"), park("c1"), Retry(0), GiveBack(counts=True)):
        assert await worker.do(stranger, step) == LeaseLost()
    assert await harness.everything() == before


@pytest.mark.parametrize("started", [False, True])
async def test_another_worker_takes_it_over(harness: TransportHarness, worker: ManualWorker, started: bool) -> None:
    await harness.put(BOX, "c1")
    lease = await worker.read_one()
    if started:
        await worker.do(lease, TAKE)
    other = harness.worker("w2")
    await other.claim(lease.activation)
    await harness.recovery(other).settle(0, [(lease.activation, BOX)])
    _, again = await other.start()
    assert (again.envelope, again.attempt) == (b"c1", 2 if started else 1)
    assert await worker.do(lease, done("c1")) == LeaseLost()


async def test_a_pause_stops_it_before_it_starts(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    await harness.scopes.pause(BOX, "")
    assert await worker.do(await worker.read_one(), TAKE) == Released("stop")
    assert await seen(harness) == [b"c1"]
    await harness.scopes.resume(BOX)
    assert await run_all(worker) == [b"c1"]


async def test_what_comes_while_it_is_paused_lines_up(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.scopes.pause(BOX, "")
    await harness.put(BOX, "c1")
    await harness.put(BOX, "c2")
    assert await seen(harness) == [b"c1", b"c2"]
    await harness.scopes.resume(BOX)
    assert await run_all(worker) == [b"c1", b"c2"]


async def test_what_is_watched_is_told_with_its_names(harness: TransportHarness, worker: ManualWorker) -> None:
    packed = b"\x96\x01\xa2c1\xa3Put\xa3box\xa1a\xc4\x00"
    await harness.producer.enqueue_many([submission(BOX, "c1", packed)], 5)
    await harness.client.hset(harness.shard.watched, "box", "10")  # type: ignore[misc]
    lease, started = await worker.start()
    assert started.envelope == packed
    assert await worker.do(lease, done("c1")) == Released("idle")
    events: Any = await harness.client.xrange(harness.shard.events)
    told = [(fields[b"v"].split(b"|")[0], fields[b"c"]) for _, fields in events]
    assert told == [(b"started", packed[2:-2]), (b"completed", packed[2:-2])]
    assert await harness.nothing_of(BOX)


@pytest.mark.parametrize("runs", [False, True])
async def test_operators_see_it(harness: TransportHarness, worker: ManualWorker, runs: bool) -> None:
    await harness.put(BOX, "c1")
    lease = await worker.read_one()
    started = await worker.do(lease, TAKE) if runs else None
    entities = harness.mailboxes._entities
    record = await harness.record(BOX)
    assert record is not None
    assert await seen(harness) == [b"c1"]
    assert await harness.mailboxes.depth(BOX) == 1
    ((entity,),) = [page async for page in entities.pages(0)]
    assert (entity.depth, entity.oldest_id, entity.state) == (1, record.activation, "running" if runs else "waiting")
    assert [[each.envelope for each in held] async for page in harness.mailboxes.contents(0) for _, held in page] == [[b"c1"]]
    head = await entities.head(BOX, 5)
    assert head.entries == ((record.activation, b"c1"),)
    assert (head.lease_ms is not None) == runs
    attempt = await RedisInterrupts(harness.connections, harness.keys, patience=5).running(BOX)
    assert (attempt is not None) == runs
    if attempt is not None:
        assert isinstance(started, Started)
        assert (attempt.id, attempt.envelope) == (f"{started.fence}|{started.message}", b"c1")
    locator = RedisLocator(harness.connections, harness.keys, patience=5)
    assert await locator.line(BOX) == [(record.activation, b"c1")]
    assert (await locator.look(BOX, "c1")).entity.depth == 1


async def test_it_can_be_taken_out(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    (command,) = [each async for page in harness.mailboxes.lined_up(BOX) for each in page]
    assert await harness.mailboxes.remove(BOX, [removal(command, left("c1"))]) == 1
    assert await harness.nothing_of(BOX)
    assert await harness.counters() == {"depth": 0, "accepted": 1}


async def test_what_runs_cannot_be_taken_out(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    (command,) = [each async for page in harness.mailboxes.lined_up(BOX) for each in page]
    lease, _ = await worker.start()
    assert await harness.mailboxes.remove(BOX, [removal(command, left("c1"))]) == 0
    assert await worker.do(lease, done("c1")) == Released("idle")
    assert await harness.nothing_of(BOX)


@pytest.mark.parametrize("runs", [False, True])
async def test_a_lost_activation_is_repaired(harness: TransportHarness, worker: ManualWorker, runs: bool) -> None:
    await harness.put(BOX, "c1")
    lease = await worker.read_one()
    if runs:
        await worker.do(lease, TAKE)
    await harness.client.xtrim(harness.shard.ready, maxlen=0)
    assert (await repair_page(harness.connections, harness.shard, 0))[1] == 1
    assert await worker.do(lease, done("c1")) == LeaseLost()
    other = harness.worker("w2")
    if runs:
        taken = await other.read_one()
        assert await other.do(taken, TAKE) == LeaseLost(), "recovery decides about what was running"
        await harness.recovery(other).settle(0, [(taken.activation, BOX)])
    _, again = await other.start()
    assert (again.envelope, again.attempt) == (b"c1", 2 if runs else 1)


async def test_a_mailbox_for_one_is_full(harness: TransportHarness, worker: ManualWorker) -> None:
    assert await harness.put(BOX, "c1", max_depth=1) == [Admission.ACCEPTED]
    assert await harness.put(BOX, "c2", max_depth=1) == [Admission.ENTITY_FULL]
    assert await harness.put(BOX, "c2", "c3", max_depth=1) == [Admission.ENTITY_FULL, Admission.PREDECESSOR_REFUSED]
    assert await run_all(worker) == [b"c1"]


async def test_a_large_command_has_a_stream(harness: TransportHarness, worker: ManualWorker) -> None:
    large = b"x" * 4096
    await harness.producer.enqueue_many([submission(BOX, "c1", large)], 5)
    assert await in_stream(harness) == 1
    _, started = await worker.start()
    assert started.envelope == large


@pytest.mark.parametrize("many", [False, True])
async def test_it_does_not_pass_what_stands_in_its_mailbox(harness: TransportHarness, worker: ManualWorker, many: bool) -> None:
    await harness.client.xadd(harness.shard.mailbox(BOX), {"e": "c0"})  # its record was lost
    await (several if many else one)(harness)
    assert await run_all(worker) == [b"c0", b"c2", *([b"c3"] if many else [])]


@pytest.mark.parametrize("many", [False, True])
async def test_its_id_is_its_time_also_if_the_clock_went_back(
    harness: TransportHarness, worker: ManualWorker, many: bool
) -> None:
    """The ready stream's ids never go back: of one ahead of the clock no deadline could be told."""
    seconds, _ = await harness.client.time()
    ahead = f"{int(seconds) * 1000 + 3_600_000}-0"
    await harness.client.xadd(harness.shard.ready, {"tick": "1"}, id=ahead)
    await harness.client.xdel(harness.shard.ready, ahead)
    await (with_others if many else one)(harness)
    lease = next(lease for lease in await worker.read() if lease.mailbox == BOX)
    started = await worker.do(lease, TAKE)
    assert isinstance(started, Started)
    assert started.envelope == b"c2"
    assert abs(int(started.message.partition("-")[0]) - int(seconds) * 1000) < 60_000
    assert await worker.do(lease, done("c2")) == Released("idle")
    assert await harness.nothing_of(BOX)


async def test_where_the_hash_becomes_something_else_it_can_be_taken_out(harness: TransportHarness) -> None:
    await harness.put(BOX, "c1")
    await harness.put(BOX, "c2")
    commands = [each async for page in harness.mailboxes.lined_up(BOX) for each in page]
    await harness.client.set(harness.shard.lone, "text")
    assert (
        await harness.mailboxes.remove(BOX, [removal(each, left(f"c{number}")) for number, each in enumerate(commands, 1)]) == 2
    )
    assert (await harness.counters())["depth"] == 0
    assert await harness.record(BOX) is None


@pytest.mark.parametrize("many", [False, True])
async def test_where_the_hash_is_something_else_it_has_a_stream(
    harness: TransportHarness, worker: ManualWorker, many: bool
) -> None:
    await harness.client.set(harness.shard.lone, "text")
    names = ["c1", "c2"] if many else ["c1"]
    await harness.producer.enqueue_many([submission(f"box:{name}", name) for name in names], 5)
    for lease in await worker.read():
        started = await worker.do(lease, TAKE)
        assert isinstance(started, Started)
        assert started.envelope == lease.mailbox.removeprefix("box:").encode()
        assert await worker.do(lease, done("c")) == Released("idle")


async def test_where_its_envelope_is_lost_it_is_undecodable(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    await harness.client.delete(harness.shard.lone)
    lease, started = await worker.start()
    assert started.envelope == b"", "which becomes a dead letter"
    assert await worker.do(lease, bury("c1")) == Released("idle")


async def test_a_key_of_another_type_fails_only_what_needs_the_stream(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    await harness.client.set(harness.shard.mailbox(BOX), "text")
    assert await harness.put(BOX, "c2") == [Admission.WRONG_TYPE]
    before = await harness.everything()
    answer = await worker.do(lease, Retry(0))
    assert isinstance(answer, StepFailed)
    assert "WRONGTYPE" in answer.reason
    after = await harness.everything()
    assert after == before
    assert await worker.do(lease, done("c1")) == Released("idle")
