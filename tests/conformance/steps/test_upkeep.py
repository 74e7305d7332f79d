"""The workers' repair visits all mailboxes in about five minutes, for any number of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from command_bus.errors import TransportUnavailable
from command_bus.transport.redis.maintenance.upkeep import Upkeep
from tests.conformance.conftest import SINGLE, Sandbox
from tests.conformance.harness import TransportHarness, transport_harness

MAILBOXES = 5000


@pytest.fixture
async def harness(sandbox: Sandbox) -> AsyncIterator[TransportHarness]:
    async with transport_harness(sandbox.clients, sandbox.namespace) as harness:
        yield harness


@pytest.mark.parametrize("workers", [1, 4])
async def test_a_round_reaches_every_entity_in_its_time(sandbox: Sandbox, harness: TransportHarness, workers: int) -> None:
    if sandbox.name not in SINGLE:
        pytest.skip("it is the hash that is tried: not that of fakeredis, and the others' is the same")
    for start in range(0, MAILBOXES, 250):
        await harness.put(f"box:{start}", f"c{start}")
        for number in range(start + 1, start + 250):
            # As dispatched: thousands of commands would take longer, and the repair looks at nothing else.
            await harness.client.hset(harness.shard.active, f"box:{number}", "w||||0|0|")  # type: ignore[misc]
    await harness.client.delete(harness.shard.ready)
    await harness.client.xgroup_create(harness.shard.ready, "workers", id="0", mkstream=True)
    for number in range(workers):
        await harness.client.xgroup_createconsumer(harness.shard.ready, "workers", f"w{number}")
    upkeep = Upkeep(harness.connections, harness.keys, harness.shard, worker="w0", lease=30.0)
    seconds, longest, pages, rounds = 0.0, 0.0, 0, 0
    while rounds < 2:
        pause = await upkeep.turn()
        pages += 1
        if rounds == 1:  # the first one begins anywhere
            seconds, longest = seconds + pause, max(longest, pause)
        rounds += upkeep._cursor == 0
        assert pages < MAILBOXES
    assert 250 * workers < seconds < 350 * workers, "the others do their part"
    assert longest < 60.0 * workers
    assert len(await harness.activations()) == MAILBOXES // 250


async def test_who_waits_for_a_limit_is_looked_at_sooner(harness: TransportHarness) -> None:
    """The first shard is asked about them, and costs the others nothing if it is away."""
    told: list[str] = []
    away = False

    async def limited(mailboxes: Sequence[str]) -> None:
        if away:
            raise TransportUnavailable("away")
        told.extend(mailboxes)

    upkeep = Upkeep(harness.connections, harness.keys, harness.shard, worker="w0", lease=30.0, limited=limited)
    await harness.put("box:a", "a1")
    assert await upkeep.turn() > 10.0
    assert told == []
    await harness.client.hset(harness.shard.active, "box:b", "l||||0|0|")  # type: ignore[misc]
    assert await upkeep.turn() < 10.0
    assert told == ["box:b"]
    away = True
    assert await upkeep.turn() < 10.0
    assert told == ["box:b"]
    await harness.client.hdel(harness.shard.active, "box:b")  # type: ignore[misc]
    assert await upkeep.turn() > 10.0
