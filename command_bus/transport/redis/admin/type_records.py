"""The records of a namespace's entity types: their mailbox policies, and types that were paused or drained.

Each is a field of `meta`: `mailbox:<type>` and `held:<type>`. A user that may send may write them, so a name may be any bytes.
"""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis

from command_bus.errors import UnsuitableServer
from command_bus.messages.message import is_entity_type
from command_bus.messages.policies import OF_SUBSCRIPTION
from command_bus.transport.ports.operator import Obliteration, TypeRecords
from command_bus.transport.records import TypeRecord
from command_bus.transport.redis.acl import lacking
from command_bus.transport.redis.connection.errors import is_not_permitted
from command_bus.transport.redis.connection.retrying import RetryingRequests, server_ms
from command_bus.transport.redis.incarnations import CLOSED, INCARNATION
from command_bus.transport.redis.keys import ShardKeys

MAILBOXES, HELD = b"mailbox:", b"held:"


def type_of_field(field: bytes) -> str | None:
    """Return the entity type of a field, with bytes that are no text escaped; None for another field."""
    prefix = next((each for each in (MAILBOXES, HELD) if field.startswith(each)), None)
    return None if prefix is None else field.removeprefix(prefix).decode(errors="backslashreplace")


class RedisTypeRecords(RetryingRequests, TypeRecords):
    """Implements `TypeRecords`."""

    async def all(self) -> dict[str, TypeRecord]:
        """Return all records, by type."""
        first = self._keys.shards[0]
        meta: dict[bytes, bytes] = await self._ask(first, lambda client: client.hgetall(first.meta))
        found: dict[str, TypeRecord] = {}
        for field in meta:
            if (shown := type_of_field(field)) is not None and not shown.startswith(
                OF_SUBSCRIPTION
            ):  # of a pause of a subscription
                name = field.partition(b":")[2]
                found[shown] = TypeRecord(name, meta.get(MAILBOXES + name), meta.get(HELD + name))
        return dict(sorted(found.items()))

    async def used(self) -> list[str]:
        """Return used types. One that was only paused, drained or resumed is not used."""
        return [name for name, record in (await self.all()).items() if record.mailboxes is not None and is_entity_type(name)]

    async def remove(self, record: TypeRecord) -> None:
        """Take a record back."""
        first = self._keys.shards[0]
        await self._ask(first, lambda client: client.hdel(first.meta, *_fields(record)))

    async def restore(self, record: TypeRecord) -> None:
        """Write a record again, unless another client has written it since."""
        first = self._keys.shards[0]
        for field, value in _fields(record).items():
            await self._ask(first, lambda client, field=field, value=value: client.hsetnx(first.meta, field, value))


def _fields(record: TypeRecord) -> dict[bytes, bytes]:
    """Return the fields of `meta` that hold a record."""
    values = {MAILBOXES + record.name: record.policy, HELD + record.name: record.held}
    return {field: value for field, value in values.items() if value is not None}


class RedisAnnouncements(RetryingRequests):
    """Implements `Announcements`."""

    async def describe(self, records: dict[str, bytes]) -> None:
        """Store a worker's descriptions of its commands, by wire name, for clients without their classes.

        Raises:
            UnsuitableServer: The user has not the rights of a worker. This is the first that a worker writes.
        """
        mapping: Any = records
        if not records:
            return
        first = self._keys.shards[0]
        try:
            await self._ask_once(first, lambda client: client.hset(first.commands, mapping=mapping))
        except UnsuitableServer as error:
            if is_not_permitted(error):
                raise lacking("worker", "a worker", "HSET") from error
            raise

    async def described(self, name: str) -> bytes | None:
        """Return the last description of a command, or None."""
        first = self._keys.shards[0]
        record: bytes | None = await self._ask_once(first, lambda client: client.hget(first.commands, name))
        return record

    async def workers(self) -> list[tuple[int, bytes]]:
        """Return the records of the workers, live and lost ones, once for each shard, with the shard's time in ms."""
        found: list[tuple[int, bytes]] = []
        for keys in self._keys.shards:

            async def read(client: Redis, key: str = keys.workers) -> Any:
                pipeline = client.pipeline(transaction=False)
                pipeline.hgetall(key)
                pipeline.time()
                return await pipeline.execute()

            records, time = await self._ask(keys, read)
            found += [(server_ms(time), record) for record in records.values()]
        return found

    async def commands(self) -> dict[str, bytes]:
        """Return the last description of each command."""
        keys = self._keys.shards[0]
        found: dict[bytes, bytes] = await self._ask(keys, lambda client: client.hgetall(keys.commands))
        return {name.decode(errors="backslashreplace"): record for name, record in found.items()}


_PAGE = 1000


class RedisObliteration(RetryingRequests, Obliteration):
    """Implements `Obliteration`."""

    async def begin(self, shard: int) -> int:
        keys = self._keys.shards[shard]
        await self._ask(keys, lambda client: client.hset(keys.stats, INCARNATION, CLOSED))
        shared = [
            keys.active,
            keys.ready,
            keys.due,
            keys.delayed,
            keys.delayed_counts,
            keys.lone,
            keys.parked,
            keys.interrupts,
            keys.dead,
            keys.schedules,
            keys.fired,
        ]
        return int(await self._ask(keys, lambda client: client.unlink(*shared)))

    async def go_on(self, shard: int) -> int:
        keys = self._keys.shards[shard]
        last = {keys.meta.encode(), keys.paused.encode(), keys.stats.encode()}
        deleted = cursor = 0
        while True:
            cursor, found = await self._ask(keys, _page, keys.prefix, cursor)
            if going := [name for name in found if name not in last]:
                deleted += int(await self._ask(keys, lambda client, names: client.unlink(*names), going))
            if not cursor:
                return deleted

    async def end(self, shard: int) -> int:
        keys = self._keys.shards[shard]
        return int(await self._ask(keys, lambda client: client.unlink(*_rest(keys))))


async def _page(client: Redis, prefix: str, cursor: int) -> tuple[int, list[bytes]]:
    """Return the next cursor and some of the keys with a prefix. Nothing in it means something in a pattern."""
    answer: Any = await client.scan(cursor, match=f"{prefix}*", count=_PAGE)
    following, found = answer
    return int(following), [name for name in found if name.startswith(prefix.encode())]


def _rest(keys: ShardKeys) -> list[str]:
    """Return what says that the shard is drained, what its drain has written, and what all clients agree on."""
    return [keys.ready, keys.stats, keys.events, keys.arrivals, keys.workers, keys.paused, keys.meta]
