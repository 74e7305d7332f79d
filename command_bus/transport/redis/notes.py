"""`RedisNotes`: a hash for each book, in the first shard."""

from __future__ import annotations

from typing import Any

from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.scripts import CHANGE_NOTE


class RedisNotes(RetryingRequests):
    """Implements `Notes`."""

    async def read(self, book: str, name: str) -> bytes | None:
        """See `Notes`."""
        shard = self._keys.shards[0]
        found: bytes | None = await self._ask(shard, lambda client: client.hget(shard.notes + book, name))
        return found

    async def all(self, book: str) -> dict[str, bytes]:
        """See `Notes`."""
        shard = self._keys.shards[0]
        found: dict[bytes, bytes] = await self._ask(shard, lambda client: client.hgetall(shard.notes + book))
        return {name.decode(errors="backslashreplace"): record for name, record in sorted(found.items())}

    async def change(self, book: str, name: str, before: bytes | None, after: bytes | None) -> bool:
        """See `Notes`."""
        shard = self._keys.shards[0]
        return bool(await self._run(shard, CHANGE_NOTE, [shard.notes + book], [name, before or b"", after or b""]))

    async def now_ms(self) -> int:
        """See `Notes`."""
        answer: Any = await self._ask(self._keys.shards[0], lambda client: client.time())
        seconds, micros = answer
        return int(seconds) * 1000 + int(micros) // 1000
