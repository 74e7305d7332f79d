"""`RedisMarks`: the marks of command ids."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import Redis

from command_bus.errors import UnsuitableServer
from command_bus.serialization.odd_values import pass_over
from command_bus.transport.redis.connection.errors import is_of_a_value
from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.keys import ShardKeys

__all__ = ["RedisMarks"]


class RedisMarks(RetryingRequests):
    """Implements `Marks`."""

    async def read(self, command_id: str) -> list[bytes]:
        """See `Marks`."""
        values = await asyncio.gather(*(self._mark(shard, command_id) for shard in self._keys.shards))
        return [value for value in values if value is not None]

    async def _mark(self, shard: ShardKeys, command_id: str) -> bytes | None:
        try:
            value: bytes | None = await self._ask_once(shard, _get, shard.mark(command_id))
        except UnsuitableServer as error:
            if not is_of_a_value(error):
                raise
            pass_over("k", command_id, error)
            return None
        return value


def _get(client: Redis, key: str) -> Any:
    return client.get(key)
