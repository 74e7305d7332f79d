"""Many entities behind one limit: its rate is used up, in the order of the refusals, with hardly more wake-ups than starts."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from command_bus import Command, CommandBus, EntityId, EntityPolicy, HandlerRegistry, Limit, Rate
from command_bus.embedded import EmbeddedServer
from command_bus.transport.redis.keys import ShardKeys

pytestmark = [pytest.mark.server]

PER_SECOND, ENTITIES = 400, 1000
registry = HandlerRegistry()
starts: list[tuple[float, int]] = []


class Visit(Command[None], entity="shop"):
    shop: EntityId
    number: int


@registry.handles(Visit)
async def visit(command: Visit) -> None:
    starts.append((time.monotonic(), command.number))


async def test_many_entities_behind_one_rate() -> None:
    starts.clear()
    limit = Limit(rate=Rate(PER_SECOND, burst=1), scope="type")  # 50 ms of its rate
    with EmbeddedServer.start() as server:
        client: Any = redis.Redis.from_url(server.url, protocol=2)
        async with CommandBus(server.url, registry=registry, entities={"shop": EntityPolicy(limits=(limit,))}) as bus:
            async with bus.worker(concurrency=50):
                await bus.dispatch_batch(Visit(shop=f"s{number}", number=number) for number in range(ENTITIES))
                await bus.wait_idle(60)
            added = client.xinfo_stream(ShardKeys("command_bus", 0).ready)["entries-added"]
    assert len(starts) == ENTITIES
    took = starts[-1][0] - starts[0][0]
    burst = 20
    assert took >= (ENTITIES - burst) / PER_SECOND * 0.99, "starts ≤ rate × time + burst"
    assert took <= (ENTITIES - burst) / PER_SECOND * 1.5, "the rate is used, also on a busy machine"
    waited = [number for _, number in starts[burst:]]
    assert sum(abs(place - number) for place, number in enumerate(waited, burst)) / len(waited) < 60, "first come, first served"
    dispatched = ENTITIES
    woken = added - dispatched
    assert woken < 1.1 * ENTITIES + took * 60, "an activation for each start, and ticks"
