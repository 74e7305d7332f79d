"""Commands that are put off, in the virtual time of a test bus."""

from __future__ import annotations

import pytest

from command_bus import Command, EntityId, HandlerRegistry, RetryPolicy, Snooze
from command_bus.testing import TestBus


class Sync(Command[str], entity="shop", retry=RetryPolicy(attempts=1)):
    shop: EntityId


async def test_minutes_of_snoozes_take_no_time() -> None:
    registry = HandlerRegistry()
    asked: list[int] = []

    @registry.handles(Sync)
    async def sync(command: Sync) -> str:
        asked.append(1)
        if len(asked) <= 5:
            raise Snooze(60)
        return "done"

    async with TestBus(registry) as bus:
        await bus.dispatch(Sync(shop="s-1"), command_id="minutes")
        await bus.advance(1)
        assert len(asked) == 1
        with pytest.raises(AssertionError, match="put off for 60 s"):
            bus.assert_replied(Sync)
        await bus.run_until_idle()
        bus.assert_replied(Sync, "done", shop="s-1")
    assert len(asked) == 6
