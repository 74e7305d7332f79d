"""Pause, drain, resume and purge of an entity, a type and the bus, over every server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import (
    CommandBus,
    CommandCancelled,
    Draining,
    EntityPolicy,
    IdleTimeout,
    QueueFull,
    lanes,
)
from command_bus.errors import EntitiesStopped
from command_bus.messages.outgoing import Envelope
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.serialization.envelope import IN_DISPATCH, WireEnvelope, pack_envelope
from command_bus.transport.ports.bulk import LoadItem, Opening, Version
from command_bus.transport.submissions import Admission
from tests.conformance.conftest import Sandbox
from tests.conformance.operating.operated_app import Add, Count, Free, Seen, _states, registered
from tests.conformance.put_service import until


@pytest.fixture
def seen(sandbox: Sandbox) -> Seen:
    return registered(sandbox)


# The bus, with workers.


async def _held(bus: CommandBus) -> None:
    """Wait until all commands left wait for an operator."""

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
    return EnvelopeBuilder(bus.settings).build(out).mailbox, out.command_id, bytes(4), pack_envelope(envelope), name, 0, "", None


async def _load(bus: CommandBus, version: Version, items: list[LoadItem]) -> list[Admission]:
    answers: dict[int, Admission] = {}
    for shard in range(bus.session.redis.keys.count):
        chosen = [index for index, each in enumerate(items) if bus.session.redis.keys.shard_of(each[0]) == shard]
        loaded = await bus.session.transport.bulk.load(version, shard, [items[index] for index in chosen]) if chosen else None
        answers |= dict(zip(chosen, loaded.admissions, strict=True)) if loaded else {}
    return [answers[index] for index in range(len(items))]


@pytest.mark.promise("Pause and drain")
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


async def test_a_pause_lets_running_commands_end_and_starts_no_other(sandbox: Sandbox, seen: Seen) -> None:
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


@pytest.mark.promise("Pause and drain")
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
async def test_purge_of_a_type_or_of_all_answers_callers(sandbox: Sandbox, seen: Seen, what: str, shards: int) -> None:
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
