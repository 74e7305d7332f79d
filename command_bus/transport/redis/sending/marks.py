"""`RedisMarks`: the marks of command ids."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import Redis

from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.keys import ShardKeys


class RedisMarks(RetryingRequests):
    """Implements `Marks`."""

    async def read(self, command_id: str) -> list[bytes]:
        """See `Marks`."""
        values = await asyncio.gather(*(self._mark(shard, command_id) for shard in self._keys.shards))
        return [value for value in values if value is not None]

    async def _mark(self, shard: ShardKeys, command_id: str) -> bytes | None:
        return await self._unless_odd("k", command_id, self._ask_once(shard, _get, shard.mark(command_id)), None)


def _get(client: Redis, key: str) -> Any:
    return client.get(key)
