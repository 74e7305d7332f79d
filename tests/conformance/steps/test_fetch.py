"""A busy worker fetches activations and starts their lone commands in one request; what a lost answer named runs all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from command_bus import Command, CommandBus, CommandContext, EntityId, Worker
from command_bus.errors import TransportUnavailable
from command_bus.transport.redis.keys import GROUP
from command_bus.transport.redis.scripts import FETCH
from command_bus.transport.redis.worker import consumer
from command_bus.transport.redis.worker.consumer import Delivery, parse_fetched
from command_bus.transport.redis.worker.lease_keeper import LeaseKeeper
from command_bus.transport.steps import GiveBack, Released
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, done, reader_of
from tests.conformance.put_service import until
from tests.conformance.steps.test_line_steps import LOW, OPEN, fill

BOX = "box:a"


class Pay(Command[None], entity="sum", delivery="at_most_once"):
    sum_id: EntityId


class Keep(Command[None], entity="sum"):
    sum_id: EntityId


async def fetch(
    harness: TransportHarness, count: int = 10, first: int = 7, line: Sequence[str] = (), starts: Sequence[int] = ()
) -> list[Delivery]:
    """Run the script as the worker `w1`."""
    shard = harness.shard
    names = [shard.ready, shard.active, shard.lone, shard.fence, shard.paused, shard.watched, shard.rules, *line]
    return parse_fetched(await harness.connections.run(FETCH, names, [GROUP, "w1", count, first, 0, *starts]), "w1", first)


async def test_lone_commands_are_started_and_the_others_delivered(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "a1")
    await harness.put("box:b", "b1", "b2")
    await harness.client.xadd(harness.shard.ready, {"tick": "1"})
    await harness.put("box:c", "c1")
    await harness.put("box:d", "d1")
    a, b, tick, c = await fetch(harness, count=4)
    assert [each.mailbox for each in (a, b, tick, c)] == [BOX, "box:b", None, "box:c"]
    assert [each.holder for each in (a, b, tick, c)] == ["w1#f7", "", "", "w1#f10"]
    assert b.started is None
    assert a.started is not None
    assert c.started is not None
    assert int(a.started.fence) < int(c.started.fence)
    for each in (a, c):
        assert each.started is not None
        assert (each.started.envelope, each.started.attempt, each.started.message) == (
            f"{str(each.mailbox)[-1]}1".encode(),
            1,
            each.activation,
        )
        record = await harness.record(str(each.mailbox))
        assert record is not None
        assert (record.state, record.fence, record.message, record.holder) == (
            "O",
            each.started.fence,
            each.activation,
            each.holder,
        )
    pending: Any = await harness.client.xpending_range(harness.shard.ready, GROUP, "-", "+", 10)
    assert [(item["message_id"].decode(), item["consumer"]) for item in pending] == [
        (each.activation, b"w1") for each in (a, b, tick, c)
    ]
    lease = worker.lease(BOX, a.activation)
    lease.holder, lease.attempt_id = a.holder, a.attempt_id
    assert await worker.do(lease, done("a1")) == Released("idle")
    assert await harness.nothing_of(BOX)


async def test_a_fetch_brings_what_it_asks_for_and_leaves_a_handful(harness: TransportHarness) -> None:
    """With replicas that confirm it starts nothing."""
    await fill(harness, LOW, OPEN + 30)
    shard = harness.shard
    for starts in ((), (0,)):
        found = await fetch(harness, 14, 7, shard.fair, starts)
        assert len(found) == 14
        assert all((each.started is None) == bool(starts) for each in found)
        assert len(await harness.activations()) == OPEN + (28 if starts else 14)


async def test_where_nothing_waits_nothing_is_written(harness: TransportHarness) -> None:
    before = await harness.everything()
    assert await fetch(harness) == []
    assert await harness.everything() == before


@pytest.mark.parametrize("what", ["paused", "watched"])
async def test_while_anything_is_paused_or_watched_nothing_starts(
    harness: TransportHarness, worker: ManualWorker, what: str
) -> None:
    await harness.put(BOX, "c1")
    key = harness.shard.paused if what == "paused" else harness.shard.watched
    await harness.client.hset(key, "other", "p|1|" if what == "paused" else "10")  # type: ignore[misc]
    (delivery,) = await fetch(harness)
    assert (delivery.mailbox, delivery.started) == (BOX, None)
    started: Any = await worker.do(worker.lease(BOX, delivery.activation), TAKE)
    assert started.envelope == b"c1"


async def test_what_was_started_can_be_given_back_uncounted(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    (delivery,) = await fetch(harness)
    lease = worker.lease(BOX, delivery.activation)
    lease.holder, lease.attempt_id = delivery.holder, delivery.attempt_id
    assert await worker.do(lease, GiveBack(counts=False)) == Released("yield")
    _, again = await worker.start()
    assert (again.envelope, again.attempt) == (b"c1", 1)


async def test_the_fence_is_kept(harness: TransportHarness) -> None:
    ahead = 4_000_000_000_000_000
    await harness.client.set(harness.shard.fence, str(ahead))
    await harness.put(BOX, "c1")
    await harness.put("box:b", "c2")
    fences = [each.started.fence for _ in range(2) for each in await fetch(harness, count=1) if each.started]
    assert fences == [str(ahead + 1), str(ahead + 2)]


@pytest.mark.parametrize(
    ("settled", "left"),
    [
        ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9]),
        ([1, 2, 3, 4, 5, 6, 7], [0, 8, 9]),
        ([0, 1, 2, 4, 5, 7], [3, 6, 8, 9]),
        (range(8), [8, 9]),
    ],
)
async def test_activations_settled_together_leave_those_that_run_and_those_that_wait(
    harness: TransportHarness, worker: ManualWorker, settled: Iterable[int], left: list[int]
) -> None:
    boxes = [f"box:{number}" for number in range(10)]
    for box in boxes:
        await harness.put(box, f"c-{box}")
    leases = await worker.read(8)
    for lease in leases:
        await worker.do(lease, TAKE)
    answers = [worker.steps.advance(leases[each], done(f"c-{boxes[each]}")) for each in settled]  # one request
    assert {str(await answer) for answer in answers} == {str(Released("idle"))}
    assert await harness.activations() == [boxes[each] for each in left]
    assert len(await worker.read()) == 2


class Fetches:
    """Watches a worker's reader, and breaks the answers that it is asked to break."""

    def __init__(self, worker: Worker) -> None:
        self.reader = reader_of(worker)
        self.count = 0
        self.lost: list[Any] = []
        self.loses: Callable[[int], bool] = lambda _: False
        self.slow = 0.0
        self.heard: Callable[[Any], object] = bool
        really = self.reader._pipe.request

        async def request(*words: Any) -> Any:
            answer = await really(*words)
            if words[:2] == ("EVALSHA", FETCH.sha):
                self.count += 1
                self.heard(answer)
                if self.loses(self.count):
                    self.lost.append(answer)
                    raise RedisConnectionError("cut off")
                if self.slow:
                    self.lost.append(answer)
                    await asyncio.sleep(self.slow)
                    self.slow = 0.0
            return answer

        self.reader._pipe.request = request


