"""`RedisHistory`: reads the ends of commands that have a history. They are written where a command is settled (`lua/shared/outcomes.lua`).

It also keeps the journals of what operators did, and of figures over time.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from command_bus.serialization.odd_values import stored_number
from command_bus.stream_ids import ms_of, stream_id
from command_bus.transport.ports.operator import HistoryStore, JournalName
from command_bus.transport.records import EndBounds, HistoryExtent, StoredEnd
from command_bus.transport.redis.connection.connections import PageSize
from command_bus.transport.redis.connection.retrying import RetryingRequests, server_ms

_PAGE = 200
_DATA = "v"
_ENTRY = re.compile(rb"[0-9]{1,19}-[0-9]{1,19}")

_Answer = tuple[int, list[tuple[bytes, dict[bytes, bytes]]]]


class RedisHistory(RetryingRequests, HistoryStore):
    """Implements `HistoryStore`."""

    async def find(self, command_id: str) -> list[StoredEnd]:
        entries = await self._everywhere(lambda client, keys: client.hget(keys.history_ids, command_id))
        found: list[StoredEnd] = []
        for shard, entry in enumerate(entries):
            if entry is not None and _ENTRY.fullmatch(entry):
                now_ms, page = await self._page(shard, entry.decode(), entry.decode(), 1)
                found += _ends(shard, page, now_ms)
        return found

    async def newest_first(self, shard: int, newest: str, oldest: str) -> AsyncIterator[list[StoredEnd]]:
        size = PageSize(_PAGE)
        while True:
            asked = size.count
            now_ms, page = await self._page(shard, newest, oldest, asked)
            if page:
                yield _ends(shard, page, now_ms)
                newest = "(" + page[-1][0].decode()
            if len(page) < asked:
                return
            size.observe(sum(len(value) for _, fields in page for value in fields.values()), len(page))

    async def extents(self, count: int) -> list[HistoryExtent]:
        found = await self._everywhere(lambda client, keys: _extent(client, keys.history, count))
        return [HistoryExtent(shard, *extent) for shard, extent in enumerate(found)]

    async def append(self, name: JournalName, data: bytes, *, kept: int, once_ms: int | None = None) -> str | None:
        """Append it once: a lost answer leaves open whether the entry is there."""
        keys, entry_id = self._keys.shards[0], "*" if once_ms is None else f"{once_ms}-0"
        entry: bytes | None = await self._ask_once(keys, _append, getattr(keys, name), data, entry_id, kept)
        return None if entry is None else entry.decode()

    async def newest(self, name: JournalName, before: str, count: int) -> list[tuple[str, bytes]]:
        keys = self._keys.shards[0]
        stream: str = getattr(keys, name)
        page: Any = await self._ask(
            keys, lambda client: client.xrevrange(stream, f"({before}" if before else "+", "-", count=count)
        )
        return [(entry.decode(), (fields or {}).get(_DATA.encode(), b"")) for entry, fields in page]

    async def _page(self, shard: int, newest: str, oldest: str, count: int) -> _Answer:
        keys = self._keys.shards[shard]
        return await self._ask(keys, _read, keys.history, newest, oldest, count)  # type: ignore[no-any-return]


async def _read(client: Redis, key: str, newest: str, oldest: str, count: int) -> _Answer:
    """Return the server's time in ms, and entries, newest first."""
    pipeline = client.pipeline(transaction=False)
    pipeline.time()
    pipeline.xrevrange(key, newest, oldest, count=count)
    answer: Any = await pipeline.execute()
    time, page = answer
    return server_ms(time), [(entry, fields or {}) for entry, fields in page]


async def _extent(client: Redis, key: str, count: int) -> tuple[int, int, tuple[EndBounds, ...]]:
    """Return the server's time in ms, the number of entries, and the bounds of the oldest."""
    pipeline = client.pipeline(transaction=False)
    pipeline.time()
    pipeline.xlen(key)
    pipeline.xrange(key, "-", "+", count=count)
    answer: Any = await pipeline.execute()
    time, ends, page = answer
    bounds = (EndBounds(ms_of(entry), _number(fields, b"a"), _number(fields, b"n")) for entry, fields in page)
    return server_ms(time), ends, tuple(bounds)


def _number(fields: dict[bytes, bytes] | None, name: bytes) -> int:
    """Return a number of an entry; 0 where somebody else has written it."""
    return stored_number("history", (fields or {}).get(name))


def _ends(shard: int, page: list[tuple[bytes, dict[bytes, bytes]]], now_ms: int) -> list[StoredEnd]:
    return [_end(shard, entry, fields, now_ms) for entry, fields in page]


def _end(shard: int, entry: bytes, fields: dict[bytes, bytes], now_ms: int) -> StoredEnd:
    settled_ms, sequence = stream_id(entry)
    age_ms = _number(fields, b"a")
    return StoredEnd(settled_ms, sequence, shard, fields.get(b"r", b""), settled_ms + age_ms <= now_ms)


async def _append(client: Redis, stream: str, data: bytes, entry_id: str, kept: int) -> bytes | None:
    """Write an entry; None if one of this id or a later one is there."""
    try:
        entry: Any = await client.xadd(stream, {_DATA: data}, id=entry_id, maxlen=kept, approximate=True)
    except ResponseError as error:
        if "equal or smaller" in str(error):
            return None
        raise
    return bytes(entry)
