"""Schedules over every server: what is refused, overlaps, revisions, what is foreign or lost."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from command_bus import (
    CommandBus,
    CommandCancelled,
    CommandContext,
    EntityPolicy,
    HandlerRegistry,
    InvalidSettings,
    RegistrationError,
    UnknownSchedule,
    cron,
    every,
)
from command_bus.scheduling.firing import ScheduleFiring
from command_bus.scheduling.record import ScheduleRecord
from command_bus.transport.ports.schedules import REFUSALS, RecordChange
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until
from tests.conformance.schedules.schedule_parts import MINUTE, Clock, Poll, Stopped, Sweep, fire, ids, raw


@pytest.mark.promise("Refused firings stay due")
async def test_a_full_or_drained_entity_delays_and_loses_nothing(sandbox: Sandbox, clock: Clock) -> None:
    async with sandbox.bus(entities={"shop": EntityPolicy(max_depth=1)}) as opened:
        bus = clock.rule(opened)
        await bus.schedules.put("poll", Poll(shop="7"), every(60), missed="all")
        await bus.dispatch(Poll(shop="7"), command_id="first")
        clock.ms += 2 * MINUTE
        assert await fire(bus, "poll") == ["poll"]
        assert (await bus.schedules.get("poll")).state == "firing"
        await bus.entity("shop", "7").purge()
        await bus.entity("shop", "7").drain()
        clock.ms += 2000
        assert await fire(bus, "poll") == ["poll"]
        assert (await bus.schedules.get("poll")).fired == 0
        await bus.entity("shop", "7").resume()
        assert await fire(bus, "poll") == ["poll"], "the second one finds it full"
        info = await bus.schedules.get("poll")
        assert (info.fired, info.late) == (1, 1)
        assert await ids(bus) == ["poll@2027-01-15T08:01:00Z"]


@pytest.mark.promise("More entities have work than `max_entities` allows")
async def test_a_firing_for_one_entity_too_many_waits(sandbox: Sandbox, clock: Clock) -> None:
    async with sandbox.bus(max_entities=1) as opened:
        bus = clock.rule(opened)
        for name in ("a", "b", "c"):
            await bus.schedules.put(name, Poll(shop=name), every(60), missed="all")
        await bus.schedules.put("again", Poll(shop="a"), every(60), missed="all")
        clock.ms += MINUTE
        assert await fire(bus, "a", "again", "b", "c") == ["b", "c"]
        assert ((await bus.stats()).entities, (await bus.stats()).depth) == (1, 2), "one that has work goes on"
        assert (await bus.schedules.get("b")).state == "firing"
        clock.ms += 5000
        await bus.entity("shop", "a").purge()
        assert await fire(bus, "b", "c") == ["c"]
        assert await ids(bus, "b") == ["b@2027-01-15T08:01:00Z"], "under its planned time"
        info = await bus.schedules.get("b")
        assert (info.fired, info.late) == (1, 1)
        assert REFUSALS["n"] == "as many entities as may be have work"


@pytest.mark.parametrize("shards", [1, 3])
async def test_each_tick_fires_once_while_the_entity_changes(sandbox: Sandbox, clock: Clock, shards: int) -> None:
    async with AsyncExitStack() as stack:
        buses = [clock.rule(await stack.enter_async_context(sandbox.bus(shards=shards))) for _ in range(4)]
        await buses[0].schedules.put("poll", Poll(shop="s0"), every(60), missed="all")
        for tick in range(12):
            clock.ms += MINUTE
            firing = [ScheduleFiring(bus.session).fire_due(["poll"]) for bus in buses[1:] * 2]
            put = buses[0].schedules.put("poll", Poll(shop=f"s{(tick + 1) % 5}"), every(60), missed="all")
            await asyncio.gather(*firing[: tick % 4], put, *firing[tick % 4 :])
            await fire(buses[1], "poll")
        found = [each for shop in range(5) for each in await ids(buses[0], f"s{shop}")]
        assert sorted(found) == [f"poll@2027-01-15T08:{minute:02d}:00Z" for minute in range(1, 13)]
        assert (await buses[0].schedules.get("poll")).fired == 12


async def test_a_refused_tick_is_the_next_one_again_if_it_is_paused(sandbox: Sandbox, clock: Clock) -> None:
    async with sandbox.bus(entities={"shop": EntityPolicy(max_depth=1)}) as opened:
        bus = clock.rule(opened)
        await bus.schedules.put("poll", Poll(shop="7"), every(60))
        await bus.dispatch(Poll(shop="7"))
        clock.ms += MINUTE
        engine = Stopped(bus)
        stopped = await engine.pin("poll")
        assert await fire(bus, "poll") == ["poll"]
        assert await bus.schedules.pause("poll", "full")
        await bus.entity("shop", "7").purge()
        assert await engine.go_on(stopped) == ["="], "its number is barred"
        clock.ms += 10 * MINUTE
        assert await fire(bus, "poll") == []
        assert (await bus.stats()).depth == 0
        assert await bus.schedules.resume("poll")
        info = await bus.schedules.get("poll")
        assert (info.next_at_ms, info.fired) == (clock.ms + MINUTE, 0), "the ticks of a pause are left out"


async def test_overlap_skip_leaves_out_what_has_an_unsettled_predecessor(bus: CommandBus, clock: Clock) -> None:
    await bus.schedules.put("poll", Poll(shop="7"), every(60), overlap="skip", max_runs=2)
    for _ in range(3):
        clock.ms += MINUTE
        await fire(bus, "poll")
    assert await ids(bus) == ["poll@2027-01-15T08:01:00Z"]
    assert await bus.cancel("poll@2027-01-15T08:01:00Z")
    clock.ms += MINUTE
    await fire(bus, "poll")
    assert await ids(bus) == ["poll@2027-01-15T08:04:00Z"]
    info = await bus.schedules.get("poll")
    assert (info.skipped, info.runs, info.state) == (2, 2, "ended"), "what is skipped is no run"


@pytest.mark.parametrize(("expires", "fires"), [(30, True), (10**9, False)])
async def test_overlap_skip_does_not_wait_for_what_can_never_run(
    bus: CommandBus, clock: Clock, expires: float, fires: bool
) -> None:
    """The first firing waits behind another command, and its deadline passes there."""
    await bus.dispatch(Poll(shop="7"), command_id="before")
    await bus.schedules.put("poll", Poll(shop="7"), every(60), overlap="skip", expires=expires)
    for _ in range(2):
        clock.ms += MINUTE
        await fire(bus, "poll")
    assert len(await ids(bus)) == (3 if fires else 2)


async def test_overlap_replace_takes_the_waiting_one_out(bus: CommandBus, clock: Clock) -> None:
    await bus.schedules.put("poll", Poll(shop="7"), every(60), overlap="replace")
    clock.ms += MINUTE
    await fire(bus, "poll")
    await bus.dispatch(Poll(shop="7"), command_id="other")
    clock.ms += MINUTE
    await fire(bus, "poll")
    assert await ids(bus) == ["other", "poll@2027-01-15T08:02:00Z"]


async def test_overlap_cancel_ends_the_running_one(sandbox: Sandbox) -> None:
    began: list[str] = []

    @sandbox.registry.handles(Poll)
    async def poll(command: Poll, context: CommandContext) -> None:
        began.append(context.command_id)
        if len(set(began)) == 1:
            await asyncio.sleep(60)

    async with sandbox.bus() as bus, bus.worker():
        first = await bus.schedules.trigger((await bus.schedules.put("poll", Poll(shop="7"), every(3600), overlap="cancel")).name)
        await until(lambda: began)
        second = await bus.schedules.trigger("poll")
        await until(lambda: second in began, 15)
        await until(lambda: settled(bus, second))
        assert began[0] == first
        assert began == [first, second], "it is not started again"
        with pytest.raises(CommandCancelled):
            await bus.result(first)
        assert not (await bus.entity("shop", "7").show()).entity.hold


async def settled(bus: CommandBus, command_id: str) -> bool:
    return (await bus.stats()).depth == 0


async def test_workers_fire_by_themselves_and_put_what_code_declares(sandbox: Sandbox) -> None:
    ran: dict[str, list[str]] = defaultdict(list)

    @sandbox.registry.handles(Poll)
    async def poll(command: Poll, context: CommandContext) -> None:
        ran[command.shop].append(context.command_id)

    sandbox.registry.schedule("declared", Poll(shop="d"), every(0.2))
    async with sandbox.bus() as bus, bus.worker(), bus.worker(), bus.worker():
        await bus.schedules.put("by-hand", Poll(shop="h"), every(0.3), immediately=True, max_runs=3)
        await until(lambda: len(ran["h"]) == 3 and len(ran["d"]) > 4, 15)
        await bus.schedules.remove("declared")
        for ids in ran.values():
            assert ids == sorted(set(ids), key=lambda each: each.removesuffix("Z"))  # a whole second has no fraction
        assert (await bus.schedules.get("by-hand")).state == "ended"
        with pytest.raises(UnknownSchedule, match="schedules list"):
            await bus.schedules.get("declared")


async def test_revisions_of_what_code_declares(bus: CommandBus, caplog: pytest.LogCaptureFixture) -> None:
    def declaring(note: str, revision: int) -> HandlerRegistry:
        registry = HandlerRegistry()
        registry.schedule("poll", Poll(shop="7", note=note), every(60), revision=revision)
        return registry

    async def stored() -> tuple[int, bool, bytes]:
        info, record = await bus.schedules.get("poll"), ScheduleRecord.unpack("poll", await raw(bus, "poll") or b"")
        assert record is not None
        return info.revision, info.by_hand, record.template

    assert (await bus.schedules.sync(declaring("one", 1))).put == ("poll",)
    assert (await bus.schedules.sync(declaring("two", 2))).put == ("poll",)
    second = await stored()
    assert (await bus.schedules.sync(declaring("one", 1))).put == (), "an old worker restarts"
    assert await stored() == second
    assert (await bus.schedules.sync(declaring("other", 2))).put == ()
    assert "raise it" in caplog.text
    await bus.schedules.put("poll", Poll(shop="7", note="by hand"), every(90))
    assert (await stored())[:2] == (2, True)
    await bus.schedules.sync(declaring("two", 2))
    assert (await bus.schedules.get("poll")).times == "every 90 s", "what an operator puts stands until the next revision"
    await bus.schedules.sync(declaring("three", 3))
    assert (await bus.schedules.get("poll")).times == "every 60 s"
    await bus.schedules.put("mine", Poll(shop="7"), every(60))
    report = await bus.schedules.sync(HandlerRegistry(), prune=True)
    assert report == ((), ("poll",))
    assert [info.name async for info in bus.schedules.list()] == ["mine"]


async def test_the_window_the_moments_and_the_runs_are_shown(bus: CommandBus, clock: Clock) -> None:
    start = datetime.fromtimestamp(clock.ms / 1000, UTC) + timedelta(hours=1)
    info = await bus.schedules.put(
        "a", Poll(shop="7"), cron("0 * * * *"), start=start, end=start + timedelta(hours=2), jitter=1.5
    )
    assert await bus.schedules.next("a", 10) == tuple(start + timedelta(hours=each) for each in range(3))
    assert (info.start_ms, info.jitter, info.entity_type, info.entity_id, info.command) == (
        clock.ms + 60 * MINUTE, 1.5, "shop", "7", "Poll"
    )  # fmt: skip
    await bus.schedules.put("b", Sweep(), every(60), max_runs=2)
    assert len(await bus.schedules.next("b", 10)) == 2
    assert sorted([each.name async for each in bus.schedules.list()]) == ["a", "b"]
    assert [each.name async for each in bus.schedules.list(entity_type="shop")] == ["a"]


async def test_a_record_that_has_changed_is_left_alone(bus: CommandBus) -> None:
    store = bus.session.transport.schedules
    assert await store.change([RecordChange("s", b"", b"one", 5)]) == [True]
    assert await store.change([RecordChange("s", b"", b"two", 7), RecordChange("s", b"zero", b"", None)]) == [False, False]
    assert await store.change([RecordChange("s", b"", b"one", 5)]) == [True], "asked again"
    assert (await store.read(["s"]), await store.due_at(["s"])) == ([b"one"], [5])
    assert await store.change([RecordChange("s", b"one", b"two", -1)]) == [True]
    assert (await store.read(["s"]), await store.due_at(["s"])) == ([b"two"], [5])
    assert (await bus.stats()).schedules == 1
    assert await store.change([RecordChange("s", b"two", b"", None)]) == [True]
    assert (await store.read(["s"]), await store.due_at(["s"])) == ([None], [None])
    assert (await bus.stats()).schedules == 0


async def test_65_bad_schedules_are_refused(bus: CommandBus) -> None:
    yesterday = datetime(2020, 1, 1, tzinfo=UTC)
    with pytest.raises(InvalidSettings, match="no tick to come"):
        await bus.schedules.put("poll", Poll(shop="7"), every(60), end=yesterday)
    with pytest.raises(InvalidSettings, match="spec: cron"):
        await bus.schedules.put("poll", Poll(shop="7"), "* * * * *")  # type: ignore[arg-type]
    with pytest.raises(InvalidSettings, match="name:"):
        await bus.schedules.put("", Poll(shop="7"), every(60))
    for act in (bus.schedules.pause, bus.schedules.resume, bus.schedules.trigger, bus.schedules.remove, bus.schedules.next):
        with pytest.raises(UnknownSchedule):
            await act("none")  # type: ignore[operator]
    registry = HandlerRegistry()
    registry.schedule("poll", Poll(shop="7"), every(60))
    registry.schedule("poll", Poll(shop="7"), every(60))
    with pytest.raises(RegistrationError, match="two schedules"):
        registry.schedule("poll", Poll(shop="8"), every(60))
    with pytest.raises(InvalidSettings, match="revision"):
        registry.schedule("other", Poll(shop="8"), every(60), revision=0)


async def test_66_foreign_records_stay_as_they_are(bus: CommandBus, clock: Clock, sandbox: Sandbox) -> None:
    """A record of a later release, garbage, and a member of `due` without a record."""
    await bus.schedules.put("good", Poll(shop="7"), every(60))
    store = bus.session.transport.schedules
    later = b"\x96\x02" + b"\xc0" * 5
    await store.change([RecordChange("later", b"", later, clock.ms), RecordChange("junk", b"", b"\xc1", clock.ms)])
    client: Any = sandbox.client()
    await client.zadd(f"{{{bus.settings.namespace}:0}}:due", {"s:gone": clock.ms})
    clock.ms += MINUTE
    assert sorted(await fire(bus, "good", "later", "junk", "gone")) == ["junk", "later"]
    assert await store.read(["later", "junk"]) == [later, b"\xc1"]
    assert await store.due_at(["gone"]) == [None]
    assert len(await ids(bus)) == 1
    assert [each.name async for each in bus.schedules.list()] == ["good"]
    await client.aclose()


async def test_a_lost_time_and_jumped_clocks_are_set_right(bus: CommandBus, clock: Clock, sandbox: Sandbox) -> None:
    await bus.schedules.put("poll", Poll(shop="7"), every(3600))
    client: Any = sandbox.client()
    await client.zrem(f"{{{bus.settings.namespace}:0}}:due", "s:poll")
    await client.aclose()

    async def look() -> int | None:
        await bus.schedules.firing.look_over([("poll", await raw(bus, "poll") or b"")])
        return (await bus.session.transport.schedules.due_at(["poll"]))[0]

    began = clock.ms
    assert await look() == began + 60 * MINUTE
    clock.ms = began + 24 * 60 * MINUTE + 5000
    await fire(bus, "poll")
    clock.ms = began + 90 * MINUTE
    assert await look() == began + 120 * MINUTE, "not tomorrow"
    clock.ms = began + 120 * MINUTE
    await fire(bus, "poll")
    assert len(await ids(bus)) == 2


async def test_a_worker_whose_clock_is_behind_changes_nothing(bus: CommandBus, clock: Clock) -> None:
    """It cannot tell that from a server's clock that is ahead. It fires nothing early, and sets nothing back."""
    await bus.schedules.put("poll", Poll(shop="7"), every(60))
    clock.ms += 5 * MINUTE
    await fire(bus, "poll")
    before = await raw(bus, "poll")
    clock.behind_ms = 60 * MINUTE
    await bus.schedules.firing.look_over([("poll", before or b"")])
    assert await raw(bus, "poll") == before
    clock.ms += MINUTE
    assert list(await fire(bus, "poll")) == ["poll"], "left to other workers"
    clock.behind_ms = 0
    await fire(bus, "poll")
    sent = await ids(bus)
    assert sent == sorted(sent)


