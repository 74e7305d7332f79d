"""Mailboxes: what waits in them, page by page, and taking commands out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from redis.asyncio import Redis

from command_bus.serialization.odd_values import stored_number, stored_text
from command_bus.transport.mailboxes import envelope_in, is_mailbox, message_order, scopes_of, unpack_entry
from command_bus.transport.ports.operator import Mailboxes
from command_bus.transport.records import Contents, StoredEntity, WaitingEntry
from command_bus.transport.redis.admin.entities import RedisEntities
from command_bus.transport.redis.connection.connections import Connections, PageSize
from command_bus.transport.redis.connection.retrying import RetryingRequests, server_ms
from command_bus.transport.redis.keys import GROUP, KeySpace, ShardKeys
from command_bus.transport.redis.mailbox_record import (
    BLOCKED,
    OLDEST,
    MailboxRecord,
    mailbox_pages,
    parse_record,
    read_mailboxes,
    refuse_newer,
)
from command_bus.transport.redis.scripts import MAILBOX_HEADS, REMOVE, RESCHEDULE
from command_bus.transport.redis.step_arguments import caller_arguments
from command_bus.transport.steps import Removal
from command_bus.transport.unique_keys import KeyState, Stander, StoredKey, mailbox_of_key, stored_key

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
    time, records, *sizes = await pipeline.execute()
    delayed = frozenset(command_id for command_id, size in zip(asked, sizes, strict=True) if size)
    return [parse_record(record) for record in records], server_ms(time), delayed


def state_of(stander: Stander, record: MailboxRecord, now_ms: int, *, delayed: bool) -> KeyState:
    """Return where the command is that holds a key. One whose deadline has passed before it was started is as good as settled."""
    if stander.place == "d":
        return "delayed" if delayed else "settled"
    if stander.place == "s" or not record.state or record.is_lone:
        return "settled"
    if record.state == BLOCKED:  # its head has not started
        record = record._replace(message="")
    if record.is_newer or record.message == stander.place:
        return "started"
    late = stander.ttl_ms is not None and now_ms > message_order(stander.place)[0] + stander.ttl_ms
    waits: KeyState = "settled" if late else "waiting"
    place, last_begun = message_order(stander.place), message_order(record.run.begun)
    if place <= last_begun and (not record.message or place > message_order(record.message)):
        return "started"
    if record.message:
        if place <= message_order(record.message):
            return "settled"
        return waits if place > message_order(record.last_running) else "started"
    if record.first_ms == 0:
        return waits
    head = record.parts.get("started")
    if head != stander.place:
        return waits if head else "waiting"
    return waits if late and record.attempt == 0 and record.first_ms > 0 else "started"


_PAGE = 200
_MOST_OF_ONE = 1_000  # commands of one mailbox per request
_LOT = 10_000  # commands per round trip

_Reading = tuple[StoredEntity, str]
"""A mailbox, and where to go on in it."""


class RedisMailboxes(RetryingRequests, Mailboxes):
    """Implements `Mailboxes`.

    Args:
        connections: Clients that this process shares.
        keys: The shards.
        patience: As for `RetryingRequests`.
        reply_ttl: Seconds that an inbox lives after a reply was pushed.
        entities: Finds the mailboxes.
    """

    def __init__(
        self, connections: Connections, keys: KeySpace, *, patience: float, reply_ttl: float, entities: RedisEntities
    ) -> None:
        super().__init__(connections, keys, patience=patience)
        self._entities = entities
        self._reply_ttl_ms = int(reply_ttl * 1000)

    async def depth(self, mailbox: str) -> int:
        """Return how many commands a mailbox holds, delayed ones included."""
        keys = self._keys_of(mailbox)
        length, _ = await self._run_once(keys, MAILBOX_HEADS, [keys.active, keys.mailbox(mailbox)], [len(keys.mailboxes)])
        later = await self._ask_once(keys, lambda client: client.hget(keys.delayed_counts, mailbox))
        return max(int(length), 0) + stored_number("later", later)

    async def waiting(self, mailbox: str) -> AsyncIterator[list[WaitingEntry]]:
        """Yield the commands that wait in a mailbox, page by page, delayed commands last."""
        async for page in self.lined_up(mailbox):
            yield page
        keys = self._keys_of(mailbox)
        if not await self._ask_once(keys, lambda client: client.hexists(keys.delayed_counts, mailbox)):
            return
        async for delayed in self.delayed(self._keys.shard_of(mailbox)):
            found = [
                command if home == mailbox else WaitingEntry(command.id, b"", delayed=True, home=home)
                for home, command in delayed
                if home == mailbox or mailbox in command.lines
            ]
            if found:
                yield found

    async def lined_up(self, mailbox: str) -> AsyncIterator[list[WaitingEntry]]:
        """Yield the commands that wait in a mailbox now, page by page, without the delayed ones."""
        keys = self._keys_of(mailbox)
        async for page in mailbox_pages(partial(self._run_once, keys), keys, mailbox, _PAGE):
            yield [_waiting(*each) for each in page]

    async def delayed(self, shard: int) -> AsyncIterator[list[tuple[str, WaitingEntry]]]:
        """Yield the delayed commands of a shard with their mailboxes, page by page."""
        keys = self._keys.shards[shard]
        async for page in self._hash_pages(keys, keys.delayed, _PAGE, once=True):
            cut = ((command, value.partition(b"\n")) for command, value in page.items())
            yield [
                (stored_text(parts[0]), _waiting(stored_text(command), dict(reversed(unpack_entry(parts[2]))), delayed=True))
                for command, parts in cut
                if is_mailbox(parts[0]) and is_mailbox(command)
            ]

    async def remove(self, mailbox: str, commands: Iterable[Removal], *, fresh: bool = False) -> int:
        """Take waiting commands out of line, answering their callers; how many there still were. With `fresh` only those never started."""
        keys = self._keys_of(mailbox)
        names = [
            keys.ready,
            keys.active,
            keys.stats,
            keys.due,
            keys.delayed,
            keys.delayed_counts,
            keys.parked,
            keys.dead,
            keys.mailbox(mailbox),
            keys.watched,
            keys.events,
            keys.lone,
            keys.unique,
            *keys.fair,
            keys.paused,
            keys.suspended,
        ]
        args: list[Any] = [GROUP, mailbox, self._reply_ttl_ms, int(fresh)]
        for command, left, begun in commands:
            mark = keys.mark(left.command_id)
            names += (
                mark,
                keys.inbox(left.inbox) if left.reply else mark,
                *(keys.keeping(left.dispatch) if left.outcome else (mark, mark)),
                keys.side(left.command_id) if left.side else mark,
            )
            args += (f"d:{command.id}" if command.delayed else command.id, left.mark_ms, left.mark, left.reply, left.outcome)
            args.append(stored_key(mailbox, left.unique))
            args += caller_arguments(self._keys, keys, left, names)
            args += (begun.mark, begun.reply, begun.outcome, b"" if begun.waiting is None else begun.waiting.reply)
        answer = await self._run_once(keys, REMOVE, names, args)
        refuse_newer(answer, mailbox)
        return int(answer)

    async def reschedule(self, mailbox: str, command_id: str, at_ms: int | None, delay_ms: int) -> bool:
        """Give a delayed command another time; whether it is still delayed."""
        keys = self._keys_of(mailbox)
        at = f"+{delay_ms}" if at_ms is None else str(at_ms)
        return bool(await self._run(keys, RESCHEDULE, [keys.ready, keys.due, keys.delayed_counts], [GROUP, command_id, at]))

    async def find_delayed(self, command_id: str, mailbox: str | None = None) -> tuple[str, bytes] | None:
        """Return the mailbox and the envelope of a delayed command. With `mailbox`, only if it is in that one."""
        shards = self._keys.shards if mailbox is None else [self._keys_of(mailbox)]
        values = await asyncio.gather(
            *(self._ask_once(shard, lambda client, key: client.hget(key, command_id), shard.delayed) for shard in shards)
        )
        for value in values:
            name, _, entry = (value or b"").partition(b"\n")
            if name and is_mailbox(name) and mailbox in (None, name.decode()):
                return name.decode(), envelope_in(entry)
        return None

    async def release_key(self, mailbox: str, key: str) -> bool:
        """Release a unique key; whether it was held. The command that holds it stays where it is."""
        keys = self._keys_of(mailbox)
        return bool(await self._ask_once(keys, lambda client: client.hdel(keys.unique, stored_key(mailbox, key))))

    async def unique_keys(self, mailbox: str, entity: str, scan: int) -> tuple[list[StoredKey], bool]:
        keys, cursor, found = self._keys_of(mailbox), 0, list[StoredKey]()
        prefix = stored_key(mailbox, f"{entity}:")
        for _ in range(-(-scan // SCANNED)):
            cursor, page, _ = await self._ask_once(keys, scan_keys, keys, cursor, prefix)
            found += await self._ask_once(keys, held_among, keys, page)
            if not cursor:
                break
        return [each._replace(key=each.key.removeprefix(prefix)) for each in dict.fromkeys(found)], not cursor

    async def held_keys(self, shard: int, scope: str, after: str, limit: int, scan: int) -> tuple[list[StoredKey], bool]:
        keys, cursor, seen = self._keys.shards[shard], 0, 0
        best: dict[str, StoredKey] = {}
        while seen < scan:
            cursor, page, looked_at = await self._ask_once(keys, scan_keys, keys, cursor)
            seen += looked_at
            last = max(best) if len(best) >= limit else None
            wanted = [
                (key, stander)
                for key, stander in page
                if key > after and key.count(":") > 1 and (last is None or key < last) and scope in scopes_of(mailbox_of_key(key))
            ]
            best |= {each.key: each for each in await self._ask_once(keys, held_among, keys, wanted)}
            best = {key: best[key] for key in sorted(best)[:limit]}
            if not cursor:
                break
        return [*best.values()], not cursor

    async def names(self) -> AsyncIterator[str]:
        """Yield every mailbox that has work, in no order, some perhaps twice."""
        for shard in self._keys.shards:
            async for page in self._hash_pages(shard, shard.active, once=True):
                for name in page:
                    if is_mailbox(name):
                        yield name.decode()

    async def contents(self, shard: int) -> AsyncIterator[list[Contents]]:
        """Yield the mailboxes of a shard with the commands in them, oldest first."""
        keys, size = self._keys.shards[shard], PageSize(_LOT)
        run = partial(self._run, keys)
        async for page in self._entities.pages(shard, lines=True):
            left = deque((entity, OLDEST) for entity in page if entity.depth)
            while left:
                each = min(_MOST_OF_ONE, size.count)
                lot = _lot(left, each, size.count)
                answers = await read_mailboxes(run, keys, [(entity.mailbox, start) for entity, start in lot], each)
                found = [[_waiting(*each) for each in entries if b"s" not in each[1]] for entries in answers]
                size.observe(sum(len(each.envelope) for held in found for each in held), sum(map(len, found)))
                yield [(entity, held) for (entity, _), held in zip(lot, found, strict=True)]
                left.extendleft(
                    (entity, f"({entries[-1][0]}")
                    for (entity, _), entries in zip(lot, answers, strict=True)
                    if len(entries) == each
                )


def _waiting(entry: str, fields: Mapping[bytes, bytes], *, delayed: bool = False) -> WaitingEntry:
    home, places = (stored_text(fields.get(name, b"")) for name in (b"s", b"w"))
    return WaitingEntry(entry, fields.get(b"e", b""), delayed, home, places)


def _lot(left: deque[_Reading], each: int, most: int) -> list[_Reading]:
    """Take from the rest what is read in one round trip: at least one mailbox, each with at most `each` of its commands."""
    lot = [left.popleft()]
    size = min(lot[0][0].depth, each)
    while left and size + min(left[0][0].depth, each) <= most:
        lot.append(left.popleft())
        size += min(lot[-1][0].depth, each)
    return lot
