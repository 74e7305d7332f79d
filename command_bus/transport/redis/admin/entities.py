"""What the views of operators read shard by shard: the entities that have work or are stopped, and the dead letters.

Nothing here is a snapshot. Entities come by scans, so one that comes or goes meanwhile may be told of or not; each at most once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from redis.asyncio import Redis

from command_bus.transport.mailboxes import EVERYTHING, is_mailbox, is_wide, scope_of
from command_bus.transport.records import EntityState, Hold, StoredDeadLetter, StoredEntity
from command_bus.transport.redis.admin.holds import parse_hold
from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.redis.scripts import SURVEY

__all__ = ["Survey", "surveyed"]


_PAGE = 500
_STATES: dict[bytes, EntityState] = {b"r": "waiting", b"h": "running", b"w": "retrying"}


class Survey(RetryingRequests):
    """Reads entities and dead letters in pages."""

    async def entities(self, shard: int) -> AsyncIterator[list[StoredEntity]]:
        """The entities of a shard, page by page: what has work, then what only is paused or has only delayed commands."""
        keys = self._keys.shards[shard]
        seen: set[bytes] = set()
        for source in (keys.active, keys.paused, keys.later):
            cursor = 0
            while True:
                cursor, page = await self._scan(keys, source, cursor)
                names = [name for name in page if name not in seen and is_mailbox(name) and not is_wide(name.decode())]
                seen.update(names)
                if names:
                    yield await self._look(keys, names)
                if not cursor:
                    break

    async def look(self, mailbox: str) -> StoredEntity:
        """One mailbox, whether there is work in it or not."""
        return (await self._look(self._keys.shards[self._keys.shard_of(mailbox)], [mailbox.encode()]))[0]

    async def newest_letter(self, shard: int, high: str = "+") -> str | None:
        """The id of a shard's newest dead letter up to a bound, which is written as for XRANGE; None if there is none."""
        keys = self._keys.shards[shard]
        found = await self._ask(keys, lambda client: client.xrevrange(keys.dead, high, "-", count=1))
        return found[0][0].decode() if found else None

    async def letters(self, shard: int, after: str, until: str, count: int) -> list[tuple[str, StoredDeadLetter]]:
        """Dead letters behind `after` (empty: from the first on) up to and with `until`, oldest first, by their ids in the shard."""
        keys = self._keys.shards[shard]
        page = await self._ask(keys, lambda client: client.xrange(keys.dead, f"({after}" if after else "-", until, count=count))
        return [(entry.decode(), _letter(shard, entry.decode(), fields)) for entry, fields in page]

    async def _look(self, keys: ShardKeys, names: list[bytes]) -> list[StoredEntity]:
        texts = [name.decode() for name in names]
        wide = [*dict.fromkeys(map(scope_of, texts)), EVERYTHING]

        async def read(client: Redis) -> Any:
            pipeline = client.pipeline(transaction=False)
            for source in (keys.active, keys.paused, keys.parked, keys.later):
                pipeline.hmget(source, names)
            pipeline.hmget(keys.paused, wide)
            return await pipeline.execute()

        records, paused, parked, later, held = await self._ask(keys, read)
        holds = {scope: parse_hold(scope, value) for scope, value in zip([*texts, *wide], [*paused, *held], strict=True) if value}
        lengths = await self._run(keys, SURVEY, [keys.mailbox(text) for text in texts], [])
        return [
            surveyed(text, holds, *facts)
            for text, *facts in zip(texts, records, parked, later, lengths[::2], lengths[1::2], strict=True)
        ]

    async def _scan(self, keys: ShardKeys, key: str, cursor: int) -> Any:
        return await self._ask(keys, lambda client: client.hscan(key, cursor, count=_PAGE))


def surveyed(
    mailbox: str,
    holds: dict[str, Hold],
    record: bytes | None,
    parked: bytes | None,
    later: bytes | None,
    length: int,
    head: bytes,
) -> StoredEntity:
    """What the keys say of a mailbox together. A paused entity whose command still runs is running.

    Args:
        mailbox: Its name.
        holds: What is paused or drained, by scope.
        record: Its field of `active`, or None.
        parked: That of `parked`, or None.
        later: That of `later`, or None.
        length: Of its stream.
        head: The id of the stream's oldest entry, or empty.
    """
    state, _, fence, _, attempt, first, holder = ((record or b"").split(b"|") + [b""] * 6)[:7]
    shown = _STATES.get(state, "waiting")
    found = [holds[scope] for scope in (mailbox, scope_of(mailbox), EVERYTHING) if scope in holds]
    paused = next((hold for hold in found if hold.mode == "paused"), None)
    if shown != "running" and parked is not None:
        shown = "parked"
    elif shown != "running" and paused is not None:
        shown = "paused"
    elif shown == "waiting" and found:
        shown = "draining"
    return StoredEntity(
        mailbox,
        shown,
        max(length, 0) + _number(later),
        int(head.partition(b"-")[0] or 0),
        _number(attempt),
        holder.decode(errors="replace"),
        _number(first.removeprefix(b"-")),
        _number(fence) // 1000,
        (parked or b"").decode(errors="replace"),
        paused or next(iter(found), None),
    )


def _number(value: bytes | None) -> int:
    """A number as the scripts write it; 0 for what is none."""
    return int(value) if value is not None and value.isdigit() else 0


def _letter(shard: int, entry: str, fields: dict[bytes, bytes]) -> StoredDeadLetter:
    return StoredDeadLetter(
        f"{shard}-{entry}",
        fields.get(b"m", b"").decode(errors="replace"),
        fields.get(b"r", b""),
        fields.get(b"e", b""),
        fields.get(b"p") == b"1",
    )