async def test_firings_whose_numbers_are_lost_fire_once(bus: CommandBus, clock: Clock, sandbox: Sandbox) -> None:
    await bus.schedules.put("poll", Poll(shop="7"), every(60))
    client: Any = sandbox.client()
    await client.delete(f"{{{bus.settings.namespace}:0}}:fired")
    await client.aclose()
    clock.ms += MINUTE
    await asyncio.gather(*(fire(bus, "poll") for _ in range(4)))
    assert len(await ids(bus)) == 1


async def test_a_removed_schedule_leaves_nothing(bus: CommandBus, clock: Clock, sandbox: Sandbox) -> None:
    await bus.schedules.put("poll", Poll(shop="7"), every(60))
    clock.ms += MINUTE
    await fire(bus, "poll")
    await bus.schedules.remove("poll")
    await bus.entity("shop", "7").purge()
    assert not [key for key in await sandbox.entity_keys() if not key.endswith((":later", ":interrupts"))]


async def test_a_firing_by_hand_beside_the_plan(bus: CommandBus, clock: Clock) -> None:
    await bus.schedules.put("poll", Poll(shop="7"), every(60), max_runs=1)
    await bus.schedules.pause("poll", "closed")
    asked = [await bus.schedules.trigger("poll"), await bus.schedules.trigger("poll")]
    clock.ms += 5
    await fire(bus, "poll")
    assert await ids(bus) == asked
    info = await bus.schedules.get("poll")
    assert (info.state, info.reason, info.fired, info.runs) == ("paused", "closed", 2, 0)
    assert not await bus.schedules.pause("poll", "closed")
    assert await bus.schedules.resume("poll")
    assert not await bus.schedules.resume("poll")


async def test_the_same_command_with_other_headers_is_a_change(bus: CommandBus) -> None:
    await bus.schedules.put("poll", Poll(shop="7"), every(60))
    before = await raw(bus, "poll")
    await bus.schedules.put("poll", Poll(shop="7"), every(60), headers={"a": "b"}, expires=5)
    after = await raw(bus, "poll")
    assert after != before
    await bus.schedules.put("poll", Poll(shop="7"), every(60), headers={"a": "b"}, expires=5)
    assert await raw(bus, "poll") == after