def paying(sandbox: Sandbox, seconds: float = 0.0) -> list[tuple[str, int]]:
    """Register a handler; return the list of what it started: entity and attempt."""
    starts: list[tuple[str, int]] = []

    @sandbox.registry.handles(Pay)
    async def pay(command: Pay, context: CommandContext) -> None:
        starts.append((str(command.sum_id), context.attempt))
        await asyncio.sleep(seconds)

    return starts


async def queued(bus: CommandBus, count: int) -> list[tuple[str, int]]:
    """Put a command for each of so many entities into their mailboxes; return what has to run."""
    await bus.dispatch_batch(Pay(sum_id=f"s{number}") for number in range(count))
    return sorted((f"s{number}", 1) for number in range(count))


async def letters(bus: CommandBus) -> int:
    return len([letter async for letter in bus.dead_letters.list()])


async def test_a_busy_worker_fetches(sandbox: Sandbox) -> None:
    starts = paying(sandbox)
    async with sandbox.bus() as bus:
        expected = await queued(bus, 200)
        async with bus.worker(concurrency=16) as worker:
            fetches = Fetches(worker)
            await bus.wait_idle(20)
            assert sorted(starts) == expected
            assert fetches.count > 3
        assert (await bus.stats()).depth == 0


@pytest.mark.promise("An answer is lost that says what a worker was given, and what was started for it")
async def test_a_lost_answer_loses_no_attempt(sandbox: Sandbox) -> None:
    """At most once: what the fetch had started would be dead-lettered if anyone took it for interrupted."""
    starts = paying(sandbox)
    async with sandbox.bus() as bus:
        expected = await queued(bus, 200)
        async with bus.worker(concurrency=16) as worker:
            fetches = Fetches(worker)
            fetches.loses = lambda count: count in (2, 4)
            await bus.wait_idle(20)
        assert any(each is not None for answer in fetches.lost for each in answer[3::4]), "it had started something"
        assert await letters(bus) == 0
    assert sorted(starts) == expected


