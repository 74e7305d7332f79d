"""`LetterPruning`: deletes dead letters that are older than they are kept, or more than are kept, a page at a time.

A letter that parks an entity is never deleted: the entity waits for a decision about it. Workers do this without a word to each other; the
script looks at each letter again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from command_bus.errors import CommandBusError
from command_bus.serialization.envelope import names_of
from command_bus.settings import BusSettings
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.errors import is_not_permitted
from command_bus.transport.redis.keys import GROUP, ShardKeys
from command_bus.transport.redis.scripts import PRUNE_LETTERS

_log = logging.getLogger("command_bus.worker")
_PAGE = 500
_BYTES = 1024 * 1024
"""Of letters that one script reads, and one letter more: it then takes a few milliseconds, and other clients are served in between."""


@dataclass(frozen=True, slots=True)
class LetterLimits:
    """The age and number of dead letters that are kept in one shard; None: without a limit."""

    ttl_ms: int | None = None
    most: int | None = None

    @classmethod
    def of(cls, settings: BusSettings, shards: int) -> Self:
        """Return a shard's part of what settings say, the number rounded up."""
        ttl, most = settings.dead_letter_ttl, settings.max_dead_letters
        return cls(None if ttl is None else max(1, int(ttl * 1000)), None if most is None else -(-most // shards))


ALL_LETTERS = LetterLimits()


_MARK_MS = 600_000
"""Milliseconds for which the mark of a durable command is kept once its letter is gone."""


class LetterPruning:
    """The pruning of one shard.

    Args:
        connections: To its server.
        keys: Names of the shard's keys.
        limits: Most age and number of its dead letters.
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
        try:
            deleted, after, unknown = await self._prune({})
            if unknown:
                sides = {letter: names_of(names)[0] for letter, names in zip(unknown[::2], unknown[1::2], strict=True)}
                again, after, _ = await self._prune(sides)
                deleted += again
        except CommandBusError as error:
            if not is_not_permitted(error):
                raise
            _log.warning(
                "%s: no letter is deleted by age or number, make the worker's user with prunes=True: %s", keys.dead, error
            )
            self._limits = ALL_LETTERS
            return False
        self._after = after.decode()
        if deleted:
            _log.info("%s: %d dead letters are deleted: too old, or too many", keys.dead, deleted)
        return bool(self._after)

    async def _prune(self, sides: Mapping[bytes, str]) -> tuple[int, bytes, list[bytes]]:
        """Delete what may go; of letters that kept a side record those whose command is known."""
        keys, limits = self._keys, self._limits
        names = [keys.ready, keys.dead, keys.parked, keys.stats, keys.watched, keys.events]
        most, ttl = ("" if each is None else each for each in (limits.most, limits.ttl_ms))
        args = [GROUP, ttl, most, self._after, _PAGE, _BYTES, _MARK_MS, *sides]
        for command_id in sides.values():
            names += (keys.side(command_id), keys.mark(command_id))
        answer: tuple[int, bytes, list[bytes]] = await self._connections.run(PRUNE_LETTERS, names, args)
        return answer
