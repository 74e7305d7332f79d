"""`RedisLocator`: find where one command is, in few requests, for a caller whose wait timed out.

A sender may have fewer rights than an operator: what it may not read is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from command_bus.serialization.odd_values import stored_ms, stored_number
from command_bus.transport.mailboxes import scopes_of
from command_bus.transport.ports.sender import CommandLocator
from command_bus.transport.records import CommandLocation, HoldInfo
from command_bus.transport.redis.admin.entities import surveyed
from command_bus.transport.redis.admin.holds import parse_hold
from command_bus.transport.redis.connection.retrying import RetryingRequests, server_ms
from command_bus.transport.redis.keys import ShardKeys, delayed_member, delayed_number
from command_bus.transport.redis.mailbox_record import STOPPED, MailboxRecord, mailbox_pages, parse_record

_PARKED = b"?"
_PAGE = 100
_MOST = 1000
"""Entries of a line that are gone through to find a command's place in it."""


class RedisLocator(RetryingRequests, CommandLocator):
    """Implements `CommandLocator`: looks once, without repeating what fails."""

    async def marks(self, command_id: str) -> list[bytes]:
        values = await asyncio.gather(*(self._mark(shard, command_id) for shard in self._keys.shards))
        return [value for value in values if value is not None]

    async def _mark(self, shard: ShardKeys, command_id: str) -> bytes | None:
        return await self._unless_odd("k", command_id, self._ask_once(shard, _get, shard.mark(command_id)), None)

    async def look(self, mailbox: str, command_id: str) -> CommandLocation:
        keys = self._keys_of(mailbox)
        answers = await self._ask_once(keys, _look, keys, mailbox, command_id)
        found = parse_record(answers[0] if isinstance(answers[0], bytes) else None)
        settled = await self._ask_once(keys, _settled, keys, mailbox, found)
        record, paused, later, length, mark, retry, number, workers, time = map(_permitted, answers)
        delayed = (
            None
            if number is None
            else await self._ask_once(keys, lambda client: client.zscore(keys.due, delayed_member(number, command_id)))
        )
        scopes = scopes_of(mailbox)
        holds = {scope: parse_hold(scope, value) for scope, value in zip(scopes, paused or (), strict=False) if value is not None}
        return CommandLocation(
            entity=surveyed(
                mailbox,
                holds,
                record,
                _PARKED if _is_parked(record, holds) else None,
                later,
                1 if found.is_lone else (length or 0) - settled,
                b"",
            ),
            mark=mark,
            retry_ms=None if retry is None else stored_ms(retry),
            delayed_ms=None if delayed is None else stored_ms(delayed),
            workers=None if workers is None else tuple(workers.values()),
            now_ms=server_ms(time or (0, 0)),
        )

    async def shard_depth(self, shard: int) -> int:
        keys = self._keys.shards[shard]
        found: Any = await self._ask_once(keys, lambda client: client.hget(keys.stats, "depth"))
        return stored_number("stats", found)

    async def line(self, mailbox: str, most: int | None = None) -> Sequence[tuple[str, bytes]]:
        keys = self._keys_of(mailbox)
        found: list[tuple[str, bytes]] = []
        async for page in mailbox_pages(partial(self._run_once, keys), keys, mailbox, min(_PAGE, most or _MOST)):
            found += [(entry, fields.get(b"e", b"")) for entry, fields in page]
            if len(found) >= (most or _MOST):
                break
        return found


async def _look(client: Redis, keys: ShardKeys, mailbox: str, command_id: str) -> Any:
    pipeline = client.pipeline(transaction=False)
    pipeline.hget(keys.active, mailbox)
    pipeline.hmget(keys.paused, scopes_of(mailbox))
    pipeline.hget(keys.delayed_counts, mailbox)
    pipeline.xlen(keys.mailbox(mailbox))
    pipeline.get(keys.mark(command_id))
    pipeline.zscore(keys.due, f"r:{mailbox}")
    pipeline.hget(keys.delayed_counts, delayed_number(command_id))
    pipeline.hgetall(keys.workers)
    pipeline.time()
    return await pipeline.execute(raise_on_error=False)


async def _settled(client: Redis, keys: ShardKeys, mailbox: str, record: MailboxRecord) -> int:
    """Return how many settled commands stand in a mailbox; 0 for a user who may not read it."""
    if not record.is_held or record.is_lone:
        return 0
    try:
        found: Any = await client.xrange(keys.mailbox(mailbox), max=f"({record.message}")
        return len(found)
    except ResponseError:
        return 0


def _is_parked(record: bytes | None, holds: Mapping[str, HoldInfo]) -> bool:
    """Return whether a dead letter stops a mailbox: it is stopped, and nothing is paused. Senders may not read which letter."""
    return parse_record(record).state == STOPPED and not any(hold.mode == "paused" for hold in holds.values())


def _permitted(answer: Any) -> Any:
    return None if isinstance(answer, Exception) else answer


def _get(client: Redis, key: str) -> Any:
    return client.get(key)
