"""`RedisJournals`: streams in the first shard, of which the newest entries are kept."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.view_interfaces import JournalName

_DATA = "v"


class RedisJournals(RetryingRequests):
    """Implements `Journals`."""

    async def append(self, name: JournalName, data: bytes, *, kept: int, once_ms: int | None = None) -> str | None:
        """See `Journals`. It is sent once: a lost answer leaves open whether the entry is there."""
        keys, entry_id = self._keys.shards[0], "*" if once_ms is None else f"{once_ms}-0"
        entry: bytes | None = await self._ask_once(keys, _append, getattr(keys, name), data, entry_id, kept)
        return None if entry is None else entry.decode()

    async def newest(self, name: JournalName, before: str, count: int) -> list[tuple[str, bytes]]:
        """See `Journals`."""
        keys = self._keys.shards[0]
        stream: str = getattr(keys, name)
        page: Any = await self._ask(
            keys, lambda client: client.xrevrange(stream, f"({before}" if before else "+", "-", count=count)
        )
        return [(entry.decode(), (fields or {}).get(_DATA.encode(), b"")) for entry, fields in page]


async def _append(client: Redis, stream: str, data: bytes, entry_id: str, kept: int) -> bytes | None:
    """Write an entry; None if one of this id or a later one is there."""
    try:
        entry: Any = await client.xadd(stream, {_DATA: data}, id=entry_id, maxlen=kept, approximate=True)
    except ResponseError as error:
        if "equal or smaller" in str(error):
            return None
        raise
    return bytes(entry)
