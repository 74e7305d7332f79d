"""`RedisStates`: reads the states of entities, and changes them while nothing of theirs runs. Workers write them with their settlements."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from redis.asyncio import Redis

from command_bus.transport.mailboxes import is_mailbox
from command_bus.transport.ports.operator import StateChange, StateStore
from command_bus.transport.redis.connection.connections import PageSize
from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.scripts import CHANGE_STATE

_PAGE = 200


class RedisStates(RetryingRequests, StateStore):
    """Implements `StateStore`."""

    async def read(self, mailboxes: Sequence[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for keys, names in self._shards_of(mailboxes):
            values: list[bytes | None] = await self._ask(keys, _values, keys.states, names)
            found |= {name: value for name, value in zip(names, values, strict=True) if value is not None}
        return found

    async def pages(self, entity_type: str | None, shard: int | None = None) -> AsyncIterator[dict[str, bytes]]:
        pattern = "*" if entity_type is None else f"{entity_type}:*"
        for keys in self._keys.shards if shard is None else [self._keys.shards[shard]]:
            cursor, size = 0, PageSize(_PAGE)
            while True:
                cursor, page = await self._ask(keys, _scan, keys.states, cursor, pattern, size.count)
                if page:
                    yield {name.decode(): value for name, value in page.items() if is_mailbox(name)}
                if not cursor:
                    break
                size.observe(sum(map(len, page.values())), len(page))

    async def change(self, mailbox: str, state: bytes, expected: bytes | None) -> StateChange:
        keys = self._keys_of(mailbox)
        args = [mailbox, state, int(expected is not None), expected or b""]
        answer: Any = await self._run_once(keys, CHANGE_STATE, [keys.active, keys.states], args)
        changed: StateChange = answer.decode()
        return changed


def _values(client: Redis, key: str, names: Sequence[str]) -> Any:
    return client.hmget(key, list(names))


def _scan(client: Redis, key: str, cursor: int, pattern: str, count: int) -> Any:
    return client.hscan(key, cursor, match=pattern, count=count)
