"""`LineUse`: whether the line of a shard is in use, as a worker knows it.

The keys of the line are named in a worker's requests only where it is: who uses neither classes nor shares pays nothing for them. A worker
looks once a second, in a request that it sends anyway. Until then it makes activations as if there was no line, which is harmless:
fill_line.lua brings what is too much back into the line.
"""

from __future__ import annotations

from command_bus.serialization.odd_values import pass_over
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.keys import GROUP, ShardKeys
from command_bus.transport.redis.scripts import FILL_LINE

_MOST = 500
"""Activations that one script brings back: a few milliseconds."""
_NONE: tuple[str, ...] = ()


class LineUse:
    """The knowledge of a worker about the lines of all shards."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def keys(self, keys: ShardKeys) -> tuple[str, ...]:
        """Return the keys of a shard's line that a request names: none if the line is not in use."""
        return keys.fair if keys.prefix in self._used else _NONE

    async def seen(self, connections: Connections, keys: ShardKeys, *, in_use: bool) -> None:
        """Note whether the line is in use; if so fill the ready stream up, and bring back what it has too much.

        Raises:
            CommandBusError: The server cannot be asked.
        """
        if not in_use:
            self._used.discard(keys.prefix)
            return
        self._used.add(keys.prefix)
        back = _MOST
        while back == _MOST:
            back, odd = await connections.run(FILL_LINE, [keys.ready, keys.active, *keys.fair], [GROUP, _MOST])
            if odd:
                pass_over("line", f"{odd} members", "places have the score 0; they are removed")
