"""Pause, drain, resume and purge of an entity, a type and the bus, and what operators are told, over every server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from command_bus import (
    Command,
    CommandBus,
    CommandCancelled,
    Draining,
    EntityId,
    EntityPolicy,
    IdleTimeout,
    InvalidSettings,
    QueueFull,
    RetryPolicy,
    lanes,
)
from command_bus.clock import mono, wall_ms
from command_bus.errors import EntitiesStopped
from command_bus.messages.outgoing import Envelope
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.serialization.envelope import IN_DISPATCH, WireEnvelope, pack_envelope
from command_bus.transport.bulk import LoadItem, Opening, Version
from command_bus.transport.mailboxes import EVERYTHING
from command_bus.transport.redis.scripts import REPAIR
from command_bus.transport.steps import Released, Retry, Started
from command_bus.transport.submissions import Admission
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, done
from tests.conformance.put_service import until

SCOPES = {"entity": "box:a", "type": "box:*", "bus": EVERYTHING}
each_scope = pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES.keys())


class Add(Command[int], entity="sum", retry=RetryPolicy(attempts=1), on_poison="park"):
    name: EntityId
    number: int
    fails: bool = False


class Count(Command[int], entity="other"):
    name: EntityId
    number: int


class Free(Command[None]):
    number: int


@dataclass
class Seen:
    """What the handlers saw, in the order of the starts."""

    started: list[tuple[str, int]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    running: int = 0

    def of(self, name: str) -> list[int]:
        return [number for found, number in self.started if found == name]


@pytest.fixture
def seen(sandbox: Sandbox) -> Seen:
    seen = Seen()
    seen.gate.set()

    async def run(name: str, number: int) -> int:
        seen.started.append((name, number))
        seen.running += 1
        await seen.gate.wait()
        seen.running -= 1
        return number

    @sandbox.registry.handles(Add)
    async def add(command: Add) -> int:
        if command.fails:
            raise OSError("no paper")
        return await run(str(command.name), command.number)

    @sandbox.registry.handles(Count)
    async def count(command: Count) -> int:
        return await run(str(command.name), command.number)

    @sandbox.registry.handles(Free)
    async def free(command: Free) -> None:
        await run("free", command.number)

    return seen


# The steps, one scope as the other.


@each_scope
async def test_a_pause_holds_what_comes_and_resume_starts_it_once(
    harness: TransportHarness, worker: ManualWorker, scope: str
) -> None:
    assert await harness.scopes.pause(scope, "why")
    assert not await harness.scopes.pause(scope, "why")
    await harness.put("box:a", "c1", "c2")
    assert await harness.activations() == []
    assert await harness.scopes.resume(scope)
    assert not await harness.scopes.resume(scope)
    assert await harness.activations() == ["box:a"]
    lease, started = await worker.start()
    assert started.envelope == b"c1"
    following = await worker.do(lease, done("c1"))
    assert isinstance(following, Started)
    assert following.envelope == b"c2"
    assert await worker.do(lease, done("c2")) == Released("idle")
    assert await harness.nothing_of("box:a")


@each_scope
async def test_a_pause_sets_aside_what_is_ready_retried_and_between_two_commands(
    harness: TransportHarness, worker: ManualWorker, scope: str
) -> None:
    await harness.put("box:a", "c1", "c2", "c3")
    lease, _ = await worker.start()
    await harness.scopes.pause(scope, "")
    assert await worker.do(lease, done("c1")) == Released("stop")
    await harness.scopes.resume(scope)
    lease = await worker.read_one()
    await harness.scopes.pause(scope, "")
    assert await worker.do(lease, TAKE) == Released("stop")
    await harness.scopes.resume(scope)
    lease, started = await worker.start()
    assert started.envelope == b"c2"
    await worker.do(lease, Retry(0))
    await harness.scopes.pause(scope, "")
    await harness.promote(worker)
    assert await harness.activations() == []
    await harness.scopes.resume(scope)
    _, started = await worker.start()
    assert (started.envelope, started.attempt) == (b"c2", 2)


@each_scope
async def test_a_drain_refuses_what_is_new_and_starts_what_is_there(
    harness: TransportHarness, worker: ManualWorker, scope: str
) -> None:
    await harness.put("box:a", "c1")
    await harness.scopes.pause(scope, "")
    await worker.do(await worker.read_one(), TAKE)
    assert await harness.activations() == []
    assert await harness.scopes.drain(scope, "")
    assert not await harness.scopes.drain(scope, "")
    assert await harness.activations() == ["box:a"]
    assert [outcome.value for outcome in await harness.put("box:a", "c2", "c1", "c3")] == ["d", "=", "d"]
    lease, started = await worker.start()
    assert started.envelope == b"c1"
    assert await worker.do(lease, done("c1")) == Released("idle")
    assert [outcome.value for outcome in await harness.put("box:a", "c2")] == ["d"]
    assert await harness.nothing_of("box:a")
    assert await harness.scopes.resume(scope)
    assert [outcome.value for outcome in await harness.put("box:a", "c2")] == ["+"]


async def test_each_scope_is_held_for_itself(harness: TransportHarness, worker: ManualWorker) -> None:
    for scope in SCOPES.values():
        await harness.scopes.pause(scope, "")
    await harness.put("box:a", "a1")
    await harness.put("box:b", "b1")
    await harness.put("bow:b", "c1")
    assert await harness.activations() == []
    await harness.scopes.resume(EVERYTHING)
    assert await harness.activations() == ["bow:b"]
    await harness.scopes.resume("box:*")
    assert await harness.activations() == ["bow:b", "box:b"]
    await harness.scopes.resume("box:a")
    assert await harness.activations() == ["bow:b", "box:b", "box:a"]


async def test_repair_wakes_what_a_broken_off_resume_left_behind(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.scopes.pause("box:*", "")
    await harness.scopes.pause("box:b", "")
    await harness.put("box:a", "a1")
    await harness.put("box:b", "b1")
    await harness.client.hdel(harness.shard.paused, "box:*")  # type: ignore[misc]
    names = ["box:a", "box:b"]
    run: Any = harness.connections.run
    keys = [harness.shard.ready, harness.shard.active, harness.shard.paused, harness.shard.parked]
    assert await run(REPAIR, keys, ["workers", *names]) == 1
    assert await run(REPAIR, keys, ["workers", *names]) == 0
    assert await harness.activations() == ["box:a"]
    _, started = await worker.start()
    assert (started.envelope, started.attempt) == (b"a1", 1)


async def test_a_pause_of_an_earlier_version_holds(harness: TransportHarness) -> None:
    await harness.client.hset(harness.shard.paused, "box:a", "why")  # type: ignore[misc]
    await harness.put("box:a", "c1")
    assert await harness.activations() == []
    assert await harness.scopes.resume("box:a")
    assert await harness.activations() == ["box:a"]


# The bus, with workers.


async def _held(bus: CommandBus) -> None:
    """All that is left waits for an operator."""

    async def look() -> bool:
        try:
            await bus.wait_idle(0.05)
        except EntitiesStopped:
            return True
        except IdleTimeout:
            return False
        return False

    await until(look)


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_paused_type_starts_nothing_on_any_shard_and_goes_on_in_order(sandbox: Sandbox, seen: Seen, shards: int) -> None:
    names = [f"n{number}" for number in range(12)]
    async with sandbox.bus(shards=shards) as bus:
        sums = bus.entities.of("sum")
        await bus.dispatch_batch(Add(name=name, number=0) for name in names[:6])
        assert await sums.pause("month end")
        assert not await sums.pause("month end")
    async with sandbox.bus(shards=shards) as bus:  # others, later: nothing of it is in a process
        sums = bus.entities.of("sum")
        async with bus.worker():
            await bus.dispatch_batch(Add(name=name, number=number) for number in (1, 2) for name in names)
            assert await bus.call(Count(name="x", number=7), timeout=5) == 7
            await bus.dispatch(Free(number=1))
            await _held(bus)
            assert {name for name, _ in seen.started} == {"x", "free"}
        async with bus.worker():
            await bus.dispatch(Add(name="new", number=1))
            await _held(bus)
            (hold,) = await bus.entities.holds()
            assert (hold.what, hold.mode, hold.reason, hold.everywhere) == ("all sum", "paused", "month end", True)
            assert {name for name, _ in seen.started} == {"x", "free"}
            assert await sums.resume()
            assert not await sums.resume()
            await bus.wait_idle(10)
        for name in names:
            assert seen.of(name) == ([0, 1, 2] if name in names[:6] else [1, 2])
        assert seen.of("new") == [1]
        assert (await bus.stats()).entities == 0
        assert await bus.entities.holds() == []


async def test_bulk_loads_are_held_and_refused_like_all_else(sandbox: Sandbox, seen: Seen) -> None:
    version = Version("d", 0)
    async with sandbox.bus(shards=3) as bus:
        items = [_item(bus, f"n{number % 3}", number) for number in range(9)]
        await bus.session.transport.bulk.open(version, Opening(keep_ms=0, remember_ms=60_000))
        await bus.entities.of("sum").pause()
        assert await _load(bus, version, items[:6]) == [Admission.ACCEPTED] * 6
        async with bus.worker():
            await _held(bus)
            assert seen.started == []
            await bus.entities.of("sum").drain()
            assert await _load(bus, version, items) == [Admission.DUPLICATE] * 6 + [Admission.DRAINING] * 3
            await bus.wait_idle(10)
            await bus.entities.of("sum").resume()
            assert await _load(bus, version, items) == [Admission.DUPLICATE] * 6 + [Admission.ACCEPTED] * 3
            await bus.wait_idle(10)
        assert [seen.of(f"n{number}") for number in range(3)] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def _item(bus: CommandBus, name: str, number: int) -> LoadItem:
    out = EnvelopeBuilder(bus.settings).of_item(Envelope(Add(name=name, number=number), command_id=f"{name}-{number}"))
    envelope = WireEnvelope(out.command_id, out.name, out.entity_type, out.entity_id, out.payload, IN_DISPATCH)
    return EnvelopeBuilder(bus.settings).build(out).mailbox, out.command_id, bytes(4), pack_envelope(envelope), name, 0


async def _load(bus: CommandBus, version: Version, items: list[LoadItem]) -> list[Admission]:
    answers: dict[int, Admission] = {}
    for shard in range(bus.session.transport.keys.count):
        chosen = [index for index, each in enumerate(items) if bus.session.transport.keys.shard_of(each[0]) == shard]
        loaded = await bus.session.transport.bulk.load(version, shard, [items[index] for index in chosen]) if chosen else None
        answers |= dict(zip(chosen, loaded.admissions, strict=True)) if loaded else {}
    return [answers[index] for index in range(len(items))]


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_paused_bus_starts_nothing_at_all(sandbox: Sandbox, seen: Seen, shards: int) -> None:
    async with sandbox.bus(shards=shards) as bus, bus.worker():
        await bus.entities.pause("release")
        await bus.dispatch_batch([Add(name="a", number=1), Count(name="b", number=1), Free(number=1)])
        await bus.dispatch(Count(name="c", number=1), delay=0.01)
        await until(lambda: _states(bus, {"other:c": "paused"}))
        await _held(bus)
        assert seen.started == []
        await bus.entities.resume()
        await bus.wait_idle(10)
        assert sorted(seen.started) == [("a", 1), ("b", 1), ("c", 1), ("free", 1)]


async def _states(bus: CommandBus, wanted: dict[str, str]) -> bool:
    page = await bus.entities.list()
    found = {entity.name: entity.state for entity in page.entities}
    return wanted.items() <= found.items()


async def test_what_runs_is_not_touched_and_the_next_does_not_start(sandbox: Sandbox, seen: Seen) -> None:
    seen.gate.clear()
    async with sandbox.bus() as bus, bus.worker():
        first = asyncio.create_task(bus.call(Add(name="a", number=1), timeout=10))
        await until(lambda: seen.running)
        await bus.dispatch(Add(name="a", number=2))
        await bus.entities.of("sum").pause()
        seen.gate.set()
        assert await first == 1
        await _held(bus)
        assert seen.of("a") == [1]
        await bus.entities.of("sum").resume()
        await bus.wait_idle(10)
        assert seen.of("a") == [1, 2]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("what", ["entity", "type", "bus"])
async def test_draining_works_off_what_was_accepted_and_refuses_the_rest(
    sandbox: Sandbox, seen: Seen, what: str, shards: int
) -> None:
    seen.gate.clear()
    async with sandbox.bus(shards=shards) as bus, bus.worker():
        target: Any = {"entity": bus.entity("sum", "a"), "type": bus.entities.of("sum"), "bus": bus.entities}[what]
        await bus.dispatch_batch(Add(name="a", number=number) for number in range(3))
        await bus.dispatch(Add(name="a", number=3), delay=0.05, command_id="late")
        assert await target.drain("leaving")
        with pytest.raises(Draining) as refused:
            await bus.dispatch(Add(name="a", number=9))
        assert isinstance(refused.value, QueueFull)
        assert (refused.value.limit, refused.value.code, refused.value.retryable) == ("drain", "draining", True)
        with pytest.raises(Draining):
            await bus.call(Add(name="a", number=9), timeout=5)
        assert (await bus.dispatch(Add(name="a", number=3), delay=0.05, command_id="late")).status == "duplicate"
        batch = await bus.dispatch_batch(
            [Add(name="a", number=9), Add(name="b", number=1), Count(name="c", number=1), Free(number=2)]
        )
        assert [outcome.status == "rejected" for outcome in batch.outcomes] == [
            True,
            what != "entity",
            what == "bus",
            what == "bus",
        ]
        assert all(isinstance(outcome.error, Draining) for outcome in batch.rejections)
        seen.gate.set()
        await bus.wait_idle(10)
        assert seen.of("a") == [0, 1, 2, 3]
        assert await target.resume()
        assert await bus.call(Add(name="a", number=4), timeout=5) == 4


async def test_an_unlucky_letter_is_replayed_while_its_type_is_drained(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch_batch([Add(name="a", number=1, fails=True), Add(name="a", number=2)])
        await until(lambda: _states(bus, {"sum:a": "parked"}))
        await bus.entities.of("sum").drain()
        (letter,) = [letter async for letter in bus.dead_letters.list(parked=True)]
        await bus.dead_letters.discard(letter.id)
        await bus.wait_idle(10)
        assert seen.of("a") == [2]


async def test_pausing_the_type_keeps_a_replayed_letter(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch_batch([Add(name="a", number=1, fails=True), Add(name="a", number=2)])
        await until(lambda: _states(bus, {"sum:a": "parked"}))
        await bus.entities.of("sum").pause()
        (letter,) = [letter async for letter in bus.dead_letters.list()]
        await bus.dead_letters.discard(letter.id)
        await _held(bus)
        assert seen.of("a") == []
        await bus.entities.of("sum").resume()
        await bus.wait_idle(10)
        assert seen.of("a") == [2]


async def test_lanes_are_of_their_type(sandbox: Sandbox, seen: Seen) -> None:
    policies = {"sum": EntityPolicy(mailbox=lanes(2))}
    async with sandbox.bus(entities=policies) as bus, bus.worker():
        await bus.entities.of("sum").pause()
        await bus.dispatch_batch(Add(name=f"n{number}", number=number) for number in range(6))
        await _held(bus)
        assert seen.started == []
        await bus.entities.of("sum").resume()
        await bus.wait_idle(10)
        assert len(seen.started) == 6


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("what", ["type", "bus"])
async def test_purge_takes_what_waits_and_answers_callers(sandbox: Sandbox, seen: Seen, what: str, shards: int) -> None:
    async with sandbox.bus(shards=shards) as bus:
        await bus.dispatch_batch(Add(name=f"n{number % 5}", number=number) for number in range(20))
        await bus.dispatch_batch([Count(name="c", number=1), Free(number=1)])
        await bus.dispatch(Add(name="late", number=1), delay=60)
        caller = asyncio.create_task(bus.call(Add(name="n0", number=99), timeout=10))
        await until(lambda: _depth(bus, 24))
        removed = await (bus.entities if what == "bus" else bus.entities.of("sum")).purge()
        assert removed == (24 if what == "bus" else 22)
        with pytest.raises(CommandCancelled):
            await caller
        stats = await bus.stats()
        assert (stats.depth, stats.entities, stats.delayed) == ((0, 0, 0) if what == "bus" else (2, 2, 0))
        async with bus.worker():
            await bus.wait_idle(10)
        assert sorted(seen.started) == ([] if what == "bus" else [("c", 1), ("free", 1)])


async def _depth(bus: CommandBus, depth: int) -> bool:
    return (await bus.stats()).depth == depth


# What operators are told.


async def test_a_listing_tells_states_holders_and_holds(sandbox: Sandbox, seen: Seen) -> None:
    seen.gate.clear()
    async with sandbox.bus() as bus, bus.worker() as worker:
        await bus.entity("sum", "p").pause("by hand")
        await bus.dispatch_batch(Add(name="p", number=number) for number in range(3))
        await bus.dispatch_batch([Add(name="bad", number=1, fails=True), Add(name="bad", number=2)])
        await bus.dispatch(Count(name="slow", number=1))
        await bus.dispatch(Count(name="later", number=1), delay=60)
        await until(lambda: _states(bus, {"sum:bad": "parked", "other:slow": "running"}))
        page = await bus.entities.list()
        assert (page.matching, page.complete, page.cursor) == (4, True, None)
        assert [entity.name for entity in page.entities] == ["sum:p", "sum:bad", "other:later", "other:slow"]
        paused, parked, later, slow = page.entities
        assert (paused.state, paused.depth, paused.entity_type, paused.entity_id) == ("paused", 3, "sum", "p")
        assert paused.hold is not None
        assert (paused.hold.what, paused.hold.reason, paused.hold.mode) == ("sum:p", "by hand", "paused")
        assert abs(paused.hold.since_ms / 1000 - datetime.now(UTC).timestamp()) < 60
        assert (parked.state, parked.depth) == ("parked", 2)
        assert (later.state, later.depth, later.age) == ("waiting", 1, 0.0)
        assert [each.name for each in page.entities if each.due_ms is not None] == ["other:later"]
        assert (slow.state, slow.attempt, slow.worker) == ("running", 1, worker.name)
        assert slow.running_for is not None
        assert 0 <= slow.running_for <= slow.age + 1 < 60
        by_state = await bus.entities.list(states={"parked", "running"}, order="name")
        assert [entity.name for entity in by_state.entities] == ["other:slow", "sum:bad"]
        of_type = await bus.entities.of("other").list()
        assert {entity.name for entity in of_type.entities} == {"other:slow", "other:later"}
        seen.gate.set()


@pytest.mark.parametrize("order", ["depth", "age", "attempt", "name"])
@pytest.mark.parametrize("shards", [1, 3])
async def test_pages_hold_each_entity_once_in_order(sandbox: Sandbox, seen: Seen, order: Any, shards: int) -> None:
    async with sandbox.bus(shards=shards) as bus:
        await bus.dispatch_batch(Add(name=f"n{name}", number=0) for name in range(25) for _ in range(name % 4 + 1))
        whole = await bus.entities.list(order=order, limit=100)
        names, cursor = [], None
        while True:
            page = await bus.entities.list(order=order, limit=7, cursor=cursor)
            names += [entity.name for entity in page.entities]
            assert page.matching == 25
            if (cursor := page.cursor) is None:
                break
        assert names == [entity.name for entity in whole.entities]
        assert len(set(names)) == 25
        if order == "depth":
            depths = [entity.depth for entity in whole.entities]
            assert depths == sorted(depths, reverse=True)
        part = await bus.entities.list(order=order, scan=10)
        assert not part.complete
        for wrong in ("?", "bm9uZQ"):
            with pytest.raises(InvalidSettings):
                await bus.entities.list(order=order, cursor=wrong)


async def test_one_entity_from_near(sandbox: Sandbox, seen: Seen) -> None:
    seen.gate.clear()
    async with sandbox.bus() as bus, bus.worker() as worker:
        await bus.dispatch(Add(name="a", number=0), command_id="first")
        await until(lambda: seen.running)
        await bus.dispatch_batch(Add(name="a", number=number) for number in range(5))
        await bus.dispatch(Add(name="a", number=9), delay=60, command_id="late")
        details = await bus.entity("sum", "a").show(waiting=3)
        assert (details.entity.state, details.entity.depth, details.entity.worker) == ("running", 7, worker.name)
        assert details.head is not None
        assert (details.head.command_id, details.head.name) == ("first", "Add")
        assert details.first_started_ms is not None
        assert details.lease_age is not None
        assert details.lease_age < 5
        assert len(details.waiting) == 3
        assert details.handlers == 1
        whole = await bus.entity("sum", "a").show()
        assert [command.command_id for command in whole.waiting][-1] == "late"
        assert whole.waiting[-1].due_ms is not None
        assert details.holder is not None
        assert details.holder.alive
        seen.gate.set()
        nothing = await bus.entity("sum", "idle").show()
        assert (nothing.entity.state, nothing.entity.depth, nothing.head, nothing.handlers) == ("waiting", 0, None, None)


async def test_a_parked_entity_shows_its_letter(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Add(name="a", number=0, fails=True))
        await until(lambda: _states(bus, {"sum:a": "parked"}))
        details = await bus.entity("sum", "a").show()
        assert details.letter is not None
        assert (details.letter.error_message, details.letter.id) == ("no paper", details.entity.letter_id)


async def test_letters_are_chosen_counted_and_replayed_together(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch_batch(Add(name=f"n{number}", number=number, fails=True) for number in range(4))
        await until(lambda: _letters(bus, 4))
        letters = bus.dead_letters
        now = datetime.now(UTC)
        assert await letters.count() == {("failed", "Add"): 4}
        assert await letters.count(entity_type="sum", entity_id="n1", name="Add", reason="failed") == {("failed", "Add"): 1}
        assert await letters.count(since=now - timedelta(hours=1), until=now + timedelta(hours=1), parked=True) == {
            ("failed", "Add"): 4
        }
        for nothing in (
            {"since": now + timedelta(hours=1)},
            {"until": now - timedelta(hours=1)},
            {"parked": False},
            {"reason": "expired"},
        ):
            assert await letters.count(**nothing) == {}
        assert await letters.replay_all(entity_id="n2") == 1
        await until(lambda: _letters(bus, 4))
        assert await letters.replay_all() == 4
        await until(lambda: _letters(bus, 4))
        assert await letters.purge(entity_id="n0") == 1
        assert await letters.purge() == 3
        await bus.wait_idle(10)


async def _letters(bus: CommandBus, count: int) -> bool:
    return (await bus.stats()).dead_letters == count


async def test_the_oldest_age_is_that_of_what_waits_for_a_worker(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus:
        await bus.dispatch(Add(name="n", number=1))
        await asyncio.sleep(0.2)
        assert 0.2 <= (await bus.stats()).oldest_age < 20
        async with bus.worker(concurrency=1):
            began = mono()
            while mono() < began + 0.6:  # it never rests, so that it never becomes ready anew
                await bus.dispatch_batch([Add(name="n", number=1)] * 20)
            assert (await bus.stats()).oldest_age < 0.5
            await bus.wait_idle(10)
        assert (await bus.stats()).oldest_age == 0


async def test_what_holds_a_whole_type_counts_once(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus(shards=3) as bus:
        await bus.entities.of("sum").pause("repair")
        await bus.entity("sum", "a").pause("too")
        assert (await bus.stats()).paused == 2
        assert await bus.entities.of("sum").resume()
        assert await bus.entity("sum", "a").resume()


async def test_a_worker_lives_whatever_its_clock_says(sandbox: Sandbox, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    from command_bus.transport.redis.worker import lease_keeper

    monkeypatch.setattr(lease_keeper, "wall_ms", lambda: wall_ms() - 900_000)
    async with sandbox.bus() as bus, bus.worker():
        await until(lambda: _workers(bus, 1))
        await until(lambda: _live(bus))
        assert len((await bus.stats()).workers) == 1


async def _live(bus: CommandBus) -> bool:
    return [worker.alive for worker in await bus.fleet.workers()] == [True]


async def test_the_live_registry_tells_who_handles_what(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus:
        async with bus.worker() as worker:
            await until(lambda: _workers(bus, 1))
            (status,) = await bus.fleet.workers()
            assert (status.name, status.alive, status.commands) == (worker.name, True, ("Add", "Count", "Free"))
            add, _, free = await bus.fleet.commands()
            assert (add.name, add.kind, add.entity, add.key, add.delivery) == ("Add", "command", "sum", "name", "at_least_once")
            assert add.workers == (worker.name,)
            assert (add.policy["attempts"], add.policy["on_poison"], add.reply) == (1, "park", {"type": "integer"})
            assert set(add.schema["properties"]) == {"name", "number", "fails"}
            assert (free.entity, free.key, free.reply) == (None, None, {"type": "null"})
        await until(lambda: _workers(bus, 0))
        assert [each.workers for each in await bus.fleet.commands()] == [(), (), ()]
        assert await bus.fleet.command("Add") is not None
        assert await bus.fleet.command("Nothing") is None


async def _workers(bus: CommandBus, count: int) -> bool:
    return len(await bus.fleet.workers()) == count
