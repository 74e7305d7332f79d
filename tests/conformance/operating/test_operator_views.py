"""Views of operators: listings, one entity, dead letters, workers, ages."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from command_bus import (
    CommandBus,
    InvalidCommand,
    InvalidSettings,
)
from command_bus.clock import mono, wall_ms
from tests.conformance.conftest import Sandbox
from tests.conformance.operating.operated_app import Add, Count, Seen, _states, registered
from tests.conformance.put_service import until


@pytest.fixture
def seen(sandbox: Sandbox) -> Seen:
    return registered(sandbox)


async def test_a_listing_has_states_holders_and_holds(sandbox: Sandbox, seen: Seen) -> None:
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


async def test_details_of_one_entity(sandbox: Sandbox, seen: Seen) -> None:
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
        before = [each.id async for each in letters.list()]
        told: list[int] = []
        assert await letters.replay_all(limit=3, on_done=told.append, reason="failed") == 3
        assert told == [1, 2, 3]
        await until(lambda: _letters(bus, 4))
        assert before[3] in [each.id async for each in letters.list()], "the newest was left"
        for wrong in (0, -1, 1.5, True):
            with pytest.raises(InvalidCommand, match="from 1 on"):
                await letters.replay_all(limit=wrong)  # type: ignore[arg-type]
        assert await letters.replay_all() == 4
        await until(lambda: _letters(bus, 4))
        assert await letters.purge(entity_id="n0") == 1
        assert await letters.purge() == 3
        await bus.wait_idle(10)


async def _letters(bus: CommandBus, count: int) -> bool:
    return (await bus.stats()).dead_letters == count


async def test_the_oldest_age_counts_commands_that_wait_for_a_worker(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus:
        await bus.dispatch(Add(name="n", number=1))
        await asyncio.sleep(0.2)
        assert 0.2 <= (await bus.stats()).oldest_age < 20
        async with bus.worker(concurrency=1):
            began = mono()
            while mono() < began + 0.6:  # it always has work, so it never becomes ready again
                await bus.dispatch_batch([Add(name="n", number=1)] * 20)
            assert (await bus.stats()).oldest_age < 0.5
            await bus.wait_idle(10)
        assert (await bus.stats()).oldest_age == 0


async def test_a_hold_of_a_type_counts_once(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus(shards=3) as bus:
        await bus.entities.of("sum").pause("repair")
        await bus.entity("sum", "a").pause("too")
        assert (await bus.stats()).paused == 2
        assert await bus.entities.of("sum").resume()
        assert await bus.entity("sum", "a").resume()


async def test_a_worker_is_alive_whatever_its_clock(sandbox: Sandbox, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    from command_bus.transport.redis.worker import lease_keeper

    monkeypatch.setattr(lease_keeper, "wall_ms", lambda: wall_ms() - 900_000)
    async with sandbox.bus() as bus, bus.worker():
        await until(lambda: _workers(bus, 1))
        await until(lambda: _live(bus))
        assert len((await bus.stats()).workers) == 1


async def _live(bus: CommandBus) -> bool:
    return [worker.alive for worker in await bus.fleet.workers()] == [True]


async def test_the_fleet_lists_the_commands_of_each_worker(sandbox: Sandbox, seen: Seen) -> None:
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