async def test_a_lost_answer_loses_none_if_looking_for_it_fails_once(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = paying(sandbox)
    async with sandbox.bus(lease=1.0) as bus:
        expected = await queued(bus, 200)
        async with bus.worker(concurrency=16) as worker:
            fetches = Fetches(worker)
            fetches.loses = lambda count: count == 2
            really, failed = consumer.ensure_ready, []

            async def ensure_ready(*args: Any) -> bool:
                if fetches.lost and not failed:
                    failed.append(1)
                    raise TransportUnavailable("timed out")
                return await really(*args)

            monkeypatch.setattr(consumer, "ensure_ready", ensure_ready)
            await bus.wait_idle(20)
        assert failed
        assert await letters(bus) == 0
    assert sorted(starts) == expected


async def test_what_is_being_given_back_is_not_interrupted(sandbox: Sandbox) -> None:
    """There is no room for what was fetched, since slots that were lent are taken back; then both connections break."""
    starts = paying(sandbox)
    async with sandbox.bus() as bus:
        expected = await queued(bus, 200)
        async with bus.worker(concurrency=16) as worker:
            fetches = Fetches(worker)
            loop = fetches.reader._loop
            answered, advance = loop.slots.answered, loop.steps.advance
            refused: list[int] = []

            def no_room(shard: int, ask: Any, fetched: int, needed: int) -> int:
                if fetches.count != 2 or refused:
                    return answered(shard, ask, fetched, needed)
                refused.append(needed)
                answered(shard, ask, fetched, 0)
                return 0

            async def later(lease: Any, step: Any) -> Any:
                await asyncio.sleep(1.0)
                return await advance(lease, step)

            loop.slots.answered = no_room  # type: ignore[method-assign]
            loop.steps.advance = lambda lease, step: (later if step == GiveBack(counts=False) else advance)(lease, step)  # type: ignore[method-assign, assignment, return-value]
            fetches.loses = lambda count: count == 3
            await bus.wait_idle(20)
        assert refused
        assert await letters(bus) == 0
    assert sorted(starts) == expected


@pytest.mark.promise("An answer is lost that says what a worker was given, and what was started for it")
async def test_a_worker_that_stops_gives_back_what_it_was_not_told_of(sandbox: Sandbox) -> None:
    starts = paying(sandbox)
    async with sandbox.bus() as bus:
        expected = await queued(bus, 60)
        async with bus.worker(concurrency=16) as worker:
            fetches = Fetches(worker)
            fetches.loses = lambda _: True
            fetches.reader._mend = lambda _: asyncio.sleep(60)  # type: ignore[method-assign, assignment]
            await until(lambda: fetches.lost)
        async with bus.worker(concurrency=16):
            await bus.wait_idle(20)
        assert await letters(bus) == 0
    assert sorted(starts) == expected


async def test_scripts_that_are_lost_are_loaded_again(sandbox: Sandbox) -> None:
    starts = paying(sandbox, 0.01)
    async with sandbox.bus() as bus:
        expected = await queued(bus, 200)
        async with bus.worker(concurrency=16):
            client = sandbox.client()
            for _ in range(3):
                await client.script_flush()
                await asyncio.sleep(0.02)
            await client.aclose()
            await bus.wait_idle(20)
    assert sorted(starts) == expected


async def test_where_replicas_confirm_starts_it_starts_nothing(sandbox: Sandbox) -> None:
    starts = paying(sandbox)
    async with sandbox.bus() as bus:
        expected = await queued(bus, 100)
        async with bus.worker(concurrency=16) as worker:
            fetches = Fetches(worker)
            fetches.reader._connections.confirms = True
            await bus.wait_idle(20)
            assert fetches.count == 0
    assert sorted(starts) == expected


@pytest.mark.promise("An answer is lost that says what a worker was given, and what was started for it")
async def test_an_answer_that_took_longer_than_the_lease_starts_nothing(sandbox: Sandbox) -> None:
    """Another worker may have taken over by then what it started."""
    fences: list[int] = []

    @sandbox.registry.handles(Keep)
    async def keep(_: Keep, context: CommandContext) -> None:
        fences.append(context.fence)

    async with sandbox.bus(lease=0.6) as bus:
        await bus.dispatch_batch(Keep(sum_id=f"s{number}") for number in range(60))
        async with bus.worker(concurrency=8) as worker:
            fetches = Fetches(worker)
            fetches.slow = 1.0
            await bus.wait_idle(20)
    late = {int(running.partition(b"|")[0]) for running in fetches.lost[0][3::4] if running is not None}
    assert late
    assert not late & set(fences)
    assert len(fences) == 60


async def test_its_lease_counts_from_before_the_request(harness: TransportHarness) -> None:
    """The answer may be on its way for longer than the lease, and then nothing may start."""
    leases = LeaseKeeper(harness.connections, harness.keys, worker="w1", lease=30.0, heartbeat=lambda _: b"")
    assert leases.add(0, BOX, "1-1", read_at=5.0).deadline == 35.0
    assert leases.add(0, BOX, "1-2").deadline > 35.0
