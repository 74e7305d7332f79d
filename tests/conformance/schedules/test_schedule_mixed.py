"""A rolling deploy: workers of the release before, which know no schedules, beside new ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from command_bus import CommandBus, CommandContext, every
from command_bus.transport.redis.transport import RedisTransport
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until
from tests.conformance.schedules.schedule_parts import Poll


@asynccontextmanager
async def worker_before(sandbox: Sandbox) -> AsyncIterator[CommandBus]:
    """Return a worker as of the release before: of what becomes due it knows retries and delayed commands alone."""
    async with sandbox.bus() as bus:
        transport: Any = bus.session.transport

        def side(options: Any) -> Any:
            return RedisTransport.worker_side(transport, replace(options, schedules=None))

        transport.worker_side = side
        async with bus.worker():
            yield bus


def planned(command_id: str) -> datetime:
    return datetime.fromisoformat(command_id.partition("@")[2])


def handled(sandbox: Sandbox) -> list[str]:
    """Return the list of commands as they run."""
    ran: list[str] = []

    @sandbox.registry.handles(Poll)
    async def poll(command: Poll, context: CommandContext) -> None:
        ran.append(context.command_id)

    return ran


@pytest.mark.promise("Older workers leave schedules alone")
async def test_a_worker_that_knows_no_schedules_deletes_none(sandbox: Sandbox) -> None:
    ran = handled(sandbox)
    async with worker_before(sandbox) as bus:
        await bus.schedules.put("poll", Poll(shop="7"), every(0.1), missed="all")
        await bus.dispatch(Poll(shop="8"), delay=0.3, command_id="delayed")
        await until(lambda: ran)
        await asyncio.sleep(1.2)
        assert ran == ["delayed"], "what it knows comes on time, behind ticks that are due"
        assert await bus.session.transport.schedules.due_at(["poll"]) != [None]
        async with sandbox.bus() as new, new.worker():
            await until(lambda: len(ran) > 12)
            assert (await new.schedules.get("poll")).left_out == 0


@pytest.mark.promise("Older workers leave schedules alone")
async def test_ticks_fire_once_whichever_worker_is_first(sandbox: Sandbox) -> None:
    ran = handled(sandbox)
    async with worker_before(sandbox), sandbox.bus() as bus, bus.worker(), worker_before(sandbox):
        for number in range(5):
            await bus.schedules.put(f"poll-{number}", Poll(shop=str(number)), every(0.1), missed="all")
        sent = [f"{number}" for number in range(60)]
        for command_id in sent:
            await bus.dispatch(Poll(shop="plain"), command_id=command_id)
            await asyncio.sleep(0.01)
        await until(lambda: len(ran) > 120)
        for number in range(5):
            await bus.schedules.pause(f"poll-{number}")
        await bus.wait_idle(10)
        fired = sum([each.fired async for each in bus.schedules.list()])
        assert len(ran) == len(set(ran)) == fired + len(sent), "each runs once"
        assert [each for each in ran if each in sent] == sent
        for number in range(5):
            mine = [each for each in ran if each.startswith(f"poll-{number}@")]
            assert mine == sorted(mine, key=planned)
        assert (await bus.stats()).dead_letters == 0
