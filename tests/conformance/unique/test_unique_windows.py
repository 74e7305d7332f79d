"""A settled command holds its key to the end of its window and no longer, whatever its entity waits for by then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import Command, CommandContext, EntityId, EntityPolicy, Limit, Rate, RetryPolicy, Snooze, Unique
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until

_WINDOW = 1.0


class Render(Command[int], entity="doc", unique=Unique("k", window=_WINDOW)):
    doc: EntityId


class Next(Command[int], entity="doc", retry=RetryPolicy(attempts=9, delay=30, jitter=0)):
    doc: EntityId
    way: str


_SLOW = {"doc": EntityPolicy(limits=(Limit(rate=Rate(1, per=30.0, burst=1), scope="entity"),))}


@pytest.mark.parametrize("way", ["paused", "snoozed", "retried", "limited", "idle"])
async def test_a_settled_command_holds_its_key_for_its_window(sandbox: Sandbox, way: str) -> None:
    options: dict[str, Any] = {"entities": _SLOW} if way == "limited" else {}
    ran: list[str] = []

    @sandbox.registry.handles(Render)
    async def render(command: Render) -> int:
        ran.append("render")
        return 1

    @sandbox.registry.handles(Next)
    async def follow(command: Next, context: CommandContext) -> int:
        ran.append(command.way)
        if command.way == "snoozed":
            raise Snooze(30)
        raise ConnectionError(command.way)

    async with sandbox.bus(**options) as bus:
        first = await bus.dispatch(Render(doc="d"))
        if way != "idle":
            await bus.dispatch(Next(doc="d", way=way))
        async with bus.worker():
            await until(lambda: len(ran) == (2 if way in ("snoozed", "retried", "paused") else 1))
            if way == "paused":
                await bus.entity("doc", "d").pause()
            assert (await bus.dispatch(Render(doc="d"))).other == first.command_id, "within its window"
            (held,) = (await bus.entity("doc", "d").unique_keys()).keys
            assert held.state == "settled"
            await asyncio.sleep(_WINDOW + 0.2)
            assert (await bus.entity("doc", "d").unique_keys()).keys == []
            again = await bus.dispatch(Render(doc="d"))
            assert (again.status, again.other) == ("accepted", None)
