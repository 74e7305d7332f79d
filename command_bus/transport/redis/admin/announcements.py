"""`RedisAnnouncements`: the records that workers publish of themselves and of their commands."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis

from command_bus.transport.redis.connection.retrying import RetryingRequests


class RedisAnnouncements(RetryingRequests):
    """Implements `Announcements`."""

    async def describe(self, records: dict[str, bytes]) -> None:
        """Store a worker's descriptions of its commands, by wire name, for clients without their classes."""
        mapping: Any = records
        if records:
            first = self._keys.shards[0]
            await self._ask_once(first, lambda client: client.hset(first.commands, mapping=mapping))

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

            records, (seconds, micros) = await self._ask(keys, read)
            found += [(int(seconds) * 1000 + int(micros) // 1000, record) for record in records.values()]
        return found

    async def commands(self) -> dict[str, bytes]:
        """Return the last description of each command."""
        keys = self._keys.shards[0]
        found: dict[bytes, bytes] = await self._ask(keys, lambda client: client.hgetall(keys.commands))
        return {name.decode(errors="backslashreplace"): record for name, record in found.items()}
