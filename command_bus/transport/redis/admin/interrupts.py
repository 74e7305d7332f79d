"""Requests to end an attempt: one field of a hash per shard, under the mailbox's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis.asyncio import Redis

from command_bus.transport.interrupts import Attempt, Interrupt
from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.keys import ShardKeys

__all__ = ["RedisInterrupts", "fill_request"]


_KEPT_MS = 600_000


class RedisInterrupts(RetryingRequests):
    """Implements `Interrupts`."""

    async def running(self, mailbox: str) -> Attempt | None:
        """What runs in a mailbox now, or None."""
        keys = self._shard(mailbox)

        async def read(client: Redis) -> Any:
            pipeline = client.pipeline(transaction=False)
            pipeline.hget(keys.active, mailbox)
            pipeline.time()
            return await pipeline.execute()

        record, (seconds, micros) = await self._ask(keys, read)
        state, _, fence, message, attempt, _, holder = [*(record or b"").decode().split("|"), *[""] * 6][:7]
        if state != "h":
            return None
        entries = await self._ask(keys, lambda client: client.xrange(keys.mailbox(mailbox), message, message))
        envelope = (entries[0][1] or {}).get(b"e", b"") if entries else b""
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        return Attempt(f"{fence}|{message}", int(attempt or 0), holder, envelope, now_ms)

    async def request(self, mailbox: str, interrupt: Interrupt) -> None:
        """Ask the holder of a mailbox to end an attempt."""
        keys = self._shard(mailbox)
        await self._ask(keys, _write, keys, mailbox, interrupt)

    async def answer(self, mailbox: str) -> Interrupt | None:
        """The request as it stands, with what the holder said; None if there is none."""
        keys = self._shard(mailbox)
        value = await self._ask(keys, lambda client: client.hget(keys.interrupts, mailbox))
        return None if value is None else Interrupt.unpack(value)

    async def withdraw(self, mailbox: str) -> None:
        """Take back what was asked for."""
        keys = self._shard(mailbox)
        await self._ask(keys, lambda client: client.hdel(keys.interrupts, mailbox))

    def _shard(self, mailbox: str) -> ShardKeys:
        return self._keys.shards[self._keys.shard_of(mailbox)]


def fill_request(pipeline: Any, keys: ShardKeys, interrupts: Mapping[str, Interrupt]) -> None:
    """Write fields, by mailbox, and let the hash end by itself."""
    pipeline.hset(keys.interrupts, mapping={mailbox: interrupt.pack() for mailbox, interrupt in interrupts.items()})
    pipeline.pexpire(keys.interrupts, _KEPT_MS)


async def _write(client: Redis, keys: ShardKeys, mailbox: str, interrupt: Interrupt) -> None:
    pipeline = client.pipeline(transaction=False)  # a transaction would ask for more rights
    fill_request(pipeline, keys, {mailbox: interrupt})
    await pipeline.execute()
