"""Schedules, timed pauses and delayed commands with the rights of each role, on a real server with an ACL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from command_bus import CommandBusError, every
from tests.conformance.conftest import Starter
from tests.conformance.put_service import until
from tests.security.acl_users import Place, Work, made


@pytest.fixture(params=["selectors", "patterns"])
async def place(request: pytest.FixtureRequest, binary: Path, start: Starter) -> AsyncIterator[Place]:
    async with made(start(tcp=True, binary=binary), selectors=request.param == "selectors") as found:
        yield found


async def test_workers_and_operators_do_all_that_is_theirs(place: Place) -> None:
    async with place.bus("operator") as operator, place.bus("worker") as workers, workers.worker():
        await operator.schedules.put("work", Work(line="s", number=1), every(0.2), overlap="replace")
        await workers.schedules.put("mine", Work(line="t", number=1), every(0.2), overlap="skip", max_runs=2)
        await until(lambda: fired(operator))
        assert await operator.schedules.pause("work", "why")
        assert await operator.schedules.resume("work")
        await operator.schedules.trigger("work")
        assert await operator.entities.of("line").pause("moving", until=1.0)
        await asyncio.sleep(0.5)
        assert await operator.schedules.pause("work")
        await operator.schedules.remove("work")
        await workers.schedules.remove("mine")
        await until(lambda: running(operator))
        receipt = await workers.dispatch(Work(line="u", number=1), at=datetime.now(UTC) + timedelta(hours=1))
        assert [each.command_id async for each in operator.commands.delayed()] == [receipt.command_id]
        assert await operator.commands.reschedule(receipt.command_id, delay=0)
        await operator.wait_idle(10)
        assert [each async for each in operator.schedules.list()] == []
    assert await place.denied() == []


async def fired(bus: object) -> bool:
    stats = await bus.stats()  # type: ignore[attr-defined]
    return bool(stats.fired > 3)


async def running(bus: object) -> bool:
    return not await bus.entities.holds()  # type: ignore[attr-defined]


async def test_producers_touch_no_schedule(place: Place) -> None:
    async with place.bus("operator") as operator, place.bus("producer") as producer:
        await operator.schedules.put("work", Work(line="s", number=1), every(3600))
        for attempt in (
            producer.schedules.put("other", Work(line="s", number=1), every(3600)),
            producer.schedules.get("work"),
            producer.schedules.remove("work"),
            producer.schedules.trigger("work"),
        ):
            with pytest.raises(CommandBusError):
                await attempt
        assert [each.name async for each in operator.schedules.list()] == ["work"]
        await operator.schedules.remove("work")
