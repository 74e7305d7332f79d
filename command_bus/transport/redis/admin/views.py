"""`RedisViews`: what stands still, found by the keys that are kept for it anyway; and parts of what is long.

Every answer has a bounded size, whatever the namespace holds: no request asks for more than some twenty thousand small members.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any

from redis.asyncio import Redis

from command_bus.transport.records import StoredDeadLetter, StoredEntity, StoredEvent
from command_bus.transport.redis.admin.dead_letters import shard_and_entry, stored_letter
from command_bus.transport.redis.admin.entities import RedisEntities
from command_bus.transport.redis.admin.events import newest_events
from command_bus.transport.redis.admin.standing_groups import mailboxes_of, read_groups
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.keys import KeySpace, ShardKeys
from command_bus.transport.redis.mailbox_entries import OLDEST, read_mailboxes
from command_bus.transport.view_interfaces import FoundNames, GroupName, NamedGroup

_PARKED = 200


class RedisViews(RetryingRequests):
    """Implements `Views`.

    Args:
        connections: Of this process.
        keys: The shards.
        patience: Seconds for which a request may be repeated.
        entities: Reads single mailboxes.
    """

    def __init__(self, connections: Connections, keys: KeySpace, *, patience: float, entities: RedisEntities) -> None:
        super().__init__(connections, keys, patience=patience)
        self._entities = entities

    async def groups(self, shard: int, count: int) -> Mapping[GroupName, NamedGroup]:
        """See `Views`. Two round trips."""
        return await read_groups(partial(self._ask, self._keys.shards[shard]), self._keys.shards[shard], count, self._keys.count)

    async def look(self, mailboxes: Sequence[str]) -> dict[str, StoredEntity]:
        """See `Views`. A round trip, or two if something is paused."""
        parts = self._by_shard(mailboxes)
        pages = await asyncio.gather(*(self._entities.look_at(keys, names) for keys, names in parts))
        return {entity.mailbox: entity for page in pages for entity in page}

    async def first_commands(self, mailboxes: Sequence[str]) -> dict[str, tuple[str, bytes]]:
        """See `Views`. One round trip for each 500 mailboxes of a shard."""
        found: dict[str, tuple[str, bytes]] = {}

        async def read(keys: ShardKeys, names: list[str]) -> None:
            wanted = [(name, OLDEST) for name in names]
            for name, entries in zip(names, await read_mailboxes(partial(self._run, keys), keys, wanted, 1), strict=True):
                if entries:
                    entry, fields = entries[0]
                    found[name] = entry, fields.get(b"e", b"")

        await asyncio.gather(*(read(keys, names) for keys, names in self._by_shard(mailboxes)))
        return found

    async def find(self, shard: int, cursor: int, pattern: str, count: int) -> FoundNames:
        """See `Views`."""
        keys = self._keys.shards[shard]
        answer: Any = await self._ask(keys, lambda client: client.hscan(keys.active, cursor, match=pattern, count=count))
        following, page = answer
        return FoundNames(mailboxes_of(page), int(following), count)

    async def events(self, shard: int, before: Sequence[str], count: int) -> list[StoredEvent]:
        """See `Views`."""
        keys = self._keys.shards[shard]
        pages: list[Any] = await asyncio.gather(
            *(self._ask(keys, _newest, *each, count) for each in zip((keys.events, keys.arrivals), before, strict=True))
        )
        return newest_events(shard, self._keys.count, *pages)[:count]

    async def letters(self, shard: int, before: str, count: int) -> list[tuple[str, StoredDeadLetter]]:
        """See `Views`."""
        keys = self._keys.shards[shard]
        page = await self._ask(keys, _newest, keys.dead, before, count)
        return [(entry.decode(), stored_letter(shard, entry, fields or {})) for entry, fields in page]

    async def letters_by_id(self, letter_ids: Sequence[str]) -> list[StoredDeadLetter]:
        """See `Views`."""
        parts: dict[int, list[str]] = {}
        for found_at in (shard_and_entry(each, self._keys.count) for each in letter_ids):
            if found_at is not None:
                parts.setdefault(found_at[0], []).append(found_at[1])

        async def read(shard: int, entries: list[str]) -> list[StoredDeadLetter]:
            keys = self._keys.shards[shard]
            pages = await self._ask(keys, _each_entry, keys.dead, entries)
            return [stored_letter(shard, entry, fields or {}) for page in pages for entry, fields in page]

        return [each for page in await asyncio.gather(*(read(*part) for part in parts.items())) for each in page]

    async def parking(self) -> AsyncIterator[list[StoredDeadLetter]]:
        """See `Views`. Two round trips for each page."""
        for shard, keys in enumerate(self._keys.shards):
            cursor = 0
            while True:
                answer: Any = await self._ask(
                    keys, lambda client, key, at: client.hscan(key, at, count=_PARKED), keys.parked, cursor
                )
                cursor, page = answer
                if page:
                    yield await self.letters_by_id([f"{shard}-{letter.decode(errors='replace')}" for letter in page.values()])
                if not cursor:
                    break

    def _by_shard(self, mailboxes: Sequence[str]) -> list[tuple[ShardKeys, list[str]]]:
        parts: dict[int, list[str]] = {}
        for mailbox in dict.fromkeys(mailboxes):
            parts.setdefault(self._keys.shard_of(mailbox), []).append(mailbox)
        return [(self._keys.shards[shard], names) for shard, names in parts.items()]


def _newest(client: Redis, stream: str, before: str, count: int) -> Any:
    return client.xrevrange(stream, f"({before}" if before else "+", "-", count=count)


async def _each_entry(client: Redis, stream: str, entries: list[str]) -> Any:
    pipeline = client.pipeline(transaction=False)
    for entry in entries:
        pipeline.xrange(stream, min=entry, max=entry, count=1)
    return await pipeline.execute()
