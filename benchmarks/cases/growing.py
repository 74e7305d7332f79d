"""The program behind `growth`: what a command costs on top of a backlog of a given size, reported round by round.

One process sends and works, in turns: a round dispatches `count` commands on top of the backlog, then a worker handles as many and
stops. So the backlog is the same in each round, and processor time belongs to one of the two. The first round warms up.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from typing import Any

import redis.asyncio

from benchmarks import protocol
from benchmarks.cases.messages import Note, note
from benchmarks.protocol import say
from command_bus import CommandBus, HandlerRegistry

__all__ = ["grow"]

_BATCH = 1000


async def _redis_seconds(client: Any) -> float:
    """Return the server's processor seconds so far. Not `commandstats`: those go by the clock, and a busy machine would bend the curve."""
    info = await client.info("cpu")
    return float(info["used_cpu_sys"]) + float(info["used_cpu_user"])


class _Turn:
    """Counts the commands of one worker's turn."""

    def __init__(self) -> None:
        self._left, self._done = 0, asyncio.Event()
        self._first = 0.0

    def begin(self, count: int) -> None:
        self._left, self._done, self._first = count, asyncio.Event(), 0.0

    async def handle(self, command: Note) -> int:
        self._first = self._first or time.process_time()
        self._left -= 1
        if not self._left:
            self._done.set()
        return command.number

    async def spent(self) -> float:
        """Wait for the last command; return processor seconds since the first."""
        await asyncio.wait_for(self._done.wait(), 120)
        return time.process_time() - self._first


async def _send(bus: CommandBus, first: int, count: int, entities: int) -> None:
    for start in range(first, first + count, _BATCH):
        numbers = range(start, min(start + _BATCH, first + count))
        await bus.dispatch_batch([note(number, entities) for number in numbers])


async def grow(given: argparse.Namespace, bus_of: Callable[..., CommandBus]) -> None:
    """Fill up to the backlog, then measure rounds; print one line a round."""
    turn, registry = _Turn(), HandlerRegistry()
    registry.handles(Note)(turn.handle)
    client: Any = redis.asyncio.Redis.from_url(given.url, decode_responses=True)
    async with bus_of(given, registry=registry) as bus:
        await _send(bus, 0, given.backlog, given.entities)
        protocol.ready()
        for number in range(given.rounds + 1):
            row = await _round(bus, client, turn, given, given.backlog + number * given.count)
            if number:
                say(**row)
    await client.aclose()


async def _round(bus: CommandBus, client: Any, turn: _Turn, given: argparse.Namespace, first: int) -> dict[str, float]:
    each = 1e6 / given.count
    redis_began, began = await _redis_seconds(client), time.process_time()
    await _send(bus, first, given.count, given.entities)
    row = {"dispatch_python_us": (time.process_time() - began) * each}
    redis_between = await _redis_seconds(client)
    row["dispatch_redis_us"] = (redis_between - redis_began) * each
    turn.begin(given.count)
    async with bus.worker(concurrency=given.concurrency):
        row["drain_python_us"] = await turn.spent() * each
    row["drain_redis_us"] = (await _redis_seconds(client) - redis_between) * each
    return row
