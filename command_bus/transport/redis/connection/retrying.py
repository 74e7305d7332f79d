"""`RetryingRequests`: requests to the shards of a namespace that may be repeated, and are until the server answers or patience ends."""

from __future__ import annotations

import asyncio
from typing import Any

from command_bus.clock import mono
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.keys import KeySpace, ShardKeys
from command_bus.transport.redis.scripts import Script

__all__ = ["RetryingRequests"]


class RetryingRequests:
    """What reads and operates on a namespace has in common.

    Args:
        connections: Of this process.
        keys: The shards.
        patience: Seconds for which a request is repeated before the server counts as unavailable.
    """

    def __init__(self, connections: Connections, keys: KeySpace, *, patience: float) -> None:
        self._connections = connections
        self._keys = keys
        self._patience = patience

    async def _ask(self, shard: ShardKeys, request: Any, *args: Any) -> Any:
        """The answer to a plain request: `request(client, *args)`."""
        place = self._connections.at(shard.prefix)
        return await place.insist(lambda: place.ask(request, *args), mono() + self._patience)

    async def _run(self, shard: ShardKeys, script: Script, names: list[str], args: list[Any]) -> Any:
        """The answer of a script."""
        place = self._connections.at(shard.prefix)
        return await place.insist(lambda: place.run(script, names, args), mono() + self._patience)

    async def _everywhere(self, request: Any) -> list[Any]:
        """The answers of all shards, in their order, to `request(client, keys of the shard)`."""
        return await asyncio.gather(*(self._ask(shard, request, shard) for shard in self._keys.shards))
