"""Sends urgent commands to a worker that has much to do, and counts what starts before each."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable

from benchmarks import protocol
from benchmarks.cases.messages import Ping, registry
from benchmarks.protocol import latencies, quantile, say
from command_bus import CommandBus

__all__ = ["lift"]

_UNDER_WAY = 500  # starts before the first urgent command


async def lift(given: argparse.Namespace, bus_of: Callable[..., CommandBus]) -> None:
    """Measure so many urgent commands, one after the other, each of an entity of its own."""
    starts = 0
    arrived, under_way = asyncio.Event(), asyncio.Event()

    def started() -> None:
        nonlocal starts
        starts += 1
        if starts == _UNDER_WAY:
            under_way.set()

    handlers = registry("noop", started, lambda _seconds: arrived.set())
    async with bus_of(given, registry=handlers) as bus, bus_of(given) as sender:
        await sender.ping()
        protocol.ready()
        async with bus.worker():
            await under_way.wait()
            ahead: list[int] = []
            times: list[float] = []
            for number in range(given.count):
                arrived.clear()
                await sender.dispatch(Ping(entity=f"urgent{number}", sent=time.monotonic()), priority="high")
                before, accepted = starts, time.monotonic()
                await arrived.wait()
                ahead.append(starts - before)
                times.append(time.monotonic() - accepted)
            say(ahead_p50=quantile(ahead, 0.5), ahead_most=max(ahead), **latencies(times))
