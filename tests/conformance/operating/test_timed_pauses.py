"""Pauses that end by themselves, moments instead of delays, and delayed commands that get another time. Over every server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from command_bus import Command, CommandBus, CommandContext, EntityId, Envelope, InvalidCommand, InvalidSettings
from command_bus.transport.redis.maintenance.due_work import Member, PauseJob
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import TransportHarness
from tests.conformance.put_service import until

SCOPES = {"entity": "box:a", "type": "box:*", "bus": "*"}
each_scope = pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES.keys())


class Move(Command[None], entity="box"):
    box: EntityId


@pytest.fixture
def ran(sandbox: Sandbox) -> list[str]:
    found: list[str] = []

    @sandbox.registry.handles(Move)
    async def move(command: Move, context: CommandContext) -> None:
        found.append(context.command_id)

    return found


def held(bus: CommandBus, scope: str) -> Any:
    return bus.entity("box", "a") if scope == "box:a" else bus.entities.of("box") if scope == "box:*" else bus.entities


@pytest.mark.promise("A pause ends at its time")
@each_scope
async def test_a_timed_pause_ends_by_itself(sandbox: Sandbox, ran: list[str], scope: str) -> None:
    async with sandbox.bus(shards=2) as bus, bus.worker():
        part = held(bus, scope)
        assert await part.pause("moving", until=1.2)
        await bus.dispatch(Move(box="a"))
        await asyncio.sleep(0.5)
        assert ran == []
        hold = (await bus.entity("box", "a").show()).entity.hold
        assert hold is not None
        assert hold.until_ms is not None
        await until(lambda: ran, 5)
        await until(lambda: gone(bus), 5)
        assert await bus.entities.of("other").pause("idle", until=60)
        await bus.wait_idle(timeout=2)
        assert (await bus.stats()).delayed == 0
        assert not await part.resume()


async def gone(bus: CommandBus) -> bool:
    return not (await bus.stats()).paused


@pytest.mark.promise("A pause ends at its time")
@each_scope
async def test_each_pause_and_resume_replaces_the_end(harness: TransportHarness, scope: str) -> None:
    """A pause without an end is not ended by what was left of an earlier one."""

    async def end() -> float | None:
        score: Any = await harness.client.zscore(harness.shard.due, f"p:{scope}")
        return score

    async def over(at: float) -> int:
        job = PauseJob(harness.connections, harness.keys, harness.shard)
        return (await job.perform([Member(f"p:{scope}", at)])).done

    await harness.scopes.pause(scope, "", 5)
    assert await end() == 5
    await harness.scopes.pause(scope, "", 9)
    assert await over(5) == 0, "that end does not hold any more"
    await harness.scopes.resume(scope)
    assert await end() is None
    await harness.scopes.pause(scope, "", 5)
    await harness.scopes.pause(scope, "for good")
    assert await end() is None
    assert await over(5) == 0
    assert await harness.client.hexists(harness.shard.paused, scope)  # type: ignore[misc]
    await harness.scopes.pause(scope, "", 5)
    await harness.scopes.drain(scope, "")
    assert await end() is None
    await harness.scopes.resume(scope)
    await harness.scopes.pause(scope, "", 5)
    assert await over(5) == 1
    assert await end() is None
    assert not await harness.client.exists(harness.shard.paused)


async def test_a_worker_that_dies_while_it_wakes_leaves_the_end_due(harness: TransportHarness) -> None:
    await harness.scopes.pause("box:*", "", 5)
    await harness.put("box:a", "c1")
    await harness.scopes._step(harness.shard, "over", "box:*", "", [], "5")  # ended, nobody is awake
    assert await harness.client.zscore(harness.shard.due, "p:box:*") == 5
    assert await harness.activations() == []
    job = PauseJob(harness.connections, harness.keys, harness.shard)
    await job.perform([Member("p:box:*", 5)])
    assert await harness.activations() == ["box:a"]
    assert await harness.client.zscore(harness.shard.due, "p:box:*") is None


async def test_a_moment_instead_of_a_delay(sandbox: Sandbox, ran: list[str]) -> None:
    async with sandbox.bus() as bus:
        now = datetime.now(UTC)
        past = await bus.dispatch(Move(box="p"), at=now - timedelta(hours=1))
        soon = await bus.dispatch(Move(box="s"), at=now + timedelta(seconds=1))
        far = await bus.dispatch_raw("box", "f", "Move", {"box": "f"}, at=now + timedelta(days=30))
        batch = await bus.dispatch_batch([Envelope(Move(box="b"), at=now + timedelta(days=2))])
        tomorrow = now + timedelta(days=1)
        found = {each.command_id: each async for each in bus.commands.delayed()}
        assert found.keys() == {soon.command_id, far.command_id, batch.outcomes[0].command_id}
        assert abs(found[far.command_id].due_at - now - timedelta(days=30)) < timedelta(seconds=10)
        assert (found[far.command_id].name, found[far.command_id].entity_type, found[far.command_id].entity_id) == (
            "Move",
            "box",
            "f",
        )
        assert [each.command_id async for each in bus.commands.delayed(before=tomorrow)] == [soon.command_id]
        assert [each async for each in bus.commands.delayed(entity_type="other")] == []
        async with bus.worker():
            await until(lambda: len(ran) == 2)
            assert ran == [past.command_id, soon.command_id]
            assert await bus.commands.reschedule(far.command_id, at=now + timedelta(days=1))
            assert await bus.commands.reschedule(far.command_id, delay=0)
            await until(lambda: far.command_id in ran)
            assert not await bus.commands.reschedule(far.command_id, delay=0)
            assert not await bus.commands.reschedule("unknown", delay=5)


async def test_67_wrong_moments_are_refused(sandbox: Sandbox) -> None:
    naive = datetime(2027, 1, 1)
    aware = datetime(2027, 1, 1, tzinfo=UTC)
    async with sandbox.bus() as bus:
        with pytest.raises(InvalidCommand, match="at: a datetime with a time zone"):
            await bus.dispatch(Move(box="a"), at=naive)
        with pytest.raises(InvalidCommand, match="at: a datetime, "):
            await bus.dispatch(Move(box="a"), at="tomorrow")  # type: ignore[arg-type]
        with pytest.raises(InvalidCommand, match="give one of them"):
            await bus.dispatch(Move(box="a"), at=aware, delay=5)
        for options in ({}, {"delay": 1, "at": aware}, {"at": naive}, {"delay": -1}):
            with pytest.raises(InvalidCommand):
                await bus.commands.reschedule("x", **options)  # type: ignore[arg-type]
        with pytest.raises(InvalidSettings, match="before: a datetime with a time zone"):
            _ = [each async for each in bus.commands.delayed(before=naive)]
        for wrong in (0, -1, float("inf"), naive, datetime(2020, 1, 1, tzinfo=UTC), "1h"):
            with pytest.raises(InvalidSettings, match="until"):
                await bus.entities.of("box").pause("", until=wrong)  # type: ignore[arg-type]
        assert not await bus.entities.holds()
