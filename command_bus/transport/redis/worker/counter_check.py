"""`CounterCheck`: compares the counters of a shard with what is there, and sets wrong ones right.

It does about once an hour, and where a shard without work has a depth: who waits for an idle bus would wait in vain.
A shard is counted in one step, so it is exact; one with more than that takes is left to `command-bus recount` in a quieter time.
"""

from __future__ import annotations

import logging

from command_bus.errors import CommandBusError
from command_bus.randomness import JITTER
from command_bus.transport.redis.admin.recounts import RedisRecounts
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.errors import is_not_permitted
from command_bus.transport.redis.keys import KeySpace, ShardKeys

_log = logging.getLogger("command_bus.worker")
_PATIENCE = 2.0
_EVERY = 3600.0
"""Seconds in which the fleet counts each shard once, about."""
_MOST = 5_000
"""Mailboxes with work, and delayed commands, of a shard that workers count: the server then takes about ten milliseconds."""


class CounterCheck:
    """The counters of one shard.

    Args:
        connections: Of this process.
        keys: All shards.
        shard: This one.
    """

    def __init__(self, connections: Connections, keys: KeySpace, shard: ShardKeys) -> None:
        self._recounts = RedisRecounts(connections, keys, patience=_PATIENCE)
        self._connections = connections.at(shard.prefix)
        self._shard = shard
        self._at: float | None = None

    async def turn(self, now: float, workers: int, *, is_idle: bool = False) -> None:
        """Count if it is time, or if the depth can be seen to be wrong.

        Args:
            now: By the monotonic clock.
            workers: How many share the work.
            is_idle: Whether no entity has work.
        """
        if self._at is None:  # workers that start together count at different times
            self._at = now + _EVERY * workers * JITTER.random()
        try:
            if now < self._at and not (is_idle and self._at < float("inf") and await self._is_too_deep()):
                return
            self._at = now + _EVERY * workers * JITTER.uniform(0.8, 1.2)
            await self._count()
        except CommandBusError as error:
            if is_not_permitted(error):
                self._at = float("inf")
            _log.info("%s: the counters were not compared: %s", self._shard.prefix, error)

    async def _is_too_deep(self) -> bool:
        """Return whether the depth is more than what is delayed. Of an idle shard it is that, or a little more while follow-ups are relayed."""
        shard = self._shard
        depth = await self._connections.ask(lambda client: client.hget(shard.stats, "depth"))
        if not (depth or b"").isdigit() or int(depth) == 0:
            return False
        delayed: int = await self._connections.ask(lambda client: client.hlen(shard.delayed))
        return int(depth) > delayed

    async def _count(self) -> None:
        """Compare, and correct what is wrong; what is right is not written, so that nothing brings the keys of a deleted namespace back."""
        found = await self._recounts.recount_shard(self._shard, correct=False, most=_MOST)
        if found.stored == found.counted and found.delayed <= 0:
            return
        found = await self._recounts.recount_shard(self._shard, correct=True, most=_MOST)
        _log.warning(
            "%s: wrong counters are set right: depth was %d, and %d were counted; of %d entities the delayed commands",
            self._shard.prefix,
            found.stored,
            found.counted,
            max(found.delayed, 0),
        )
