"""The records of a namespace's entity types: their mailbox policies, and types that were paused or drained.

Each is a field of `meta`: `mailbox:<type>` and `held:<type>`. A user that may send may write them, so a name may be any bytes.
"""

from __future__ import annotations

from command_bus.messages.message import is_entity_type
from command_bus.transport.records import TypeRecord
from command_bus.transport.redis.connection.retrying import RetryingRequests

MAILBOXES, HELD = b"mailbox:", b"held:"


def type_of_field(field: bytes) -> str | None:
    """Return the entity type of a field, with bytes that are no text escaped; None for another field."""
    prefix = next((each for each in (MAILBOXES, HELD) if field.startswith(each)), None)
    return None if prefix is None else field.removeprefix(prefix).decode(errors="backslashreplace")


class RedisTypeRecords(RetryingRequests):
    """Implements `TypeRecords`."""

    async def all(self) -> dict[str, TypeRecord]:
        """Return all records, by type."""
        first = self._keys.shards[0]
        meta: dict[bytes, bytes] = await self._ask(first, lambda client: client.hgetall(first.meta))
        found: dict[str, TypeRecord] = {}
        for field in meta:
            if (shown := type_of_field(field)) is not None:
                name = field.partition(b":")[2]
                found[shown] = TypeRecord(name, meta.get(MAILBOXES + name), meta.get(HELD + name))
        return dict(sorted(found.items()))

    async def used(self) -> list[str]:
        """See `TypeRecords`. A type that was only paused, drained or resumed is not used."""
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
