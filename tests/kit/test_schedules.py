"""Schedules in virtual time: minutes in a moment, a server's clock that jumps, workers that crash."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import pytest

from command_bus import Command, CommandContext, EntityId, HandlerRegistry, Unique, cron, every
from command_bus.testing import TestBus
from command_bus.testing.simulated.live import LiveServer, Process
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until


class Close(Command[None], entity="ledger"):
    ledger: EntityId


class Sync(Command[None], entity="shop", unique=Unique(wins="latest")):
    shop: EntityId


registry = HandlerRegistry()
ran: list[str] = []


@registry.handles(Close)
async def close(command: Close, context: CommandContext) -> None:
    ran.append(context.command_id)


@registry.handles(Sync)
async def sync(command: Sync, context: CommandContext) -> None:
    ran.append(context.command_id)


@pytest.fixture(autouse=True)
def forget() -> None:
    ran.clear()


async def test_minutes_in_virtual_time() -> None:
    async with TestBus(registry) as bus:
        schedules = bus.bus.schedules
        await schedules.put("close", Close(ledger="main"), cron("*/5 * * * *", tz="Europe/Berlin"))
        planned = [f"close@{each:%Y-%m-%dT%H:%M:%SZ}" for each in await schedules.next("close", 4)]
        await bus.advance(1200)
        assert ran == planned
        assert (await schedules.get("close")).late == 0


async def test_a_firing_has_no_unique_key() -> None:
    """Its schedule's `overlap` says what happens while one waits."""
    async with TestBus(registry) as bus:
        await bus.bus.schedules.put("sync", Sync(shop="a"), every(60), overlap="queue")
        await bus.bus.entity("shop", "a").pause("closed")
        await bus.advance(200)
        assert (await bus.bus.stats()).depth == 3
        await bus.bus.entity("shop", "a").resume()
        await bus.bus.schedules.pause("sync")
        await bus.run_until_idle()
        assert (await bus.bus.stats()).dead_letters == 0
    assert len(ran) == len(set(ran)) == 3


async def test_run_until_idle_does_not_wait_for_ticks_to_come() -> None:
    async with TestBus(registry) as bus:
        await bus.bus.schedules.put("close", Close(ledger="main"), every(3600), immediately=True)
        await bus.advance(1)
        await bus.run_until_idle()
        assert len(ran) == 1
        assert (await bus.bus.stats()).delayed == 0
        assert (await bus.bus.stats()).schedules == 1


async def test_workers_that_crash_fire_each_tick_once() -> None:
    async with TestBus(registry, workers=3) as bus:
        await bus.bus.schedules.put("close", Close(ledger="main"), every(10), missed="all")
        for point in ("claimed", "handled", "settled"):
            bus.crash_after(point, Close, nth=2, times=2)
        await bus.advance(300)
        await bus.run_until_idle()
        assert len(set(ran)) == 30
        assert list(dict.fromkeys(ran)) == sorted(set(ran))


@pytest.mark.promise("Clocks jump ahead and back")
@pytest.mark.parametrize("jump", [-3600.0, 3600.0 * 24])
async def test_a_servers_clock_that_jumps(jump: float) -> None:
    """Back by an hour: no tick is repeated. A day ahead: nothing fires that is to come."""
    server = LiveServer(time.monotonic)
    sandbox = Sandbox("memory", Process(server))
    found: list[str] = []

    @sandbox.registry.handles(Close)
    async def close(command: Close, context: CommandContext) -> None:
        found.append(context.command_id)

    async with sandbox.bus() as bus, bus.worker():
        # The simulated server's clock begins anywhere; the workers' own is only smaller where it is mistrusted.
        await bus.schedules.put("close", Close(ledger="main"), every(0.3), missed="all")
        await until(lambda: len(found) >= 2)
        before = len(found)
        server.jump(jump)
        await asyncio.sleep(1.2)
        assert found == sorted(set(found))
        assert len(found) - before <= 6 + 1000 * (jump > 0), "no storm of what lies in the future"


def test_the_zone_is_the_patterns() -> None:
    at = cron("30 9 1 12 *", tz="Europe/Berlin").after(int(datetime(2026, 6, 1, tzinfo=UTC).timestamp() * 1000), 0)
    assert at == int(datetime(2026, 12, 1, 8, 30, tzinfo=UTC).timestamp() * 1000)
