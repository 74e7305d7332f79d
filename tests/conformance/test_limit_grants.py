"""Grants of a rule that is changed before they are used: they are compared with the rule of the moment."""

from __future__ import annotations

import pytest

from command_bus.messages.limits import Rate
from command_bus.transport.steps import Released, Started
from tests.conformance.harness import TAKE, TransportHarness
from tests.conformance.limit_bench import LimitBench

SLOW = Rate(1, per=3600.0, burst=1)
"""One start; the next in an hour."""
BOXES = ("box:a", "box:b", "box:c", "box:d")


@pytest.fixture
def bench(harness: TransportHarness) -> LimitBench:
    return LimitBench(harness)


async def test_a_grant_of_a_rate_has_no_place_of_the_rule_that_follows(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("type:box", Rate(40, burst=2))
    worker = bench.worker()
    for mailbox in BOXES:
        await harness.put(mailbox, mailbox)
    for lease in await worker.read():
        await worker.do(lease, TAKE)
    assert await bench.queue() == ["box:c", "box:d"]
    await bench.wake_until(4)
    await bench.put("type:box", concurrency=1)
    third, fourth = await worker.read()
    assert isinstance(await worker.do(third, TAKE), Started)
    assert await worker.do(fourth, TAKE) == Released("wait")
    assert await bench.places() == ["box:c"]


async def test_grants_of_places_are_no_tokens_of_the_rate_that_follows(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("type:box", concurrency=1)
    worker = bench.worker()
    for mailbox in BOXES[:3]:
        await harness.put(mailbox, mailbox)
    for lease in await worker.read():
        await worker.do(lease, TAKE)
    await bench.put("type:box", concurrency=3)
    await bench.wake_until(3)
    await bench.put("type:box", SLOW)
    second, third = await worker.read()
    assert isinstance(await worker.do(second, TAKE), Started)
    assert await worker.do(third, TAKE) == Released("wait")
