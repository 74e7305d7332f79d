"""Unique keys of what can never run: a command whose deadline has passed holds none, from that moment on, whether or not a worker looks."""

from __future__ import annotations

import asyncio

import pytest

from command_bus import Command, CommandTimeout, EntityId, RetryPolicy, Unique
from tests.conformance.put_service import until
from tests.conformance.unique import test_unique
from tests.conformance.unique.test_unique import FIRST, LATEST, Service

pytestmark = pytest.mark.server
service = test_unique.service


class Render(Command[int], entity="doc", unique=Unique("k")):
    doc: EntityId


async def test_an_expired_command_holds_no_key(service: Service) -> None:
    """It waits, a worker will dead-letter it, and the next trigger runs: also if its entity is busy, or nobody works."""
    expired = await service.send(1, FIRST, expires=0.5)
    assert len((await service.bus.entity("doc", "d").unique_keys()).keys) == 1
    await asyncio.sleep(0.6)
    assert (await service.bus.entity("doc", "d").unique_keys()).keys == []
    taken = await service.send(2, FIRST)
    assert (taken.status, taken.other) == ("accepted", None), expired
    assert [each.command_id for each in (await service.bus.entity("doc", "d").unique_keys()).keys] == [taken.command_id]
    assert (await service.send(3, FIRST)).other == taken.command_id
    async with service.bus.worker():
        await service.bus.wait_idle(5)
    assert service.ran == [2]
    assert await service.keys() == {}


async def test_a_caller_who_has_gone_holds_no_key(service: Service) -> None:
    await service.bus.entity("doc", "d").pause()
    with pytest.raises(CommandTimeout):
        await service.bus.call(Render(doc="d"), timeout=0.1)
    await asyncio.sleep(0.1)
    assert (await service.send(2, FIRST)).status == "accepted"
    await service.bus.entity("doc", "d").resume()
    async with service.bus.worker():
        await service.bus.wait_idle(5)
    assert service.ran == [2]


async def test_the_latest_takes_an_expired_command_out_of_line(service: Service) -> None:
    expired = await service.send(1, LATEST, expires=0.05)
    await asyncio.sleep(0.1)
    latest = await service.send(2)
    assert (latest.status, latest.other) == ("replaced", expired.command_id)
    assert (await service.bus.stats()).depth == 1


async def test_what_was_started_in_time_keeps_its_key(service: Service) -> None:
    """It runs, waits for its retry or is parked: its deadline no longer counts."""
    service.gate.clear()
    service.fail = {1}
    async with service.bus.worker():
        first = await service.send(1, FIRST, expires=1)
        await service.runs(1)
        await asyncio.sleep(1.1)
        assert (await service.send(2, FIRST)).other == first.command_id, "it runs"
        service.gate.set()
        await until(lambda: test_unique._state(service, "retrying"))
        assert (await service.send(3, FIRST)).other == first.command_id, "it waits for its retry"
        await service.bus.wait_idle(5)
    assert service.ran == [1, 1]


async def test_a_dead_letter_takes_the_key_of_an_expired_command(service: Service) -> None:
    service.fail = {1}
    async with service.bus.worker():
        first = await service.send(1, FIRST, retry=RetryPolicy(attempts=1))
        await service.bus.wait_idle(5)
    await service.send(2, FIRST, expires=0.05)
    await asyncio.sleep(0.1)
    (letter,) = [each async for each in service.bus.dead_letters.list()]
    await service.bus.dead_letters.replay(letter.id)
    assert (await service.send(3, FIRST)).other == first.command_id
