"""Entities of which all that they have is delayed: operators see until when, over every server."""

from __future__ import annotations

import pytest

from command_bus import Command, EntityId
from command_bus.clock import wall_ms
from command_bus.transport.redis.admin import entities
from tests.conformance.conftest import Sandbox


class Remind(Command[int], entity="person"):
    name: EntityId


def _in_seconds(due_ms: int | None) -> float:
    assert due_ms is not None
    return (due_ms - wall_ms()) / 1000


@pytest.mark.promise("The first due time is known")
async def test_an_entity_with_delayed_commands_only_reports_when_the_first_is_due(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        ann = bus.entity("person", "ann")
        for delay in (90, 30, 60):
            await bus.dispatch(Remind(name="ann"), delay=delay, command_id=f"in-{delay}")
        found = await ann.show()
        assert (found.head, found.entity.depth) == (None, 3)
        assert [each.command_id for each in found.waiting] == ["in-30", "in-60", "in-90"]
        assert found.entity.due_ms == found.waiting[0].due_ms
        assert 20 < _in_seconds(found.entity.due_ms) <= 31
        [listed] = (await bus.entities.list()).entities
        assert listed == found.entity
        bare = await ann.show(waiting=0)
        assert (bare.waiting, bare.entity.due_ms) == ((), found.entity.due_ms)
        await ann.pause()
        paused = (await ann.show()).entity
        assert (paused.state, paused.due_ms) == ("paused", found.entity.due_ms)


async def test_what_has_a_command_in_line_is_not_delayed(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        ann = bus.entity("person", "ann")
        assert (await ann.show()).entity.due_ms is None
        await bus.dispatch(Remind(name="ann"), delay=60)
        await bus.dispatch(Remind(name="ann"))
        found = await ann.show()
        assert found.head is not None
        assert [each.due_ms for each in (found.entity, *(await bus.entities.list()).entities)] == [None, None]


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_listing_finds_the_first_of_each_among_many(
    sandbox: Sandbox, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entities, "_DUE_PAGE", 3)
    monkeypatch.setattr(entities, "_BYTES", 1)  # one command at a time
    async with sandbox.bus(shards=shards) as bus:
        for number in range(7):
            for delay in (60, 120):
                await bus.dispatch(Remind(name=f"p{number}"), delay=delay + 10 * number)
        listed = (await bus.entities.list(order="name")).entities
        assert [round(_in_seconds(each.due_ms), -1) for each in listed] == [60 + 10 * number for number in range(7)]


async def test_what_comes_far_behind_others_is_left_out_of_a_listing(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entities, "_DUE_PAGE", 2)
    monkeypatch.setattr(entities, "_FARTHEST", 2)
    async with sandbox.bus() as bus:
        for number in range(4):
            await bus.dispatch(Remind(name=f"p{number}"), delay=60 + 10 * number)
        listed = (await bus.entities.list(order="name")).entities
        assert [each.due_ms is not None for each in listed] == [True, True, False, False]
        assert (await bus.entity("person", "p3").show()).entity.due_ms is not None
