"""`RedisViews`: what is stuck, found by the keys that are kept for it anyway; and parts of what is long.

Every answer has a bounded size, whatever the namespace holds: no request asks for more than some twenty thousand small members.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from command_bus.transport.mailboxes import is_mailbox, is_wide
from command_bus.transport.ports.operator import FoundNames, GroupName, NamedGroup
from command_bus.transport.records import StoredDeadLetter, StoredEntity, StoredEvent
from command_bus.transport.redis.admin.dead_letters import shard_and_entry
from command_bus.transport.redis.admin.entities import RedisEntities
from command_bus.transport.redis.admin.events import newest_events
from command_bus.transport.redis.admin.holds import parse_hold
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.keys import GROUP, KeySpace, ShardKeys
from command_bus.transport.redis.mailbox_record import OLDEST, read_mailboxes, shown_envelope

_QUEUES = ("[q\n", "(q\x0b")
"""The members of `places` that are queues of limits."""
_FIRST = 1_000
"""Members of each key that the first request asks for."""
_MOST = 20_000
"""Members of each key, of all shards together, that are looked at."""
_BYTES = 4 << 20
"""Bytes that the second request asks for of each key, about: names may be long."""
_NAMES = (
    "parked", "parked_all", "suspended", "suspended_all", "paused", "due", "ready", "queued", "queued_all", "line", "in_line", "held",
    "infos", "pending",
)  # fmt: skip
_HASHES = ("parked", "suspended", "paused")


async def read_groups(
    ask: Callable[..., Awaitable[Any]], keys: ShardKeys, count: int, shards: int
) -> Mapping[GroupName, NamedGroup]:
    """Return of each group the first mailboxes, about `count`.

    Args:
        ask: Asks the shard.
        keys: Names of the shard's keys.
        count: As said.
        shards: How many share the bound of what is looked at.
    """
    found: dict[str, Any] = await ask(_read_first, keys, count)
    waiting, running = await ask(_read_rest, keys, found, count, max(_MOST // shards, _FIRST))
    line = [place.decode(errors="replace").split("/", 2)[-1] for place in found["line"]]
    behind = max(found["ready"] - found["held"], 0) + found["in_line"]
    paused, retrying = _single(found["paused"]), _retried(found["due"])
    return {
        "parked": _counted(_by_number(found["parked"], b"-"), found["parked_all"], count),
        "paused": NamedGroup(paused[:count], None, found["cut"]["paused"] or len(paused) > count),
        "limited": _counted(_queued(found["queued"]), found["queued_all"], count),
        "suspended": _counted(_by_number(found["suspended"], b"|"), found["suspended_all"], count),
        "retrying": NamedGroup(retrying[:count], None, found["cut"]["due"] or len(retrying) > count),
        "waiting": _counted((*waiting, *line), behind, count),
        "running": _counted(running, found["held"], count),
    }


def _counted(names: Sequence[str], total: int, count: int) -> NamedGroup:
    return NamedGroup(tuple(names[:count]), total, total > count)


async def _read_first(client: Redis, keys: ShardKeys, count: int) -> dict[str, Any]:
    first = max(count, _FIRST)
    pipeline = client.pipeline(transaction=False)
    pipeline.hscan(keys.parked, 0, count=first)
    pipeline.hlen(keys.parked)
    pipeline.hscan(keys.suspended, 0, count=first)
    pipeline.hlen(keys.suspended)
    pipeline.hscan(keys.paused, 0, count=first)
    pipeline.zrange(keys.due, 0, first - 1)
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
    found["cursors"] = {name: int(found[name][0]) for name in _HASHES}
    found |= {name: found[name][1] for name in _HASHES}
    is_full = len(found["due"]) == first and len(_retried(found["due"])) <= count
    found["cut"] = {"due": is_full, **{name: bool(cursor) for name, cursor in found["cursors"].items()}}
    return found


async def _read_rest(client: Redis, keys: ShardKeys, found: dict[str, Any], count: int, most: int) -> Any:
    """Return the mailboxes that wait for a worker, and those of activations that are held, each oldest first. Complete what was cut."""
    sources = {"parked": keys.parked, "suspended": keys.suspended, "paused": keys.paused}
    cut = [name for name in sources if found["cut"][name]]
    pipeline = client.pipeline(transaction=False)
    pipeline.xrange(keys.ready, min=f"({_delivered(found['infos'])}", count=count)
    for activation in found["pending"]:
        pipeline.xrange(keys.ready, min=activation, max=activation, count=1)
    for name in cut:
        sample = [*found[name].keys(), *found[name].values()]
        pipeline.hscan(sources[name], found["cursors"][name], count=_further(sample, len(found[name]), most))
    read = len(found["due"])
    further = _further(found["due"], read, most)
    if found["cut"]["due"]:
        pipeline.zrange(keys.due, read, read + further - 1)
    waiting, *rest = await pipeline.execute()
    if found["cut"]["due"]:
        page = rest.pop()
        found["due"] += page
        found["cut"]["due"] = len(page) == further
    for name in reversed(cut):
        cursor, page = rest.pop()
        found[name] |= page
        found["cut"][name] = bool(int(cursor))
    return _activated(waiting), _activated(entry for page in rest for entry in page)


def _further(sample: Sequence[bytes], members: int, most: int) -> int:
    """Return for how many further members the second request asks, given those that were read."""
    return max(min(most - members, _BYTES * members // max(sum(map(len, sample)), 1)), 1)


def _activated(entries: Iterable[tuple[bytes, dict[bytes, bytes] | None]]) -> tuple[str, ...]:
    return mailboxes_of((fields or {}).get(b"e", b"") for _, fields in entries)


def _delivered(infos: Sequence[Mapping[str, Any]]) -> str:
    """Return the id of the last activation that a worker was given."""
    return next((str(each["last-delivered-id"].decode()) for each in infos if each["name"] == GROUP.encode()), "0-0")


def mailboxes_of(names: Iterable[bytes]) -> tuple[str, ...]:
    """Return the names that are mailboxes."""
    return tuple(name.decode() for name in names if name and is_mailbox(name))


def _single(holds: Mapping[bytes, bytes]) -> tuple[str, ...]:
    """Return the scopes that are one mailbox, the longest held first."""
    ordered = sorted(holds, key=lambda scope: parse_hold("", holds[scope]).since_ms)
    return tuple(name for name in mailboxes_of(ordered) if not is_wide(name))


def _by_number(values: Mapping[bytes, bytes], mark: bytes) -> tuple[str, ...]:
    """Return the mailboxes by the times with which their values begin: of a dead letter's id, or of a suspension."""
    return mailboxes_of(sorted(values, key=lambda name: _leading_numbers(values[name], mark)))


