"""`LetterPruning`: deletes dead letters that are older than they are kept, or more than are kept, a page at a time.

A letter that parks an entity is never deleted: the entity waits for a decision about it. Workers do this without a word to each other; the
script looks at each letter again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from command_bus.errors import CommandBusError
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.errors import is_not_permitted
from command_bus.transport.redis.keys import GROUP, ShardKeys
from command_bus.transport.redis.scripts import PRUNE_LETTERS

__all__ = ["LetterLimits", "LetterPruning"]

_log = logging.getLogger("command_bus.worker")
_PAGE = 500
_BYTES = 1024 * 1024
"""Of letters that one script reads, and one letter more: it then takes a few milliseconds, and other clients are served in between."""


@dataclass(frozen=True, slots=True)
class LetterLimits:
    """How long and how many dead letters are kept in one shard; None: without a limit."""

    ttl_ms: int | None = None
    most: int | None = None


class LetterPruning:
    """The pruning of one shard.

    Args:
        connections: To its server.
        keys: Of the shard.
        limits: Of its dead letters.
    """

    def __init__(self, connections: Connections, keys: ShardKeys, limits: LetterLimits) -> None:
        self._connections = connections
        self._keys = keys
        self._limits = limits
        self._after = ""

    async def page(self) -> bool:
        """Look at a page of letters, the oldest first; return whether there may be more to delete."""
        keys, limits = self._keys, self._limits
        if limits.ttl_ms is None and limits.most is None:
            return False
        names = [keys.ready, keys.dead, keys.parked, keys.stats, keys.watched, keys.events]
        most, ttl = ("" if each is None else each for each in (limits.most, limits.ttl_ms))
        args = [GROUP, ttl, most, self._after, _PAGE, _BYTES]
        try:
            deleted, after = await self._connections.run(PRUNE_LETTERS, names, args)
        except CommandBusError as error:
            if not is_not_permitted(error):
                raise
            _log.warning(
                "%s: no letter is deleted by age or number, make the worker's user with prunes=True: %s", keys.dead, error
            )
            self._limits = LetterLimits()
            return False
        self._after = after.decode()
        if deleted:
            _log.info("%s: %d dead letters are deleted: too old, or too many", keys.dead, deleted)
        return bool(self._after)
