"""Events of schedules: each step of a schedule is told once, by the script that makes it. Over every server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import CommandBus, InvalidCommand, every
from command_bus.admin.events import BEGINNING, CommandEvent
from command_bus.scheduling.firing import ScheduleFiring
from tests.conformance.conftest import Sandbox
from tests.conformance.schedules.schedule_parts import MINUTE, Clock, Killed, Poll, Stopped, fire

SCHEDULES = "@schedules"
FIRST, SECOND, THIRD = (f"poll@2027-01-15T08:0{minute}:00Z" for minute in (1, 2, 3))


async def schedule_events(bus: CommandBus, *types: Any, **options: Any) -> list[CommandEvent]:
    """Return what is told of schedules, or of other types."""
    return [event async for event in bus.events(*(types or (SCHEDULES,)), after=BEGINNING, follow=False, **options)]


async def kinds(bus: CommandBus) -> list[str]:
    return [event.kind for event in await schedule_events(bus)]


async def test_nothing_is_told_while_nobody_watches(sandbox: Sandbox, bus: CommandBus, clock: Clock) -> None:
    await bus.schedules.put("poll", Poll(shop="7"), every(60))
    clock.ms += MINUTE
    await fire(bus, "poll")
    await bus.entity("shop", "7").drain("closed")
    clock.ms += MINUTE
    assert await fire(bus, "poll") == ["poll"]
    assert not [key for key in await sandbox.keys() if key.endswith((":events", ":watched"))]
    await bus.events.watch("shop")
    await bus.schedules.pause("poll")
    assert await schedule_events(bus, "shop", SCHEDULES) == []


@pytest.mark.promise("Events of schedules")
@pytest.mark.parametrize("shards", [1, 3])
async def test_what_a_schedule_does_is_told_in_order(sandbox: Sandbox, clock: Clock, shards: int) -> None:
    async with sandbox.bus(shards=shards) as bus:
        clock.rule(bus)
        await bus.events.watch(SCHEDULES)
        assert await bus.events.watched() == {SCHEDULES: 10_000}
        await bus.schedules.put("poll", Poll(shop="7"), every(60))
        await bus.schedules.put("poll", Poll(shop="7"), every(60))
        clock.ms += MINUTE
        await fire(bus, "poll")
        clock.ms += MINUTE + 2500
        await fire(bus, "poll")
        clock.ms += 5 * MINUTE
        await fire(bus, "poll")
        by_hand = await bus.schedules.trigger("poll")
        await fire(bus, "poll")
        await bus.schedules.pause("poll", "shop\nclosed")
        await bus.schedules.pause("poll", "still")
        await bus.schedules.resume("poll")
        await bus.schedules.resume("poll")
        await bus.schedules.remove("poll")
        events = await schedule_events(bus)
        stats = await bus.stats()
    assert [(event.kind, event.command_id, event.delay, event.count, event.reason) for event in events] == [
        ("put", "", None, 0, ""),
        ("fired", FIRST, None, 0, ""),
        ("late", SECOND, 2.5, 0, ""),
        ("missed", "", None, 4, ""),
        ("late", "poll@2027-01-15T08:07:00Z", 2.5, 0, ""),
        ("triggered", by_hand, None, 0, ""),
        ("fired", by_hand, None, 0, ""),
        ("paused", "", None, 0, "shop closed"),
        ("resumed", "", None, 0, ""),
        ("removed", "", None, 0, ""),
    ]
    assert {(event.schedule, event.entity, event.entity_type, event.entity_id) for event in events} == {
        ("poll", "schedule poll", None, None)
    }
    assert (stats.fired, stats.fired_late, stats.ticks_missed, stats.ticks_skipped) == (4, 2, 4, 0)


async def test_ticks_that_overlap_are_told(bus: CommandBus, clock: Clock) -> None:
    await bus.events.watch(SCHEDULES)
    await bus.schedules.put("poll", Poll(shop="7"), every(60), overlap="skip")
    for _ in range(3):
        clock.ms += MINUTE
        await fire(bus, "poll")
    assert [(event.kind, event.command_id) for event in await schedule_events(bus)][1:] == [
        ("fired", FIRST),
        ("skipped", SECOND),
        ("skipped", THIRD),
    ]
    stats = await bus.stats()
    assert (stats.ticks_missed, stats.ticks_skipped) == (0, 2)


async def test_missed_ticks_that_do_not_fire_are_told(bus: CommandBus, clock: Clock) -> None:
    await bus.events.watch(SCHEDULES)
    await bus.schedules.put("poll", Poll(shop="7"), every(60), missed="skip")
    clock.ms += 5 * MINUTE + MINUTE // 2
    await fire(bus, "poll")
    clock.ms += 4 * MINUTE + 10 * 60 * MINUTE
    await fire(bus, "poll")
    events = await schedule_events(bus)
    assert sum(event.count for event in events) + sum(event.kind in ("fired", "late") for event in events) == 609


@pytest.mark.promise("Events of schedules")
async def test_a_refused_firing_is_told_once(sandbox: Sandbox, bus: CommandBus, clock: Clock) -> None:
    await bus.events.watch(SCHEDULES)
    await bus.schedules.put("poll", Poll(shop="7"), every(60))
    await bus.entity("shop", "7").drain("closed")
    clock.ms += MINUTE
    for _ in range(4):
        assert await fire(bus, "poll") == ["poll"]
    await bus.entity("shop", "7").resume()
    await fire(bus, "poll")
    await bus.entity("shop", "7").drain("closed")
    clock.ms += MINUTE
    await fire(bus, "poll")
    events = await schedule_events(bus)
    assert [(event.kind, event.command_id, event.reason) for event in events] == [
        ("put", "", ""),
        ("refused", FIRST, "its entity is being drained"),
        ("fired", FIRST, ""),
        ("refused", SECOND, "its entity is being drained"),
    ]
    assert events[1].name == "Poll"
    await bus.schedules.remove("poll")
    assert not [key for key in await sandbox.keys() if key.endswith(":fired")], "nothing of it is left"


async def test_a_refusal_is_told_to_who_watches_schedules(sandbox: Sandbox, bus: CommandBus, clock: Clock) -> None:
    await bus.events.watch("shop")
    await bus.schedules.put("poll", Poll(shop="7"), every(60))
    await bus.entity("shop", "7").drain("closed")
    clock.ms += MINUTE
    assert await fire(bus, "poll") == ["poll"]
    client: Any = sandbox.client()
    (key,) = [key for key in await sandbox.keys() if key.endswith(":fired")]
    assert await client.hkeys(key) == [b"poll"], "it is not even noted"
    await client.aclose()


async def test_a_move_is_told_in_both_places(bus: CommandBus, clock: Clock) -> None:
    await bus.events.watch()
    await bus.schedules.put("poll", Poll(shop="7"), every(60))
    lines = [line async for line in bus.schedules.export(stop=True)]
    assert [line async for line in bus.schedules.export(stop=True)] == lines
    await bus.schedules.import_(lines)
    await bus.schedules.import_(lines)
    assert await kinds(bus) == ["put", "exported", "imported"]
    assert await schedule_events(bus, kinds=["put"]) == (await schedule_events(bus))[:1]
    assert await schedule_events(bus, None) == [], "a schedule is no command without an entity"


@pytest.mark.promise("Events of schedules")
async def test_a_firing_is_told_once_whoever_completes_it(sandbox: Sandbox, bus: CommandBus, clock: Clock) -> None:
    await bus.events.watch(SCHEDULES)
    await bus.schedules.put("poll", Poll(shop="7"), every(60))
    clock.ms += MINUTE
    (firing,) = await Stopped(bus).pin("poll")
    assert await kinds(bus) == ["put"], "it has not happened"
    assert await Stopped(bus).go_on([firing]) in (["+"], ["u"])
    await asyncio.gather(*(fire(bus, "poll") for _ in range(5)))
    assert await kinds(bus) == ["put", "fired"]


async def test_a_worker_that_dies_behind_the_pin_leaves_the_rest_to_be_told(bus: CommandBus, clock: Clock) -> None:
    """The ticks that were missed are told with the pin, the firing with its end; a repeated pin tells nothing."""
    await bus.events.watch(SCHEDULES)
    await bus.schedules.put("poll", Poll(shop="7"), every(60))
    clock.ms += 3 * MINUTE
    store: Any = bus.session.transport.schedules
    transport: Any = bus.session.transport

    class Repeating:
        """Sends each change twice, as after a lost answer, and dies before the firing."""

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        async def change(self, changes: Any) -> Any:
            await store.change(changes)
            return await store.change(changes)

        async def fire(self, firings: Any) -> Any:
            raise Killed

    transport.schedules = Repeating()
    with pytest.raises(Killed):
        await ScheduleFiring(bus.session).fire_due(["poll"])
    transport.schedules = store
    assert await kinds(bus) == ["put", "missed"]
    await fire(bus, "poll")
    assert await kinds(bus) == ["put", "missed", "fired"]
    assert (await bus.stats()).ticks_missed == 2


@pytest.mark.parametrize("name", ["@schedule", "@", "a b"])
async def test_another_name_is_no_entity_type(bus: CommandBus, name: str) -> None:
    with pytest.raises(InvalidCommand, match="entity type"):
        await bus.events.watch(name)
    with pytest.raises(InvalidCommand, match="entity type"):
        bus.events(name)
