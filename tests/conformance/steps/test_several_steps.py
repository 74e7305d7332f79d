"""Steps of commands of several entities: what one step does to the lines of another in the same script."""

from __future__ import annotations

import asyncio

import pytest

from command_bus.transport.redis.mailbox_record import READY
from command_bus.transport.steps import Released, Started
from command_bus.transport.submissions import NO_DIGEST, Submission
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, done

HOME, OTHER = "box:a", "box:b"


@pytest.mark.parametrize("followed", [False, True])
async def test_a_line_that_is_looked_at_while_its_place_is_freed_shows_what_is_behind(
    harness: TransportHarness, worker: ManualWorker, followed: bool
) -> None:
    """The heads of what a script takes are read before its first step."""
    submission = Submission(HOME, "c1", b"c1", NO_DIGEST, 1000, others=((OTHER, 1000),))
    await harness.producer.enqueue_many([submission], 5)
    if followed:
        await harness.put(OTHER, "c2")
    lease, _ = await worker.start()
    activation = await harness.client.xadd(harness.shard.ready, {"e": OTHER})
    await harness.client.hset(harness.shard.active, OTHER, f"{READY}|{activation.decode()}|||0|0|")  # as a resume does
    other = await worker.read_one()
    settled, taken = await asyncio.gather(worker.do(lease, done("c1")), worker.do(other, TAKE))
    assert settled == Released("idle")
    if followed:
        assert isinstance(taken, Started)
        assert taken.envelope == b"c2"
        await worker.do(other, done("c2"))
    assert await harness.nothing_of(HOME, OTHER)
