"""Schedules over every server: each tick once, whatever dies and however they are changed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import pytest

from command_bus import (
    CommandBus,
    every,
)
from command_bus.scheduling.firing import ScheduleFiring
from command_bus.transport.ports.schedules import Firing, RecordChange
from tests.conformance.conftest import Sandbox
from tests.conformance.schedules.schedule_parts import MINUTE, Clock, Killed, Poll, Stopped, Sweep, fire, ids, raw


async def test_a_tick_is_dispatched_under_its_planned_time(bus: CommandBus, clock: Clock) -> None:
    info = await bus.schedules.put("poll-7", Poll(shop="7"), every(60))
    assert (info.state, info.next_at_ms, info.fired) == ("active", clock.ms + MINUTE, 0)
    clock.ms += MINUTE + 250
    assert await fire(bus, "poll-7") == []
    assert await ids(bus) == ["poll-7@2027-01-15T08:01:00Z"]
    info = await bus.schedules.get("poll-7")
    assert (info.fired, info.last_outcome, info.last_id) == (1, "waiting", "poll-7@2027-01-15T08:01:00Z")
    assert info.next_at == datetime(2027, 1, 15, 8, 2, tzinfo=UTC)


async def test_a_schedule_without_an_entity(bus: CommandBus, clock: Clock) -> None:
    await bus.schedules.put("sweep", Sweep(), every(60))
    for _ in range(3):
        clock.ms += MINUTE
        await asyncio.gather(*(fire(bus, "sweep") for _ in range(3)))
    assert (await bus.schedules.get("sweep")).fired == 3
    assert (await bus.stats()).depth == 3


@pytest.mark.promise("Each tick fires once")
async def test_forty_nodes_put_the_same_at_once(sandbox: Sandbox, clock: Clock) -> None:
    async with AsyncExitStack() as stack:
        buses = [clock.rule(await stack.enter_async_context(sandbox.bus())) for _ in range(4)]
        puts = [buses[each % 4].schedules.put("poll", Poll(shop="7"), every(60), jitter=5) for each in range(40)]
        infos = await asyncio.gather(*puts)
        assert {info.next_at_ms for info in infos} == {clock.ms + MINUTE}
        clock.ms += 30_000
        before = await raw(buses[0], "poll")
        await asyncio.gather(*(bus.schedules.put("poll", Poll(shop="7"), every(60), jitter=5) for bus in buses))
        assert await raw(buses[0], "poll") == before, "nothing has changed"
        clock.ms += 40_000
        await asyncio.gather(*(fire(bus, "poll") for bus in buses))
        assert len(await ids(buses[0])) == 1


class Mortal:
    """A store whose process dies at random steps, before or behind them."""

    def __init__(self, store: Any, chance: random.Random) -> None:
        self._store = store
        self._chance = chance
        self.kills = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def _step(self, work: Any) -> Any:
        if self._chance.random() < 0.08:
            self.kills += 1
            work.close()
            raise Killed
        answer = await work
        if self._chance.random() < 0.08:
            self.kills += 1
            raise Killed
        await asyncio.sleep(self._chance.random() * 0.003)  # the others go on in between
        return answer

    async def read(self, names: Sequence[str]) -> Any:
        return await self._step(self._store.read(names))

    async def change(self, changes: Sequence[RecordChange]) -> Any:
        return await self._step(self._store.change(changes))

    async def fire(self, firings: Sequence[Firing]) -> Any:
        return await self._step(self._store.fire(firings))


@pytest.mark.promise("Each tick fires once")
@pytest.mark.parametrize("shards", [1, 3])
async def test_eight_workers_and_fifty_schedules_with_kills_at_every_step(sandbox: Sandbox, clock: Clock, shards: int) -> None:
    chance = random.Random(f"schedules {shards}")
    names = [f"s{number}" for number in range(50)]
    async with AsyncExitStack() as stack:
        buses = [clock.rule(await stack.enter_async_context(sandbox.bus(shards=shards))) for _ in range(8)]
        stores: list[Mortal] = []
        for name in names:
            await buses[0].schedules.put(name, Poll(shop=f"shop-{name}"), every(60), missed="all")
        for bus in buses:
            transport: Any = bus.session.transport
            transport.schedules = Mortal(transport.schedules, chance)
            stores.append(transport.schedules)

        async def work(bus: CommandBus) -> None:
            for _ in range(12):
                page = chance.sample(names, 25)
                try:
                    await ScheduleFiring(bus.session).fire_due(page)
                except Killed:
                    continue  # the next one is another process

        for _ in range(5):
            clock.ms += MINUTE
            await asyncio.gather(*map(work, buses))
        for bus, store in zip(buses, stores, strict=True):
            bus.session.transport.schedules = store._store  # type: ignore[misc]
        await fire(buses[0], *names)
        assert sum(store.kills for store in stores) > 50
        first = clock.ms - 4 * MINUTE
        ticks = [datetime.fromtimestamp((first + each * MINUTE) / 1000, UTC) for each in range(5)]
        for name in names:
            assert await ids(buses[0], f"shop-{name}") == [f"{name}@{tick:%Y-%m-%dT%H:%M:%SZ}" for tick in ticks]
            assert (await buses[0].schedules.get(name)).fired == 5


@pytest.mark.promise("All workers are down when a schedule is due")
@pytest.mark.parametrize(("missed", "fired"), [("one", 1), ("all", 5), ("skip", 1)])
async def test_all_workers_were_down_over_five_ticks(bus: CommandBus, clock: Clock, missed: Any, fired: int) -> None:
    await bus.schedules.put("poll", Poll(shop="7"), every(60), missed=missed)
    clock.ms += 5 * MINUTE + 20_000
    await fire(bus, "poll")
    found = await ids(bus)
    assert len(found) == fired
    assert found == sorted(found)
    assert found[-1].endswith("08:05:00Z")
    assert (await bus.schedules.get("poll")).left_out == 5 - fired


async def test_a_change_while_a_tick_is_under_way(bus: CommandBus, clock: Clock) -> None:
    """The tick that is pinned fires as it was; what is put holds from the next one on."""
    await bus.schedules.put("poll", Poll(shop="7", note="old"), every(60))
    clock.ms += MINUTE
    engine = Stopped(bus)
    stopped = await engine.pin("poll")
    assert (await bus.schedules.get("poll")).state == "firing"
    info = await bus.schedules.put("poll", Poll(shop="7", note="new"), every(30))
    assert info.fired == 1, "ended first"
    assert info.next_at_ms == clock.ms + 30_000
    assert await engine.go_on(stopped) == ["="], "the worker that comes late is refused"
    clock.ms += 30_000
    await fire(bus, "poll")
    assert await ids(bus) == ["poll@2027-01-15T08:01:00Z", "poll@2027-01-15T08:01:30Z"]


@pytest.mark.promise("No firing after a change")
@pytest.mark.parametrize("act", ["pause", "remove", "put"])
async def test_nothing_fires_behind_a_change(bus: CommandBus, clock: Clock, act: str) -> None:
    await bus.schedules.put("poll", Poll(shop="7"), every(60))
    clock.ms += MINUTE
    engine = Stopped(bus)
    stopped = await engine.pin("poll")
    if act == "pause":
        await bus.schedules.pause("poll", "why")
    elif act == "remove":
        await bus.schedules.remove("poll")
        await bus.schedules.put("poll", Poll(shop="7"), every(60))  # another one of this name
    else:
        await bus.schedules.put("poll", Poll(shop="8"), every(60))
    before = (await bus.stats()).accepted
    answers = await engine.go_on(stopped)
    assert answers[0] in "=u"
    assert (await bus.stats()).accepted == before == 1
