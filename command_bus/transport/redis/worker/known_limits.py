"""`KnownLimits`: whether a worker knows that limits are in use.

Only then its requests to the first shard name the keys of limits: who uses none pays nothing for them. A worker learns it from the first
answer that has it ask. Until then it asks before each limited start, which is harmless.
"""

from __future__ import annotations

from command_bus.serialization.odd_values import pass_over
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.keys import GROUP, ShardKeys
from command_bus.transport.redis.scripts import FILL_LINE

_NONE: tuple[str, ...] = ()


class KnownLimits:
    """The knowledge of a worker about limits.

    Args:
        first: Keys of the first shard, which decides about all limits.

    Attributes:
        known: Whether limits are in use, as far as is known.
    """

    def __init__(self, first: ShardKeys) -> None:
        self._first = first
        self.known = False

    def keys(self, keys: ShardKeys) -> tuple[str, ...]:
        """Return the keys of limits that a request to a shard names: none if it does not decide, or limits are not known to be in use."""
        return (keys.limits, keys.places) if self.known and keys is self._first else _NONE


_MOST = 500
"""Activations that one script brings back: a few milliseconds."""


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
