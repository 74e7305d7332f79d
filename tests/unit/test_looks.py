"""Polls of an idle worker on its shards: the cost has a limit for any number of shards."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from command_bus.clock import mono
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.maintenance.periodic import Beat
from command_bus.transport.redis.maintenance.worker_side import Maintenance
from command_bus.transport.redis.memory import MemoryClients
from command_bus.transport.redis.ready_stream import ensure_ready
from command_bus.transport.redis.worker.lease_keeper import LeaseKeeper
from command_bus.transport.redis.worker.step_batcher import LineUse, StepBatcher
from command_bus.transport.steps import GiveBack


async def beats(shards: int, lease: float) -> tuple[Beat, Beat]:
    """Return when an idle worker looks at its shards at the latest: for leases that are over, and for due work."""
    pytest.importorskip("fakeredis")
    connections = Connections(MemoryClients())
    keys = KeySpace(f"looks-{secrets.token_hex(4)}", shards)
    try:
        await asyncio.gather(*(ensure_ready(connections, shard) for shard in keys.shards))
        steps = StepBatcher(connections, keys, worker="w", reply_ttl=60)
        leases = LeaseKeeper(connections, keys, worker="w", lease=lease, heartbeat=lambda _: b"")
        jobs = Maintenance(connections, keys, leases, steps, lambda *_: GiveBack(counts=True), line=LineUse())
        for found in ([each.beat for each in jobs.watches], [each.beat for each in jobs.due]):
            assert len(found) == shards
            assert len(set(map(id, found))) == 1, "all shards at one moment"
        pauses = [await each.turn() for each in (*jobs.watches, *jobs.due)]
        assert max(pauses) <= 1.21 * max(1.0, shards / 64)
        return jobs.watches[0].beat, jobs.due[0].beat
    finally:
        await connections.close()


@pytest.mark.parametrize(("shards", "each"), [(1, 1.0), (8, 1.0), (256, 4.0)])
async def test_all_shards_together_are_polled_sixty_times_a_second(shards: int, each: float) -> None:
    for beat in await beats(shards, lease=30.0):
        lengths = [beat.left(mono() + 100 * number) for number in range(1, 100)]
        assert each * 0.79 <= min(lengths) <= max(lengths) <= each * 1.21
        assert shards * len(lengths) / sum(lengths) < 70


async def test_a_short_lease_is_looked_at_four_times_whatever_the_shards() -> None:
    watches, _ = await beats(256, lease=2.0)
    assert watches.left(mono() + 100) <= 2.0 / 4 * 1.21
