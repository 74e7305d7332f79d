"""What mailboxes hold, by the page: for whoever must know which commands still wait, and not only how many.

No snapshot, but no gap either: a command that waits all the while is told of, because its mailbox is found by a scan that misses
nothing which stays, and a mailbox is read from its oldest command on, where commands leave it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from redis.asyncio import Redis

from command_bus.transport.redis.connections import Connections
from command_bus.transport.redis.keys import KeySpace, ShardKeys
from command_bus.transport.redis.patient import Patient
from command_bus.transport.redis.survey import Survey, SurveyedEntity

__all__ = ["Contents"]

_PAGE = 1_000  # commands of one mailbox per request
_LOT = 10_000  # commands per round trip, about

Held = tuple[SurveyedEntity, list[bytes]]
"""A mailbox, and envelopes that wait in it; a long one comes in several parts."""


class Contents(Patient):
    """Reads mailboxes with their commands; delayed ones, which are in no mailbox yet, are not among them."""

    def __init__(self, connections: Connections, keys: KeySpace, *, patience: float) -> None:
        super().__init__(connections, keys, patience=patience)
        self._survey = Survey(connections, keys, patience=patience)

    async def pages(self, shard: int) -> AsyncIterator[list[Held]]:
        """The mailboxes of a shard with the envelopes in them, oldest first."""
        keys = self._keys.shards[shard]
        async for page in self._survey.entities(shard):
            for lot in _lots(page):
                places = [(entity, "-") for entity in lot]
                while places:
                    answers = await self._read(keys, places)
                    yield [
                        (entity, [(fields or {}).get(b"e", b"") for _, fields in entries])
                        for (entity, _), entries in zip(places, answers, strict=True)
                    ]
                    places = [
                        (entity, f"({entries[-1][0].decode()}")
                        for (entity, _), entries in zip(places, answers, strict=True)
                        if len(entries) == _PAGE
                    ]

    async def _read(self, keys: ShardKeys, places: Sequence[tuple[SurveyedEntity, str]]) -> list[Any]:
        async def read(client: Redis) -> Any:
            pipeline = client.pipeline(transaction=False)
            for entity, start in places:
                pipeline.xrange(keys.mailbox(entity.mailbox), min=start, count=_PAGE)
            return await pipeline.execute()

        found: list[Any] = await self._ask(keys, read)
        return found


def _lots(page: list[SurveyedEntity]) -> Iterator[list[SurveyedEntity]]:
    """Mailboxes that are read in one round trip."""
    lot: list[SurveyedEntity] = []
    size = 0
    for entity in page:
        if not entity.depth:
            continue
        lot.append(entity)
        size += min(entity.depth, _PAGE)
        if size >= _LOT:
            yield lot
            lot, size = [], 0
    if lot:
        yield lot
