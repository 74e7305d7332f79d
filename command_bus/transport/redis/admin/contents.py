"""What mailboxes hold, by the page: for whoever must know which commands still wait, and not only how many.

No snapshot, but no gap either: a command that waits all the while is told of, because its mailbox is found by a scan that misses
nothing which stays, and a mailbox is read from its oldest command on, where commands leave it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

from redis.asyncio import Redis

from command_bus.transport.records import StoredEntity
from command_bus.transport.redis.admin.entities import Survey
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.page_size import PageSize
from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.keys import KeySpace, ShardKeys

__all__ = ["Contents"]

_PAGE = 1_000  # commands of one mailbox per request, at most
_LOT = 10_000  # commands per round trip, at most

_Place = tuple[StoredEntity, str]
"""A mailbox, and where to go on in it."""

Held = tuple[StoredEntity, list[bytes]]
"""A mailbox, and envelopes that wait in it; a long one comes in several parts."""


class Contents(RetryingRequests):
    """Reads mailboxes with their commands; delayed ones, which are in no mailbox yet, are not among them."""

    def __init__(self, connections: Connections, keys: KeySpace, *, patience: float) -> None:
        super().__init__(connections, keys, patience=patience)
        self._survey = Survey(connections, keys, patience=patience)

    async def pages(self, shard: int) -> AsyncIterator[list[Held]]:
        """The mailboxes of a shard with the envelopes in them, oldest first."""
        keys, size = self._keys.shards[shard], PageSize(_LOT)
        async for page in self._survey.entities(shard):
            left = deque((entity, "-") for entity in page if entity.depth)
            while left:
                each = min(_PAGE, size.count)
                places = _lot(left, each, size.count)
                answers = await self._read(keys, places, each)
                found = [[(fields or {}).get(b"e", b"") for _, fields in entries] for entries in answers]
                size.observe(sum(len(envelope) for held in found for envelope in held), sum(map(len, found)))
                yield [(entity, held) for (entity, _), held in zip(places, found, strict=True)]
                left.extendleft(
                    (entity, f"({entries[-1][0].decode()}")
                    for (entity, _), entries in zip(places, answers, strict=True)
                    if len(entries) == each
                )

    async def _read(self, keys: ShardKeys, places: Sequence[_Place], count: int) -> list[Any]:
        async def read(client: Redis) -> Any:
            pipeline = client.pipeline(transaction=False)
            for entity, start in places:
                pipeline.xrange(keys.mailbox(entity.mailbox), min=start, count=count)
            return await pipeline.execute()

        found: list[Any] = await self._ask(keys, read)
        return found


def _lot(left: deque[_Place], each: int, most: int) -> list[_Place]:
    """What is read in one round trip, taken from what is left: at least one mailbox, each with at most `each` of its commands."""
    lot = [left.popleft()]
    size = min(lot[0][0].depth, each)
    while left and size + min(left[0][0].depth, each) <= most:
        lot.append(left.popleft())
        size += min(lot[-1][0].depth, each)
    return lot
