"""Polls of an idle worker on its shards: the cost has a limit for any number of shards."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.maintenance.worker_side import Maintenance
from command_bus.transport.redis.memory import MemoryClients
from command_bus.transport.redis.ready_stream import ensure_ready
from command_bus.transport.redis.worker.lease_keeper import LeaseKeeper
from command_bus.transport.redis.worker.step_batcher import LineUse, StepBatcher
from command_bus.transport.steps import GiveBack


async def pauses(shards: int, lease: float) -> tuple[list[float], list[float]]:
    """Return the seconds until the next look of an idle worker at each shard: for leases that are over, and for due work."""
    pytest.importorskip("fakeredis")
    connections = Connections(MemoryClients())
    keys = KeySpace(f"looks-{secrets.token_hex(4)}", shards)
    try:
        await asyncio.gather(*(ensure_ready(connections, shard) for shard in keys.shards))
        steps = StepBatcher(connections, keys, worker="w", reply_ttl=60)
        leases = LeaseKeeper(connections, keys, worker="w", lease=lease, heartbeat=lambda _: b"")
        recovery = Maintenance(connections, keys, leases, steps, lambda *_: GiveBack(counts=True), line=LineUse())
        return [await watch.turn() for watch in recovery.watches], [await due.turn() for due in recovery.due]
    finally:
        await connections.close()


@pytest.mark.parametrize(("shards", "each"), [(1, 1.0), (8, 1.0), (256, 4.0)])
async def test_all_shards_together_are_polled_sixty_times_a_second(shards: int, each: float) -> None:
    watches, due = await pauses(shards, lease=30.0)
    for found in (watches, due):
        assert all(each * 0.79 <= pause <= each * 1.21 for pause in found)
        assert sum(1 / pause for pause in found) < 70


async def test_a_short_lease_is_looked_at_four_times_whatever_the_shards() -> None:
    watches, _ = await pauses(256, lease=2.0)
    assert max(watches) <= 2.0 / 4 * 1.21
