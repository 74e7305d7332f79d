"""`RedisKeptStreams`: reads streams that are kept for a time, from their old end.

They are read by the million, so a page is taken as the server sent it: redis-py's own reading of XRANGE makes a dict and a tuple of
every entry, which takes longer than all that follows. Every request is a plain read and is repeated while the server restarts.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from command_bus.transport.ports.kept_streams import KeptStream, KeptStreams, StreamPage
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.keys import KeySpace, ShardKeys
from command_bus.transport.redis.scripts import OUTCOME_OFFSET

_PLACES = 500  # asked at a time
_STRIDE = 10_000  # entries that one call steps over: the server does nothing else for so long
_AS_SENT = b"XRANGE"  # redis-py knows how to read the answer to "XRANGE"


class RedisKeptStreams(RetryingRequests, KeptStreams):
    """Implements `KeptStreams`.

    Args:
        connections: Clients that this process shares.
        keys: The shards.
        key_of: Gives the key of a name in a shard.
        patience: Seconds for which a request is repeated.
    """

    def __init__(
        self, connections: Connections, keys: KeySpace, key_of: Callable[[ShardKeys, str], str], *, patience: float
    ) -> None:
        super().__init__(connections, keys, patience=patience)
        self._key_of = key_of

    async def streams(self, wanted: Sequence[tuple[str, int]]) -> list[KeptStream | None]:
        by_shard: dict[int, list[str]] = {}
        for name, shard in wanted:
            by_shard.setdefault(shard, []).append(name)
        found: dict[tuple[str, int], KeptStream | None] = {}
        for shard, names in by_shard.items():
            for start in range(0, len(names), _PLACES):
                page = names[start : start + _PLACES]
                streams = await self._look(shard, [self._key(name, shard) for name in page])
                found |= {(name, shard): stream for name, stream in zip(page, streams, strict=True)}
        return [found[each] for each in wanted]

    async def _look(self, shard: int, keys: list[str]) -> list[KeptStream | None]:
        async def read(client: Redis) -> Any:
            pipeline = client.pipeline(transaction=False)
            for key in keys:
                pipeline.xinfo_stream(key)
                pipeline.pttl(key)
            answers = await pipeline.execute(raise_on_error=False)
            return [_stream(*pair) for pair in zip(answers[::2], answers[1::2], strict=True)]  # an error is one of this request

        found: list[KeptStream | None] = await self._ask(self._keys.shards[shard], read)
        return found

    async def ends(self, name: str, shard: int, low: str, high: str) -> tuple[str, str] | None:
        key = self._key(name, shard)

        async def read(client: Redis) -> Any:
            pipeline = client.pipeline(transaction=False)
            pipeline.xrange(key, low, high, count=1)
            pipeline.xrevrange(key, high, low, count=1)
            return await pipeline.execute()

        first, last = await self._ask(self._keys.shards[shard], read)
        return (first[0][0].decode(), last[0][0].decode()) if first and last else None

    async def page(self, name: str, shard: int, after: str, until: str, count: int) -> StreamPage:
        key = self._key(name, shard)
        words = (_AS_SENT, key, _behind(after), until, "COUNT", count)
        page = await self._ask(self._keys.shards[shard], lambda client: client.execute_command(*words))
        return [entry[0] for entry in page], [entry[1] for entry in page]

    async def skip(self, name: str, shard: int, after: str, until: str, count: int) -> tuple[str, int]:
        key = self._key(name, shard)
        at, total = after, 0
        while total < count:
            stride = min(count - total, _STRIDE)
            found, last = await self._run(self._keys.shards[shard], OUTCOME_OFFSET, [key], [_behind(at), until, stride])
            total += int(found)
            at = last.decode() or at
            if found < stride:
                break
        return at, total

    async def lineage(self, shard: int) -> str:
        parts: list[dict[str, Any]] = [
            await self._ask(self._keys.shards[shard], _info, part) for part in ("server", "replication")
        ]
        names = (str(found.get(name)) for found, name in zip(parts, ("run_id", "master_replid"), strict=True))
        return f"{zlib.crc32(' '.join(names).encode()):08x}"

    def _key(self, name: str, shard: int) -> str:
        return self._key_of(self._keys.shards[shard], name)


def _info(client: Redis, part: str) -> Any:
    return client.info(part)


def _behind(entry: str) -> str:
    return f"({entry}" if entry else "-"


def _stream(answer: Any, left_ms: Any) -> KeptStream | None:
    for found in (answer, left_ms):
        if isinstance(found, ResponseError) and "no such key" in str(found).lower():
            return None
        if isinstance(found, Exception):
            raise found
    info: dict[str, Any] = answer
    first = info.get("first-entry")
    added = info.get("entries-added")
    return KeptStream(
        length=int(info["length"]),
        added=None if added is None else int(added),
        first=first[0].decode() if first else "",
        last=info["last-generated-id"].decode(),
        left_ms=max(int(left_ms), 0),
    )
