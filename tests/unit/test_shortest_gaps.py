"""The shortest time between two ticks, within which their jitter has to be."""

from __future__ import annotations

import math
from typing import Any

import pytest

from command_bus import Command, CommandBus, EntityId, InvalidSettings, cron, every
from command_bus.messages.schedule_specs import shortest_gap
from command_bus.transport.redis.memory import MemoryClients

MINUTE, HOUR = 60_000, 3_600_000


class Poll(Command[None], entity="shop"):
    shop: EntityId


@pytest.mark.parametrize(
    ("spec", "gap"),
    [
        (every(0.5), 500),
        (cron("* * * * *"), MINUTE),
        (cron("0,1 2 * * *"), MINUTE),
        (cron("0 2 * * *"), 24 * HOUR),
        (cron("0 2 * * *", tz="Europe/Berlin"), 23 * HOUR),
        (cron("0 0 29 2 *"), math.inf),
        (cron("0 9 1,15 * MON"), 24 * HOUR),
    ],
)
def test_the_shortest_gap(spec: Any, gap: float) -> None:
    assert shortest_gap(spec) == gap or (gap is math.inf and shortest_gap(spec) >= 1_000 * 24 * HOUR)


@pytest.mark.parametrize(("spec", "jitter"), [(cron("*/5 * * * *"), 300), (cron("0,1 2 * * *"), 90), (every(30), 30)])
async def test_a_jitter_beyond_that_is_refused(spec: Any, jitter: float) -> None:
    """Ticks would overtake one another, and those behind are lost."""
    async with CommandBus(clients=MemoryClients()) as bus:
        with pytest.raises(InvalidSettings, match="between two ticks"):
            await bus.schedules.put("poll", Poll(shop="1"), spec, jitter=jitter)
        await bus.schedules.put("poll", Poll(shop="1"), spec, jitter=jitter - 31 if jitter > 31 else 29)
