"""Schedules that are exported and imported: no tick is lost, none fires twice, and what goes with a namespace is counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from command_bus import CommandBus, EntityPolicy, InvalidSettings, SyncCommandBus, cron, every
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until
from tests.conformance.schedules.schedule_parts import MINUTE, Clock, Poll, Stopped, Sweep, fire, ids, raw


async def exported(bus: CommandBus, *, stop: bool = True) -> list[str]:
    return [line async for line in bus.schedules.export(stop=stop)]


@pytest.fixture
async def there(sandbox: Sandbox, clock: Clock) -> AsyncIterator[CommandBus]:
    """Return the place to which schedules move: another namespace with other shards."""
    other = Sandbox(sandbox.name, sandbox.clients, namespace=f"{sandbox.namespace}-b")
    async with other.bus(shards=2) as bus:
        yield clock.rule(bus)
    await other.clean()


@pytest.mark.promise("Schedules move")
@pytest.mark.parametrize("missed", ["one", "all", "skip"])
async def test_a_move_loses_no_tick_and_fires_none_twice(bus: CommandBus, there: CommandBus, clock: Clock, missed: Any) -> None:
    await bus.schedules.put("poll", Poll(shop="7"), every(60), missed=missed, max_runs=9)
    await bus.schedules.put("sweep", Sweep(), cron("0 8 * * *"))
    await bus.schedules.pause("sweep", "not now")
    clock.ms += MINUTE
    await fire(bus, "poll")
    before, lines = await bus.schedules.get("poll"), await exported(bus)
    assert await exported(bus) == lines, "a repeated export gives the same"
    assert (await bus.schedules.get("poll")).state == "exported"
    clock.ms += 3 * MINUTE
    await bus.schedules.firing.look_over([("poll", await raw(bus, "poll") or b"")])
    assert await fire(bus, "poll") == []
    assert await ids(bus) == ["poll@2027-01-15T08:01:00Z"], "nothing fires where it was"
    report = await there.schedules.import_(lines)
    assert (set(report.put), report.kept) == ({"poll", "sweep"}, ())
    after = await there.schedules.get("poll")
    assert (after.fired, after.runs, after.max_runs, after.last_at_ms) == (before.fired, before.runs, 9, before.last_at_ms)
    assert (await there.schedules.get("sweep")).reason == "not now"
    await fire(there, "poll")
    came = {"one": ["04"], "all": ["02", "03", "04"], "skip": ["04"]}[missed]
    assert await ids(there) == [f"poll@2027-01-15T08:{minute}:00Z" for minute in came]
    assert (await there.schedules.import_(lines)).kept == tuple(json.loads(line)["name"] for line in lines), "it goes on"
    assert (await there.schedules.get("poll")).runs == 1 + len(came)


async def test_a_firing_under_way_ends_before_the_export(bus: CommandBus, there: CommandBus, clock: Clock) -> None:
    await bus.schedules.put("poll", Poll(shop="7"), every(60))
    clock.ms += MINUTE
    engine = Stopped(bus)
    stopped = await engine.pin("poll")
    lines = await exported(bus)
    assert await engine.go_on(stopped) == ["="], "it has fired, by the export"
    assert await ids(bus) == ["poll@2027-01-15T08:01:00Z"]
    await there.schedules.import_(lines)
    assert (await there.schedules.get("poll")).next_at_ms == clock.ms + MINUTE


async def test_a_refused_firing_moves_as_a_tick_to_come(sandbox: Sandbox, there: CommandBus, clock: Clock) -> None:
    async with sandbox.bus(entities={"shop": EntityPolicy(max_depth=1)}) as opened:
        bus = clock.rule(opened)
        await bus.schedules.put("poll", Poll(shop="7"), every(60))
        await bus.schedules.trigger("poll")
        await bus.entities.drain()
        clock.ms += MINUTE
        engine = Stopped(bus)
        stopped = await engine.pin("poll")
        lines = await exported(bus)
        await bus.entities.resume()
        assert await engine.go_on(stopped) == ["="], "its number is barred"
        assert (await bus.stats()).depth == 0
    await there.schedules.import_(lines)
    await fire(there, "poll")
    assert await ids(there) == ["poll@2027-01-15T08:00:00Z!", "poll@2027-01-15T08:01:00Z"]


async def test_an_import_where_it_was_takes_the_export_back(bus: CommandBus, clock: Clock) -> None:
    await bus.schedules.put("poll", Poll(shop="7"), every(60), missed="all")
    before = await raw(bus, "poll")
    assert await exported(bus, stop=False) == await exported(bus), "a copy is the same"
    with pytest.raises(InvalidSettings, match="was exported"):
        await bus.schedules.trigger("poll")
    clock.ms += 2 * MINUTE
    assert (await bus.schedules.import_(await exported(bus))).put == ("poll",)
    assert await raw(bus, "poll") == before
    assert await bus.session.transport.schedules.due_at(["poll"]) == [clock.ms - MINUTE]
    await fire(bus, "poll")
    assert await ids(bus) == ["poll@2027-01-15T08:01:00Z", "poll@2027-01-15T08:02:00Z"]
    await exported(bus)
    assert await bus.schedules.resume("poll")
    assert (await bus.schedules.get("poll")).next_at_ms == clock.ms + MINUTE


async def test_another_one_of_the_name_stays_or_is_replaced(bus: CommandBus, there: CommandBus, clock: Clock) -> None:
    await bus.schedules.put("poll", Poll(shop="7"), every(60), missed="all", max_runs=4)
    lines = await exported(bus)
    await there.schedules.put("poll", Poll(shop="7"), every(60), missed="all")
    clock.ms += 2 * MINUTE
    await fire(there, "poll")
    kept = await raw(there, "poll")
    assert (await there.schedules.import_(lines)) == ((), ("poll",))
    assert await raw(there, "poll") == kept
    clock.ms += MINUTE
    assert (await there.schedules.import_(lines, replace=True)).put == ("poll",)
    await fire(there, "poll")
    assert await ids(there) == [f"poll@2027-01-15T08:0{minute}:00Z" for minute in (1, 2, 3)], "none again, and none is missing"
    info = await there.schedules.get("poll")
    assert (info.fired, info.runs, info.max_runs) == (3, 3, 4)
    clock.ms += 5 * MINUTE
    await fire(there, "poll")
    assert (await there.schedules.get("poll")).runs == 4, "what the other one fired counts"


@pytest.mark.promise("Schedules move")
async def test_the_number_of_shards_changes_and_schedules_go_along(sandbox: Sandbox, clock: Clock) -> None:
    async with sandbox.bus(shards=1) as opened:
        bus = clock.rule(opened)
        for number in range(20):
            await bus.schedules.put(f"poll-{number}", Poll(shop=str(number)), every(60), missed="all")
        clock.ms += MINUTE
        names = [f"poll-{number}" for number in range(20)]
        await fire(bus, *names)
        await bus.entities.purge()
        lines = await exported(bus)
        stats = await bus.stats()
        assert (stats.schedules, stats.schedules_stored) == (0, 20), "a namespace with schedules is not empty"
        await bus.entities.obliterate(confirm=sandbox.namespace)
    async with sandbox.bus(shards=1), sandbox.bus(shards=3) as follower:
        assert follower.transport.shards == 1, "what is recorded counts"
    await sandbox.clean()
    async with sandbox.bus(shards=3) as opened:
        bus = clock.rule(opened)
        await bus.schedules.import_(lines)
        clock.ms += 2 * MINUTE
        await fire(bus, *names)
        for number in range(20):
            assert await ids(bus, str(number)) == [f"poll-{number}@2027-01-15T08:0{minute}:00Z" for minute in (2, 3)]


@pytest.mark.promise("Schedules move")
async def test_workers_that_live_fire_nothing_that_is_exported(sandbox: Sandbox) -> None:
    ran: list[str] = []

    @sandbox.registry.handles(Poll)
    async def poll(command: Poll) -> None:
        ran.append(command.shop)

    async with sandbox.bus() as bus, bus.worker(), sandbox.bus() as second, second.worker():
        await bus.schedules.put("poll", Poll(shop="7"), every(0.1))
        await until(lambda: len(ran) > 2)
        lines = await exported(bus)
        await bus.wait_idle(10)
        fired = len(ran)
        assert json.loads(lines[0])["state"]["fired"] == fired
        await asyncio.sleep(0.5)
        assert len(ran) == fired
        assert (await bus.schedules.import_(lines)).put == ("poll",)
        await until(lambda: len(ran) > fired)


BAD = [
    ("no JSON", "no exported schedule"),
    ("[]", "format"),
    ('{"format": 2}', "format"),
    (lambda line: line | {"name": ""}, "name"),
    (lambda line: line | {"namespace": 7}, "namespace"),
    (lambda line: line | {"times": ["e", 0]}, "every"),
    (lambda line: line | {"times": ["c", "61 * * * *", "UTC"]}, "cron"),
    (lambda line: line | {"times": []}, "no exported schedule"),
    (lambda line: line | {"rules": line["rules"] | {"missed": "none"}}, "missed"),
    (lambda line: line | {"state": line["state"] | {"next": "soon"}}, "next"),
    (lambda line: line | {"state": line["state"] | {"next": True}}, "next"),
    (lambda line: line | {"state": line["state"] | {"fired": -1}}, "fired"),
    (lambda line: line | {"state": line["state"] | {"newer": 1}}, "newer"),
    (lambda line: line | {"state": line["state"] | {"pinned": 5}}, "under way"),
    (lambda line: line | {"state": {}}, "no exported schedule"),
    (lambda line: line | {"template": "%"}, "no exported schedule"),
    (lambda line: line | {"template": "AAAA"}, "cannot be read"),
]


@pytest.mark.parametrize(("change", "named"), BAD)
async def test_65_bad_lines_put_nothing(bus: CommandBus, change: Any, named: str) -> None:
    await bus.schedules.put("good", Poll(shop="7"), every(60))
    await bus.schedules.put("poll", Poll(shop="7"), every(60))
    lines = {json.loads(line)["name"]: line for line in await exported(bus)}
    for name in lines:
        await bus.schedules.remove(name)
    bad = change if isinstance(change, str) else json.dumps(change(json.loads(lines["poll"])))
    with pytest.raises(InvalidSettings, match=named):
        await bus.schedules.import_([lines["good"], bad])
    assert (await bus.stats()).schedules_stored == 0


def test_blocking_code_moves_them_too(sandbox: Sandbox) -> None:
    if sandbox.url is None:
        pytest.skip("a server in this process belongs to one event loop")
    with SyncCommandBus(sandbox.url, namespace=sandbox.namespace) as bus:
        bus.schedules.put("poll", Poll(shop="7"), every(60))
        lines = list(bus.schedules.export(stop=True))
        bus.schedules.remove("poll")
        assert bus.schedules.import_(lines).put == ("poll",)
        assert bus.schedules.get("poll").state == "active"
