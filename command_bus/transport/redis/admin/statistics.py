"""What an operator asks of a namespace: statistics, purge and cancel, dead letters. Shard by shard, in pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from command_bus.transport.mailboxes import is_mailbox
from command_bus.transport.records import StoredDeadLetter, Waiting
from command_bus.transport.redis.admin.mailboxes import Lines
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.page_size import PageSize
from command_bus.transport.redis.keys import GROUP, KeySpace, ShardKeys
from command_bus.transport.redis.scripts import LETTER, REMOVE
from command_bus.transport.steps import Settlement

__all__ = ["Operations"]

_PAGE = 200

Leave = Callable[[bytes], Settlement]


class Operations:
    """Operator's steps of one namespace.

    Args:
        connections: Of this process.
        keys: The shards.
        reply_ttl: Seconds that an inbox lives after a reply was pushed.
    """

    def __init__(self, connections: Connections, keys: KeySpace, *, reply_ttl: float) -> None:
        self._connections = connections
        self._keys = keys
        self.lines = Lines(connections, keys)
        self._reply_ttl_ms = int(reply_ttl * 1000)

    # Looking.

    async def snapshot(self, shard: ShardKeys) -> dict[str, Any]:
        """The raw figures of one shard, in one round trip; in two if entities wait for a worker, for the first of them."""

        async def read(client: Redis) -> Any:
            pipeline = client.pipeline(transaction=False)
            pipeline.hgetall(shard.stats)
            pipeline.xlen(shard.dead)
            pipeline.xlen(shard.ready)
            pipeline.xpending(shard.ready, GROUP)
            pipeline.zcard(shard.due)
            pipeline.hlen(shard.active)
            pipeline.hgetall(shard.paused)
            pipeline.hlen(shard.parked)
            pipeline.xinfo_groups(shard.ready)
            pipeline.hgetall(shard.workers)
            pipeline.time()
            answers = await pipeline.execute(raise_on_error=False)
            found: dict[str, Any] = dict(zip(names, answers, strict=True))
            for name, nothing in (("pending", {}), ("groups", [])):
                if isinstance(found[name], ResponseError):
                    found[name] = nothing  # no stream or no group yet
            for answer in found.values():
                if isinstance(answer, Exception):
                    raise answer
            found["waiting"] = []
            if found["ready"] > int(found["pending"].get("pending") or 0):
                delivered = next((group["last-delivered-id"].decode() for group in found["groups"]), "0-0")
                found["waiting"] = await client.xrange(shard.ready, min=f"({delivered}", count=1)
            return found

        names = ("counters", "dead", "ready", "pending", "due", "active", "paused", "parked", "groups", "workers", "time")
        found: dict[str, Any] = await self._at(shard).ask(read)
        return found

    async def depth(self, mailbox: str) -> int:
        """Commands that a mailbox holds, delayed ones included."""
        keys = self._shard(mailbox)

        async def read(client: Redis) -> Any:
            pipeline = client.pipeline(transaction=False)
            pipeline.xlen(keys.mailbox(mailbox))
            pipeline.hget(keys.later, mailbox)
            return await pipeline.execute()

        length, later = await self._at(keys).ask(read)
        return int(length) + int(later or 0)

    async def stopped(self, shard: ShardKeys, limit: int) -> list[str] | None:
        """The mailboxes that only an operator can move, at most `limit`; None if anything else has work."""
        names: list[str] = []
        cursor = 0
        while True:
            answer: Any = await self._at(shard).ask(lambda client, at: client.hscan(shard.active, at, count=_PAGE), cursor)
            cursor, page = answer
            for mailbox, state in page.items():
                if state[:1] != b"s":
                    return None
                if len(names) < limit:
                    names.append(mailbox.decode(errors="replace"))
            if not cursor:
                return names

    async def marks(self, command_id: str) -> list[tuple[ShardKeys, bytes]]:
        """The marks of a command id, wherever it was accepted."""
        values = await asyncio.gather(
            *(self._at(shard).ask(lambda client, key: client.get(key), shard.mark(command_id)) for shard in self._keys.shards)
        )
        return [(shard, value) for shard, value in zip(self._keys.shards, values, strict=True) if value is not None]

    # Commands.

    async def describe(self, records: dict[str, bytes]) -> None:
        """Leave what a worker says of its commands, by wire name, for clients without their classes."""
        mapping: Any = records
        if records:
            first = self._keys.shards[0]
            await self._at(first).ask(lambda client: client.hset(first.commands, mapping=mapping))

    async def described(self, name: str) -> bytes | None:
        """What the last worker said of a command, or None."""
        first = self._keys.shards[0]
        record: bytes | None = await self._at(first).ask(lambda client: client.hget(first.commands, name))
        return record

    # Entities.

    async def waiting(self, mailbox: str) -> AsyncIterator[list[Waiting]]:
        """What waits in a mailbox, page by page, delayed commands last."""
        async for page in self.lined_up(mailbox):
            yield page
        keys = self._shard(mailbox)
        if not await self._at(keys).ask(lambda client: client.hexists(keys.later, mailbox)):
            return
        async for delayed in self.delayed(keys):
            found = [command for home, command in delayed if home == mailbox]
            if found:
                yield found

    async def lined_up(self, mailbox: str) -> AsyncIterator[list[Waiting]]:
        """What waits in a mailbox now, page by page, without the delayed commands."""
        keys = self._shard(mailbox)
        async for page in self._stream(keys, keys.mailbox(mailbox), "-"):
            yield [Waiting(entry.decode(), fields.get(b"e", b"")) for entry, fields in page]

    async def delayed(self, keys: ShardKeys) -> AsyncIterator[list[tuple[str, Waiting]]]:
        """The delayed commands of a shard with their mailboxes, page by page."""
        cursor, size = 0, PageSize(_PAGE)
        while True:
            answer: Any = await self._at(keys).ask(
                lambda client, at, count: client.hscan(keys.delayed, at, count=count), cursor, size.count
            )
            cursor, values = answer
            size.observe(sum(map(len, values.values())), len(values))
            cut = ((command, value.partition(b"\n")) for command, value in values.items())
            yield [
                (parts[0].decode(), Waiting("d:" + command.decode(), parts[2]))
                for command, parts in cut
                if is_mailbox(parts[0]) and is_mailbox(command)
            ]
            if not cursor:
                return

    async def remove(self, mailbox: str, commands: Iterable[tuple[Waiting, Settlement]]) -> int:
        """Take waiting commands out of line, answering their callers; how many there still were."""
        keys = self._shard(mailbox)
        names = [
            keys.ready,
            keys.active,
            keys.stats,
            keys.due,
            keys.delayed,
            keys.later,
            keys.parked,
            keys.dead,
            keys.mailbox(mailbox),
            keys.watched,
            keys.events,
        ]
        args: list[Any] = [GROUP, mailbox, self._reply_ttl_ms]
        for command, left in commands:
            mark = keys.mark(left.command_id)
            names += (mark, keys.inbox(left.inbox) if left.reply else mark, *_keeping(keys, left, mark))
            args += (command.id, left.mark_ms, left.mark, left.reply, left.outcome)
        return int(await self._at(keys).run(REMOVE, names, args))

    # Dead letters.

    async def letters(self, start: str = "-") -> AsyncIterator[StoredDeadLetter]:
        """All letters, oldest first per shard."""
        for index, keys in enumerate(self._keys.shards):
            async for page in self._stream(keys, keys.dead, start):
                for entry, fields in page:
                    yield _letter(index, entry, fields)

    async def _stream(self, keys: ShardKeys, key: str, start: str) -> AsyncIterator[list[tuple[bytes, dict[bytes, bytes]]]]:
        """The entries of a stream from `start` on, page by page."""
        size = PageSize(_PAGE)
        while True:
            asked = size.count
            found: Any = await self._at(keys).ask(lambda client, at, count: client.xrange(key, min=at, count=count), start, asked)
            page = [(entry, fields or {}) for entry, fields in found]
            if page:
                yield page
                start = "(" + page[-1][0].decode()
            if len(page) < asked:
                return
            size.observe(sum(len(value) for _, fields in page for value in fields.values()), len(page))

    async def letter(self, letter_id: str) -> StoredDeadLetter | None:
        """One letter, or None."""
        place = self._place(letter_id)
        if place is None:
            return None
        index, entry = place
        keys = self._keys.shards[index]
        found: Any = await self._at(keys).ask(lambda client: client.xrange(keys.dead, entry, entry))
        return _letter(index, found[0][0], found[0][1]) if found else None

    async def oldest_letter_ms(self) -> int | None:
        """When the oldest letter of all was written, by the server's clock, or None."""
        pages = await asyncio.gather(
            *(self._at(keys).ask(lambda client, key: client.xrange(key, count=1), keys.dead) for keys in self._keys.shards)
        )
        return min((int(page[0][0].partition(b"-")[0]) for page in pages if page), default=None)

    async def settle_letter(self, letter: StoredDeadLetter, verb: str, left: Settlement) -> bool:
        """Replay or discard a letter; False if it is gone already."""
        place = self._place(letter.id)
        if place is None:
            return False
        index, entry = place
        keys = self._keys.shards[index]
        names = [keys.ready, keys.active, keys.stats, keys.paused, keys.parked, keys.dead]
        mark = keys.mark(left.command_id)
        names += [keys.mailbox(letter.mailbox), mark, *_keeping(keys, left, mark), keys.watched, keys.events]
        args = [GROUP, verb, entry, letter.mailbox, left.mark_ms, left.mark, left.outcome]
        return bool(await self._at(keys).run(LETTER, names, args) != b"gone")

    def _place(self, letter_id: str) -> tuple[int, str] | None:
        shard, _, entry = letter_id.partition("-")
        if not shard.isdecimal() or int(shard) >= self._keys.count or not entry.replace("-", "").isdecimal():
            return None
        return int(shard), entry

    def _at(self, keys: ShardKeys) -> Connections:
        return self._connections.at(keys.prefix)

    def _shard(self, mailbox: str) -> ShardKeys:
        return self._keys.shards[self._keys.shard_of(mailbox)]


def _keeping(keys: ShardKeys, left: Settlement, otherwise: str) -> tuple[str, str]:
    """The keys of the dispatch that keeps an outcome."""
    return (keys.dispatch(left.dispatch), keys.outcomes(left.dispatch)) if left.outcome else (otherwise, otherwise)


def _letter(shard: int, entry: bytes, fields: dict[bytes, bytes]) -> StoredDeadLetter:
    return StoredDeadLetter(
        f"{shard}-{entry.decode()}",
        fields.get(b"m", b"").decode(errors="replace"),
        fields.get(b"r", b""),
        fields.get(b"e", b""),
        fields.get(b"p") == b"1",
    )
