"""`Upkeep`: what workers do for a shard beside its work: they mend mailboxes that lost their activation, and forget workers that were lost.

A mailbox may lose its activation (its entry in the ready stream) with data that the server lost or somebody deleted, or if whoever resumed
it died on the way: nobody would ever look at it. So all are looked at, a page at a time, and the whole fleet gets through them in about
five minutes, whatever their number. How much of all a page was, its cursors tell, and so how long to pause; with many workers each is
slower. They begin anywhere, so that their ways through differ.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from command_bus.clock import mono
from command_bus.randomness import JITTER
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.keys import GROUP, ShardKeys
from command_bus.transport.redis.ready_stream import repair_page
from command_bus.transport.redis.scripts import REMOVE_WORKER
from command_bus.transport.redis.worker.periodic import run_periodically

__all__ = ["Upkeep", "part_between"]

_log = logging.getLogger("command_bus.worker")
_ROUND = 300.0
"""Seconds in which the fleet looks at every mailbox that has work."""
_LONGEST_PAUSE, _SHORTEST_PAUSE = 60.0, 0.02
_SWEEP = 60.0
_TOLD_OF = 3600.0
"""Seconds for which a lost worker is told of, at least: who is called at night comes later than ten of the shortest leases."""


def part_between(cursor: int, following: int) -> float:
    """The part of a hash table that HSCAN went through from one cursor to the next, which is 0 at the end.

    A cursor counts with its lowest bit as the highest: the bits in reverse are the part that lies behind it, whatever the table's size.
    """
    return (_behind(following) if following else 1.0) - _behind(cursor)


def _behind(cursor: int) -> float:
    return int(f"{cursor:064b}"[:-65:-1], 2) / 2**64


class Upkeep:
    """One shard's.

    Args:
        connections: To its server.
        keys: Of the shard.
        owner: This worker's consumer name.
        lease: Seconds that a lease lives.
    """

    def __init__(self, connections: Connections, keys: ShardKeys, *, owner: str, lease: float) -> None:
        self._connections = connections
        self._keys = keys
        self._owner = owner
        self._lease = lease
        self._cursor = JITTER.getrandbits(32)
        self._sweep_at = 0.0
        self._workers = 1

    async def run(self) -> None:
        """See to the shard for ever."""
        await run_periodically(self.turn, asyncio.Event(), f"{self._keys.prefix} upkeep", self._connections.outage)

    async def turn(self) -> float:
        """Look at a page of mailboxes, and now and then at the workers: the seconds until the next."""
        now = mono()
        if now >= self._sweep_at:
            self._sweep_at = now + max(_SWEEP, self._lease * 2) * JITTER.uniform(0.8, 1.2)
            await self._forget_lost()
        part = await self._repair()
        return min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, _ROUND * self._workers * part)) * JITTER.uniform(0.8, 1.2)

    async def _repair(self) -> float:
        """See to a page; the part of all that it was."""
        cursor = self._cursor
        self._cursor, repaired = await repair_page(self._connections, self._keys, cursor)
        if repaired:
            _log.warning("%s: %d mailboxes had lost their activation and got a new one", self._keys.ready, repaired)
        return part_between(cursor, self._cursor)

    async def _forget_lost(self) -> None:
        """Forget workers that have been silent for an hour and ten leases, and hold nothing; count those that live."""
        consumers: Any = await self._connections.ask(lambda client: client.xinfo_consumers(self._keys.ready, GROUP))
        limit_ms = max(_TOLD_OF, self._lease * 10) * 1000
        self._workers = max(1, sum(consumer["idle"] <= self._lease * 1000 for consumer in consumers))
        for consumer in consumers:
            name = consumer["name"].decode()
            if name != self._owner and consumer["pending"] == 0 and consumer["idle"] > limit_ms:
                await self._connections.run(REMOVE_WORKER, [self._keys.ready, self._keys.workers], [GROUP, name])
