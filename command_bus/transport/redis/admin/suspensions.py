"""`RedisSuspensions`: what durable commands that are suspended wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from command_bus.serialization.odd_values import stored_ms, stored_number
from command_bus.transport.ports.durable import StoredSuspension, Suspensions
from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.keys import ShardKeys

_PAGE = 1000
_AT_ONCE = 50
_CANCEL = "cancel"
"""The field of the wish that a command ends."""
_FOR_EVER = -1
"""The time to live of what has none."""


class RedisSuspensions(RetryingRequests, Suspensions):
    """Implements `Suspensions`."""

    async def read(self, mailboxes: Sequence[str]) -> dict[str, StoredSuspension]:
        found: list[StoredSuspension | None] = []
        for at in range(0, len(mailboxes), _AT_ONCE):
            found += await asyncio.gather(*(self._readable(mailbox) for mailbox in mailboxes[at : at + _AT_ONCE]))
        return {each.mailbox: each for each in found if each is not None}

    async def _readable(self, mailbox: str) -> StoredSuspension | None:
        return await self._unless_odd("x", mailbox, self._read(mailbox), None)

    async def _read(self, mailbox: str) -> StoredSuspension | None:
        keys = self._keys_of(mailbox)
        value, until = await self._ask(keys, _since_and_until, keys, mailbox)
        since, _, command_id = (value or b"").decode(errors="replace").partition("|")
        if not command_id:
            return None
        fields = await self._awaited(keys, command_id)
        fence, calls, ends, cancel = await self._ask(keys, _details, keys.side(command_id), fields)
        left = tuple((name, call) for (name, of), call in zip(fields, calls, strict=True) if of == fence)
        at = None if until is None else stored_ms(until)
        return StoredSuspension(
            mailbox, command_id, stored_number("suspended", since), at, left, compensates=ends is not None, cancel=cancel
        )

    async def fields(self, mailbox: str, command_id: str, names: Sequence[str]) -> list[bytes | None]:
        keys = self._keys_of(mailbox)
        asked = self._ask(keys, lambda client: client.hmget(keys.side(command_id), list(names)))
        found: list[bytes | None] = await self._unless_odd("x", command_id, asked, [None] * len(names))
        return found

    async def orphans(self, most: int) -> list[str]:
        found: list[str] = []
        for keys in self._keys.shards:
            cursor = 0
            for _ in range(-(-most // _PAGE)):
                cursor, page = await self._ask_once(keys, _side_records, keys, cursor)
                ids = [name.decode(errors="replace").removeprefix(keys.sides) for name in page]
                if ids:
                    marks, lives = await self._ask_once(keys, _marks_and_lives, keys, ids)
                    found += [
                        one for one, mark, life in zip(ids, marks, lives, strict=True) if mark is None and life == _FOR_EVER
                    ]
                if not cursor:
                    break
        return found

    async def _awaited(self, keys: ShardKeys, command_id: str) -> list[tuple[str, bytes]]:
        """Return the fields that were awaited, each with the fence of the run that did."""
        found: dict[bytes, bytes] = {}
        cursor = 0
        while True:
            cursor, page = await self._ask(keys, _page, keys.side(command_id), cursor)
            found |= page
            if not cursor:
                return [(name.decode(errors="replace")[2:], fence) for name, fence in found.items()]


async def _since_and_until(client: Redis, keys: ShardKeys, mailbox: str) -> Any:
    pipeline = client.pipeline(transaction=False)
    pipeline.hget(keys.suspended, mailbox)
    pipeline.zscore(keys.due, f"r:{mailbox}")
    return await pipeline.execute()


def _side_records(client: Redis, keys: ShardKeys, cursor: int) -> Any:
    return client.scan(cursor, match=f"{keys.sides}*", count=_PAGE)


async def _marks_and_lives(client: Redis, keys: ShardKeys, ids: Sequence[str]) -> Any:
    pipeline = client.pipeline(transaction=False)
    for one in ids:
        pipeline.get(keys.mark(one))
        pipeline.pttl(keys.side(one))
    answers = await pipeline.execute(raise_on_error=False)  # a mark of another type is a mark, too
    return answers[::2], answers[1::2]


def _page(client: Redis, key: str, cursor: int) -> Any:
    return client.hscan(key, cursor, match="a:*", count=_PAGE)


async def _details(client: Redis, key: str, fields: Sequence[tuple[str, bytes]]) -> Any:
    """Return the fence of the run that awaits, what the calls are that it awaits, and how it ends, and the wish that it does."""
    calls = [f"c:{name.removeprefix('o:')}" for name, _ in fields]
    values: list[bytes | None] = await client.hmget(key, ["w", "k", _CANCEL, *calls])  # type: ignore[assignment]
    waits, ends, cancel, *found = values
    return (waits or b"").partition(b"|")[0], found, ends, cancel
