"""`RedisObliteration`: deletes every key of a namespace.

First it is drained, so that nothing new is accepted, and its incarnation is closed, so that no client that was stopped in the middle of something
writes without a lease (`incarnations.py`). Then the keys go that everything else hangs on, together: what runs has lost its lease from then
on, nothing waits or is due any more, and no entry that is still there can come to life again. The others are found by SCAN and go page by page; who
agrees with whom (`meta`) goes last, and so does the closed incarnation. A call that broke off leaves a drained namespace, and is repeated.
"""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis

from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.incarnations import CLOSED, INCARNATION
from command_bus.transport.redis.keys import ShardKeys

_PAGE = 1000


class RedisObliteration(RetryingRequests):
    """Implements `Obliteration`."""

    async def begin(self, shard: int) -> int:
        """See `Obliteration`."""
        keys = self._keys.shards[shard]
        await self._ask(keys, lambda client: client.hset(keys.stats, INCARNATION, CLOSED))
        shared = [
            keys.active,
            keys.ready,
            keys.due,
            keys.delayed,
            keys.delayed_counts,
            keys.lone,
            keys.parked,
            keys.interrupts,
            keys.dead,
            keys.schedules,
            keys.fired,
        ]
        return int(await self._ask(keys, lambda client: client.unlink(*shared)))

    async def go_on(self, shard: int) -> int:
        """See `Obliteration`."""
        keys = self._keys.shards[shard]
        last = {keys.meta.encode(), keys.paused.encode(), keys.stats.encode()}
        deleted = cursor = 0
        while True:
            cursor, found = await self._ask(keys, _page, keys.prefix, cursor)
            if going := [name for name in found if name not in last]:
                deleted += int(await self._ask(keys, lambda client, names: client.unlink(*names), going))
            if not cursor:
                return deleted

    async def end(self, shard: int) -> int:
        """See `Obliteration`."""
        keys = self._keys.shards[shard]
        return int(await self._ask(keys, lambda client: client.unlink(*_rest(keys))))


async def _page(client: Redis, prefix: str, cursor: int) -> tuple[int, list[bytes]]:
    """Return the next cursor and some of the keys with a prefix. Nothing in it means something in a pattern."""
    answer: Any = await client.scan(cursor, match=f"{prefix}*", count=_PAGE)
    following, found = answer
    return int(following), [name for name in found if name.startswith(prefix.encode())]


def _rest(keys: ShardKeys) -> list[str]:
    """Return what says that the shard is drained, what its drain has written, and what all clients agree on."""
    return [keys.ready, keys.stats, keys.events, keys.arrivals, keys.workers, keys.paused, keys.meta]