def _leading_numbers(value: bytes, mark: bytes) -> tuple[int, ...]:
    return tuple(int(number) if number.isdigit() and len(number) < 20 else 0 for number in value.split(mark, 2)[:2])


def _queued(members: Iterable[bytes]) -> tuple[str, ...]:
    """Return the mailboxes in the queues of limits, the longest waiting first; classes and shares have times of their own."""
    parts = [member.decode(errors="replace").split("\n", 3) for member in members]
    whole = sorted((part for part in parts if len(part) == 4), key=lambda part: part[2][1:])  # without the rank
    return tuple(dict.fromkeys(part[3] for part in whole))


def _retried(members: Iterable[bytes]) -> tuple[str, ...]:
    return mailboxes_of(member[2:] for member in members if member[:2] == b"r:")


_PARKED = 200


class RedisViews(RetryingRequests):
    """Implements `Views`.

    Args:
        connections: Clients that this process shares.
        keys: The shards.
        patience: Seconds for which a request may be repeated.
        entities: Reads single mailboxes.
    """

    def __init__(self, connections: Connections, keys: KeySpace, *, patience: float, entities: RedisEntities) -> None:
        super().__init__(connections, keys, patience=patience)
        self._entities = entities

    async def groups(self, shard: int, count: int) -> Mapping[GroupName, NamedGroup]:
        """Read them in two round trips."""
        return await read_groups(partial(self._ask, self._keys.shards[shard]), self._keys.shards[shard], count, self._keys.count)

    async def look(self, mailboxes: Sequence[str]) -> dict[str, StoredEntity]:
        """Read them in a round trip, or two if something is paused."""
        parts = self._shards_of(mailboxes)
        pages = await asyncio.gather(*(self._entities.look_at(keys, names) for keys, names in parts))
        return {entity.mailbox: entity for page in pages for entity in page}

    async def first_commands(self, mailboxes: Sequence[str]) -> dict[str, tuple[str, bytes]]:
        """Read them in one round trip for each 500 mailboxes of a shard."""
        found: dict[str, tuple[str, bytes]] = {}

        async def read(keys: ShardKeys, names: list[str]) -> None:
            wanted = [(name, OLDEST) for name in names]
            for name, entries in zip(names, await read_mailboxes(partial(self._run, keys), keys, wanted, 1), strict=True):
                if entries:
                    entry, fields = entries[0]
                    found[name] = entry, shown_envelope(fields)

        await asyncio.gather(*(read(keys, names) for keys, names in self._shards_of(mailboxes)))
        return found

    async def find(self, shard: int, cursor: int, pattern: str, count: int) -> FoundNames:
        keys = self._keys.shards[shard]
        following, page = await self._ask(keys, lambda client: client.hscan(keys.active, cursor, match=pattern, count=count))
        return FoundNames(mailboxes_of(page), int(following), count)

    async def events(self, shard: int, before: Sequence[str], count: int) -> list[StoredEvent]:
        keys = self._keys.shards[shard]
        pages: list[Any] = await asyncio.gather(
            *(self._ask(keys, _newest, *each, count) for each in zip((keys.events, keys.arrivals), before, strict=True))
        )
        return newest_events(shard, self._keys.count, *pages)[:count]

    async def letters(self, shard: int, before: str, count: int) -> list[tuple[str, StoredDeadLetter]]:
        keys = self._keys.shards[shard]
        page = await self._ask(keys, _newest, keys.dead, before, count)
        return [(entry.decode(), StoredDeadLetter.parse(shard, entry, fields or {})) for entry, fields in page]

    async def letters_by_id(self, letter_ids: Sequence[str]) -> list[StoredDeadLetter]:
        parts: dict[int, list[str]] = {}
        for found_at in (shard_and_entry(each, self._keys.count) for each in letter_ids):
            if found_at is not None:
                parts.setdefault(found_at[0], []).append(found_at[1])

        async def read(shard: int, entries: list[str]) -> list[StoredDeadLetter]:
            keys = self._keys.shards[shard]
            pages = await self._ask(keys, _each_entry, keys.dead, entries)
            return [StoredDeadLetter.parse(shard, entry, fields or {}) for page in pages for entry, fields in page]

        return [each for page in await asyncio.gather(*(read(*part) for part in parts.items())) for each in page]

    async def parking(self) -> AsyncIterator[list[StoredDeadLetter]]:
        """Yield them, with two round trips for each page."""
        for shard, keys in enumerate(self._keys.shards):
            async for page in self._hash_pages(keys, keys.parked, _PARKED):
                yield await self.letters_by_id([f"{shard}-{letter.decode(errors='replace')}" for letter in page.values()])


def _newest(client: Redis, stream: str, before: str, count: int) -> Any:
    return client.xrevrange(stream, f"({before}" if before else "+", "-", count=count)


async def _each_entry(client: Redis, stream: str, entries: list[str]) -> Any:
    pipeline = client.pipeline(transaction=False)
    for entry in entries:
        pipeline.xrange(stream, min=entry, max=entry, count=1)
    return await pipeline.execute()
