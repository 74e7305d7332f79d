"""Purging many small mailboxes does not wait for each; purging deep ones reads no more at once than one of them has in a page."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import Command, CommandBus, EntityId
from command_bus.sending.waiting import grouped
from command_bus.transport.redis.scripts import REMOVE, Script
from tests.conformance.conftest import Sandbox


class Add(Command[None], entity="sum"):
    name: EntityId
    number: int


class Removals:
    """Counts the mailboxes that are being emptied at the same time."""

    def __init__(self, bus: CommandBus, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self._now = 0
        place = bus.session.redis.connections.at(bus.session.redis.keys.shards[0].prefix)
        self._run = place.run
        monkeypatch.setattr(place, "run", self._counted)

    async def _counted(self, script: Script, keys: list[str], args: list[Any]) -> Any:
        if script is not REMOVE:
            return await self._run(script, keys, args)
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            await asyncio.sleep(0)  # the server in memory answers at once
            return await self._run(script, keys, args)
        finally:
            self._now -= 1


@pytest.mark.parametrize(("entities", "depth", "at_once"), [(200, 1, 64), (200, 3, 21), (4, 150, 1)])
async def test_small_mailboxes_are_emptied_together(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, entities: int, depth: int, at_once: int
) -> None:
    async with sandbox.bus() as bus:
        await bus.dispatch_batch(Add(name=f"n{number % entities}", number=number) for number in range(entities * depth))
        removals = Removals(bus, monkeypatch)
        assert await bus.entities.purge() == entities * depth
        assert removals.most <= at_once
        assert removals.most >= min(at_once, 10)
        assert (await bus.stats()).depth == 0


def test_groups_have_so_many_commands_or_are_one_mailbox() -> None:
    depths = {"a": 1, "b": 1, "deep": 500, "c": 40, "d": 24, "e": 1, "unknown": 0}
    assert list(grouped(depths)) == [["a", "b"], ["deep"], ["c", "d"], ["e", "unknown"]]
    assert list(grouped({})) == []
