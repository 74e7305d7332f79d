"""`RedisViews`: what stands still, found by the keys that are kept for it anyway; and parts of what is long.

Every answer has a bounded size, whatever the namespace holds: no request asks for more than a few thousand members.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from command_bus.transport.mailboxes import is_mailbox, is_wide
from command_bus.transport.records import StoredDeadLetter, StoredEntity, StoredEvent
from command_bus.transport.redis.admin.dead_letters import shard_and_entry, stored_letter
from command_bus.transport.redis.admin.entities import RedisEntities
from command_bus.transport.redis.admin.events import stored_event
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.keys import GROUP, KeySpace, ShardKeys
from command_bus.transport.redis.mailbox_entries import OLDEST, read_mailboxes
from command_bus.transport.view_interfaces import FoundNames, GroupName, NamedGroup

__all__ = ["RedisViews"]

_QUEUES = ("[q\n", "(q\x0b")
"""The members of `places` that are queues of limits."""
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
        keys = self._keys.shards[shard]
        found: dict[str, Any] = await self._ask(keys, _read_groups, keys, count)
        ready: Any = await self._ask(keys, _read_activations, keys, found["pending"], _delivered(found["infos"]), count)
        waiting, running = ready
        line = [place.decode(errors="replace").split("/", 2)[-1] for place in found["line"]]
        behind = max(found["ready"] - found["held"], 0) + found["in_line"]
        return {
            "parked": NamedGroup(_oldest_letters(found["parked"], count), found["parked_all"]),
            "paused": NamedGroup(_single(found["paused"], count), None),
            "limited": NamedGroup(tuple(_queued(found["queued"])), found["queued_all"]),
            "suspended": NamedGroup(_longest_suspended(found["suspended"], count), found["suspended_all"]),
            "retrying": NamedGroup(tuple(_retried(found["due"])), None),
            "waiting": NamedGroup((*waiting, *line)[:count], behind),
            "running": NamedGroup(running, found["held"]),
        }

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
                    found[name] = entry.decode(), fields.get(b"e", b"")

        await asyncio.gather(*(read(keys, names) for keys, names in self._by_shard(mailboxes)))
        return found

    async def find(self, shard: int, cursor: int, pattern: str, count: int) -> FoundNames:
        """See `Views`."""
        keys = self._keys.shards[shard]
        answer: Any = await self._ask(keys, lambda client: client.hscan(keys.active, cursor, match=pattern, count=count))
        following, page = answer
        return FoundNames(_mailboxes(page), int(following), count)

    async def events(self, shard: int, before: str, count: int) -> list[StoredEvent]:
        """See `Views`."""
        keys = self._keys.shards[shard]
        page = await self._ask(keys, _newest, keys.events, before, count)
        return [stored_event(shard, entry.decode(), fields or {}) for entry, fields in page]

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


_NAMES = (
    "parked", "parked_all", "suspended", "suspended_all", "paused", "due", "ready", "queued", "queued_all", "line", "in_line", "held",
    "infos", "pending",
)  # fmt: skip


async def _read_groups(client: Redis, keys: ShardKeys, count: int) -> dict[str, Any]:
    pipeline = client.pipeline(transaction=False)
    pipeline.hscan(keys.parked, 0, count=count)
    pipeline.hlen(keys.parked)
    pipeline.hscan(keys.suspended, 0, count=count)
    pipeline.hlen(keys.suspended)
    pipeline.hscan(keys.paused, 0, count=count)
    pipeline.zrange(keys.due, 0, count - 1)
    pipeline.xlen(keys.ready)
    pipeline.zrangebylex(keys.places, *_QUEUES, 0, count)
    pipeline.zlexcount(keys.places, *_QUEUES)
    pipeline.zrangebylex(keys.line, "-", "+", 0, count)
    pipeline.zcard(keys.line)
    pipeline.xpending(keys.ready, GROUP)
    pipeline.xinfo_groups(keys.ready)
    pipeline.xpending_range(keys.ready, GROUP, min="-", max="+", count=count)
    found: dict[str, Any] = dict(zip(_NAMES, await pipeline.execute(raise_on_error=False), strict=True))
    for name, nothing in (("held", {}), ("infos", []), ("pending", [])):
        if isinstance(found[name], ResponseError) and re.search("NOGROUP|no such key", str(found[name])):
            found[name] = nothing  # no worker and no sender has opened the shard yet
    for answer in found.values():
        if isinstance(answer, Exception):
            raise answer
    found["held"] = int(found["held"].get("pending") or 0)
    found["pending"] = [each["message_id"] for each in found["pending"]]
    for name in ("parked", "suspended", "paused"):
        found[name] = found[name][1]
    return found


async def _read_activations(client: Redis, keys: ShardKeys, held: list[bytes], delivered: str, count: int) -> Any:
    """Return the mailboxes that wait for a worker, and those of activations that are held, each oldest first."""
    pipeline = client.pipeline(transaction=False)
    pipeline.xrange(keys.ready, min=f"({delivered}", count=count)
    for activation in held:
        pipeline.xrange(keys.ready, min=activation, max=activation, count=1)
    waiting, *running = await pipeline.execute()
    return _activated(waiting), _activated(entry for page in running for entry in page)


def _activated(entries: Iterable[tuple[bytes, dict[bytes, bytes] | None]]) -> tuple[str, ...]:
    return _mailboxes((fields or {}).get(b"e", b"") for _, fields in entries)


def _delivered(infos: Sequence[Mapping[str, Any]]) -> str:
    """Return the id of the last activation that a worker was given."""
    return next((str(each["last-delivered-id"].decode()) for each in infos if each["name"] == GROUP.encode()), "0-0")


def _mailboxes(names: Iterable[bytes]) -> tuple[str, ...]:
    return tuple(name.decode() for name in names if name and is_mailbox(name))


def _single(scopes: Iterable[bytes], count: int) -> tuple[str, ...]:
    """Return the scopes that are one mailbox."""
    return tuple([name for name in _mailboxes(scopes) if not is_wide(name)][:count])


def _oldest_letters(parked: Mapping[bytes, bytes], count: int) -> tuple[str, ...]:
    """Return the mailboxes whose dead letters are the oldest: their ids begin with the time."""
    return _mailboxes(sorted(parked, key=lambda name: _leading_number(parked[name], b"-"))[:count])


def _longest_suspended(suspended: Mapping[bytes, bytes], count: int) -> tuple[str, ...]:
    return _mailboxes(sorted(suspended, key=lambda name: _leading_number(suspended[name], b"|"))[:count])


def _leading_number(value: bytes, mark: bytes) -> int:
    number = value.partition(mark)[0]
    return int(number) if number.isdigit() else 0


def _queued(members: Iterable[bytes]) -> tuple[str, ...]:
    """Return the mailboxes in the queues of limits, the longest waiting first; classes and shares have times of their own."""
    parts = [member.decode(errors="replace").split("\n", 3) for member in members]
    whole = sorted((part for part in parts if len(part) == 4), key=lambda part: part[2][1:])  # without the rank
    return tuple(dict.fromkeys(part[3] for part in whole))


def _retried(members: Iterable[bytes]) -> tuple[str, ...]:
    return _mailboxes(member[2:] for member in members if member[:2] == b"r:")
