"""The unique keys of an entity as they are stored, and where the commands are that stand for them: as `standing` in `lua/shared/unique.lua`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.redis.mailbox_record import MailboxRecord, parse_record
from command_bus.transport.unique_keys import KeyState, Stander, StoredKey, stored_key

__all__ = ["SCANNED", "page_of_keys", "state_of"]

SCANNED = 500
"""Keys of a shard that one request looks at, about."""


async def page_of_keys(client: Redis, keys: ShardKeys, mailbox: str, entity: str, cursor: int) -> tuple[int, list[StoredKey]]:
    """Return a page of the keys of an entity, given as it stands in keys, and the next cursor."""
    prefix = stored_key(mailbox, f"{entity}:")
    answer: Any = await client.hscan(
        keys.unique, cursor, match=f"{prefix}*", count=SCANNED
    )  # encoded, it has no letter of patterns
    following, page = answer
    found = [(key.decode(errors="replace"), stander) for key, value in page.items() if (stander := Stander.parse(value))]
    record, now_ms, delayed = await _look(client, keys, mailbox, [stander for _, stander in found])
    listed = [
        StoredKey(key.removeprefix(prefix), stander, state_of(stander, record, delayed=stander.command_id in delayed))
        for key, stander in found
    ]
    return int(following), [each for each in listed if each.state != "settled" or each.stander.window_ms > now_ms]


async def _look(
    client: Redis, keys: ShardKeys, mailbox: str, standers: Sequence[Stander]
) -> tuple[MailboxRecord, int, frozenset[str]]:
    """Return the mailbox's record, the time in ms, and which of the commands are delayed."""
    asked = [stander.command_id for stander in standers if stander.place == "d"]
    pipeline = client.pipeline(transaction=False)
    pipeline.time()
    pipeline.hget(keys.active, mailbox)
    for command_id in asked:
        pipeline.hstrlen(keys.delayed, command_id)
    (seconds, micros), record, *sizes = await pipeline.execute()
    delayed = frozenset(command_id for command_id, size in zip(asked, sizes, strict=True) if size)
    return parse_record(record), int(seconds) * 1000 + int(micros) // 1000, delayed


def state_of(stander: Stander, record: MailboxRecord, *, delayed: bool) -> KeyState:
    """Return where the command is that stands for a key."""
    if stander.place == "d":
        return "delayed" if delayed else "settled"
    if not record.state or record.is_lone:
        return "settled"
    if record.is_newer or record.message == stander.place:
        return "started"
    if record.message:
        return "waiting" if _number(stander.place) > _number(record.message) else "settled"
    return "started" if record.first_ms and record.parts.get("started") == stander.place else "waiting"


def _number(message: str) -> tuple[int, int]:
    ms, _, count = message.partition("-")
    return (int(ms), int(count)) if ms.isdecimal() and count.isdecimal() else (0, 0)
