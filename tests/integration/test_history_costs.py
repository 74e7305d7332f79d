"""Costs of a history: what a command pays for its end, in commands that the scripts call. Without a history test_costs.py says what it pays."""

from __future__ import annotations

import pytest

from command_bus import CommandBus, History
from command_bus.embedded import EmbeddedServer
from command_bus.messages.history import HistoryChoice
from tests.integration.test_costs import COUNT, NAMESPACE, Meter, Spent, meter, notes, registry, server

__all__ = ["meter", "server"]

pytestmark = [pytest.mark.server]


async def drained(server: EmbeddedServer, meter: Meter, history: HistoryChoice) -> Spent:
    bus = CommandBus(server.url, namespace=NAMESPACE, registry=registry, max_depth=COUNT, history=history)
    async with bus:
        await bus.dispatch_batch(notes(1000))
        meter.begin()
        async with bus.worker(concurrency=100):
            await bus.wait_idle(60)
        return meter.spent(COUNT)


@pytest.mark.parametrize(("number", "most"), [(COUNT, 7.5), (100, 11.5)])
async def test_an_end_costs_no_request_and_few_commands(server: EmbeddedServer, meter: Meter, number: int, most: float) -> None:
    """The entry and its id, the oldest entry and how many there are, the time to live of both keys; if it is full, one goes."""
    plain = await drained(server, meter, False)
    kept = await drained(server, meter, History("1 h", number))
    names = ("xadd", "xdel", "xrange", "xlen", "hget", "hset", "hdel", "pttl", "pexpire")
    assert kept.inside(*names) - plain.inside(*names) <= most
    assert plain.inside("pttl") == 0
    assert kept.requests <= plain.requests + 0.05
    assert kept.received - plain.received <= 330, "the record, its bounds, and the option of the envelope"
