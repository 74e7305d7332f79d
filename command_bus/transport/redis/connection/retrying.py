"""`RetryingRequests`: idempotent requests to shards, repeated until the server answers or a time is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from typing import Any, TypeVar

from redis.asyncio import Redis

from command_bus.clock import mono
from command_bus.errors import UnsuitableServer
from command_bus.serialization.odd_values import pass_over, stored_ms
from command_bus.transport.redis.connection.connections import Connections, PageSize
from command_bus.transport.redis.connection.errors import is_of_a_value
from command_bus.transport.redis.keys import KeySpace, ShardKeys
from command_bus.transport.redis.scripts import Script

T = TypeVar("T")
_PAGE, _FIELDS = 200, 500


class RetryingRequests:
    """Base class of what reads and operates on a namespace.

    Args:
        connections: Clients that this process shares.
        keys: The shards.
        patience: Seconds for which a request is repeated before the server counts as unavailable.
    """

    def __init__(self, connections: Connections, keys: KeySpace, *, patience: float) -> None:
        self._connections = connections
        self._keys = keys
        self._patience = patience

    async def _ask(self, shard: ShardKeys, request: Any, *args: Any) -> Any:
        """Return the answer to a plain request, `request(client, *args)`."""
        server = self._connections.at(shard.prefix)
        return await server.retry_until(lambda: server.ask(request, *args), mono() + self._patience)

    async def _run(self, shard: ShardKeys, script: Script, names: list[str], args: list[Any]) -> Any:
        """Return the answer of a script."""
        server = self._connections.at(shard.prefix)
        return await server.retry_until(lambda: server.run(script, names, args), mono() + self._patience)

    async def _ask_once(self, shard: ShardKeys, request: Any, *args: Any) -> Any:
        """Return the answer to a plain request that is sent once: an interactive caller prefers an error to a wait."""
        return await self._connections.at(shard.prefix).ask(request, *args)

    async def _run_once(self, shard: ShardKeys, script: Script, names: list[str], args: list[Any]) -> Any:
        """Return the answer of a script that must not run twice."""
        return await self._connections.at(shard.prefix).run(script, names, args)

    async def _unless_odd(self, kind: str, name: str, answer: Awaitable[T], otherwise: T) -> T:
        """Return an answer; `otherwise` if what is stored under a name is odd, a key of another type say, which is passed over."""
        try:
            return await answer
        except UnsuitableServer as error:
            if not is_of_a_value(error):
                raise
            pass_over(kind, name, error)
            return otherwise

    def _keys_of(self, mailbox: str) -> ShardKeys:
        """Return the keys of the shard that has a mailbox."""
        return self._keys.of(mailbox)

    async def _entries(self, shard: ShardKeys, key: str, start: str) -> AsyncIterator[list[tuple[bytes, dict[bytes, bytes]]]]:
        """Yield the entries of a stream from `start` on, page by page."""
        size = PageSize(_PAGE)
        while True:
            asked = size.count
            found: Any = await self._ask_once(shard, _range, key, start, asked)
            page = [(entry, fields or {}) for entry, fields in found]
            if page:
                yield page
                start = "(" + page[-1][0].decode()
            if len(page) < asked:
                return
            size.observe(sum(len(value) for _, fields in page for value in fields.values()), len(page))

    async def _hash_pages(
        self, shard: ShardKeys, key: str, count: int = _FIELDS, *, once: bool = False, match: str | None = None
    ) -> AsyncIterator[dict[bytes, bytes]]:
        """Yield the fields of a hash, page by page, perhaps one twice; with `once` no request is repeated, with `match` others are left out."""
        ask, cursor, size = self._ask_once if once else self._ask, 0, PageSize(count)
        while True:
            cursor, page = await ask(shard, _scan, key, cursor, size.count, match)
            if page:
                yield page
            if not cursor:
                return
            size.observe(sum(map(len, page.values())), len(page))

    async def _due_times(self, shard: ShardKeys, members: Sequence[str]) -> dict[str, int]:
        """Return when these members of `due` are due, in ms, where they are in it."""
        scores = await self._ask(shard, _scores, shard.due, members) if members else []
        return {member: stored_ms(score) for member, score in zip(members, scores, strict=True) if score is not None}

    def _shards_of(self, mailboxes: Iterable[str]) -> list[tuple[ShardKeys, list[str]]]:
        """Return the shards of mailboxes, each with those that it has, without repeats."""
        parts: dict[int, list[str]] = {}
        for mailbox in dict.fromkeys(mailboxes):
            parts.setdefault(self._keys.shard_of(mailbox), []).append(mailbox)
        return [(self._keys.shards[shard], names) for shard, names in parts.items()]

    async def _everywhere(self, request: Any) -> list[Any]:
        """Return the answers of all shards, in their order, to `request(client, keys of the shard)`."""
        return await asyncio.gather(*(self._ask(shard, request, shard) for shard in self._keys.shards))


def server_ms(time: tuple[int, int]) -> int:
    """Return the server's time in ms, from the seconds and microseconds that it answers."""
    return int(time[0]) * 1000 + int(time[1]) // 1000


def _range(client: Redis, key: str, start: str, count: int) -> Any:
    return client.xrange(key, min=start, count=count)


def _scan(client: Redis, key: str, cursor: int, count: int, match: str | None) -> Any:
    return client.hscan(key, cursor, match=match, count=count)


async def hash_page(client: Redis, key: str, cursor: int, count: int) -> tuple[int, int, dict[bytes, bytes]]:
    """Return how many fields a hash has, the next cursor, and a page of them."""
    pipeline = client.pipeline(transaction=False)
    pipeline.hlen(key)
    pipeline.hscan(key, cursor, count=count)
    length, (following, found) = await pipeline.execute()
    return length, int(following), found


async def _scores(client: Redis, key: str, members: Sequence[str]) -> Any:
    pipeline = client.pipeline(transaction=False)
    for member in members:
        pipeline.zscore(key, member)
    return await pipeline.execute()
