"""The unique keys as they are stored, and where the commands are that hold them: as `standing` in `lua/shared/unique.lua`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.redis.mailbox_record import MailboxRecord, parse_record
from command_bus.transport.unique_keys import KeyState, Stander, StoredKey, mailbox_of_key

SCANNED = 500
"""Keys of a shard that one request looks at, about."""


async def scan_keys(client: Redis, keys: ShardKeys, cursor: int, prefix: str = "") -> tuple[int, list[tuple[str, Stander]], int]:
    """Return the next cursor, the keys of a page that begin with a prefix, as they are stored, and how many the server returned.

    Encoded, a prefix has no letter of patterns.
    """
    answer: Any = await client.hscan(keys.unique, cursor, match=f"{prefix}*" if prefix else None, count=SCANNED)
    following, page = answer
    found = [(key.decode(errors="replace"), stander) for key, value in page.items() if (stander := Stander.parse(value))]
    return int(following), found, len(page)


async def held_among(client: Redis, keys: ShardKeys, found: Sequence[tuple[str, Stander]]) -> list[StoredKey]:
    """Return those of stored keys that are held, with where their commands are."""
    if not found:
        return []
    records, now_ms, delayed = await _look(client, keys, found)
    listed = [
        StoredKey(key, stander, state_of(stander, record, now_ms, delayed=stander.command_id in delayed))
        for (key, stander), record in zip(found, records, strict=True)
    ]
    return [each for each in listed if each.state != "settled" or each.stander.window_ms > now_ms]


async def _look(
    client: Redis, keys: ShardKeys, found: Sequence[tuple[str, Stander]]
) -> tuple[list[MailboxRecord], int, frozenset[str]]:
    """Return the record of the mailbox of each key, the time in ms, and which of the commands are delayed."""
    asked = [stander.command_id for _, stander in found if stander.place == "d"]
    pipeline = client.pipeline(transaction=False)
    pipeline.time()
    pipeline.hmget(keys.active, [mailbox_of_key(key) for key, _ in found])
    for command_id in asked:
        pipeline.hstrlen(keys.delayed, command_id)
    (seconds, micros), records, *sizes = await pipeline.execute()
    delayed = frozenset(command_id for command_id, size in zip(asked, sizes, strict=True) if size)
    return [parse_record(record) for record in records], int(seconds) * 1000 + int(micros) // 1000, delayed


def state_of(stander: Stander, record: MailboxRecord, now_ms: int, *, delayed: bool) -> KeyState:
    """Return where the command is that holds a key. One whose deadline has passed before it was started is as good as settled."""
    if stander.place == "d":
        return "delayed" if delayed else "settled"
    if stander.place == "s" or not record.state or record.is_lone:
        return "settled"
    if record.is_newer or record.message == stander.place:
        return "started"
    late = stander.ttl_ms is not None and now_ms > _number(stander.place)[0] + stander.ttl_ms
    waits: KeyState = "settled" if late else "waiting"
    if record.message:
        return waits if _number(stander.place) > _number(record.message) else "settled"
    if record.first_ms == 0:
        return waits
    head = record.parts.get("started")
    if head != stander.place:
        return waits if head else "waiting"
    return waits if late and record.attempt == 0 and record.first_ms > 0 else "started"


def _number(message: str) -> tuple[int, int]:
    ms, _, count = message.partition("-")
    return (int(ms), int(count)) if ms.isdecimal() and count.isdecimal() else (0, 0)
