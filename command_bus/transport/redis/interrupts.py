"""`RedisInterrupts`: operators' requests to end a running attempt; `InterruptHandler` carries them out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from redis.asyncio import Redis

from command_bus.transport.interrupts import Attempt, Interrupt
from command_bus.transport.redis.connection.retrying import RetryingRequests, server_ms
from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.redis.mailbox_record import parse_record, read_entry

_KEPT_MS = 600_000


class RedisInterrupts(RetryingRequests):
    """Implements `Interrupts`."""

    async def running(self, mailbox: str) -> Attempt | None:
        """Return the attempt that runs in a mailbox now, or None."""
        keys = self._keys_of(mailbox)

        async def read(client: Redis) -> Any:
            pipeline = client.pipeline(transaction=False)
            pipeline.hget(keys.active, mailbox)
            pipeline.time()
            return await pipeline.execute()

        record, time = await self._ask(keys, read)
        found = parse_record(record)
        if not found.is_held:
            return None
        entry = await read_entry(partial(self._run, keys), keys, mailbox, found.message)
        return Attempt(found.attempt_id, found.attempt, found.holder, entry.get(b"e", b""), server_ms(time))

    async def request(self, mailbox: str, interrupt: Interrupt) -> None:
        """Ask the holder of a mailbox to end an attempt."""
        keys = self._keys_of(mailbox)
        await self._ask(keys, write_interrupt, keys, mailbox, interrupt)

    async def answer(self, mailbox: str) -> Interrupt | None:
        """Return the request with the holder's answer; None if there is none."""
        keys = self._keys_of(mailbox)
        value = await self._ask(keys, lambda client: client.hget(keys.interrupts, mailbox))
        return None if value is None else Interrupt.unpack(value)

    async def withdraw(self, mailbox: str) -> None:
        """Delete the request."""
        keys = self._keys_of(mailbox)
        await self._ask(keys, lambda client: client.hdel(keys.interrupts, mailbox))


def fill_request(pipeline: Any, keys: ShardKeys, interrupts: Mapping[str, Interrupt]) -> None:
    """Add the writes of requests, by mailbox, to a pipeline, and the expiry of the hash."""
    pipeline.hset(keys.interrupts, mapping={mailbox: interrupt.pack() for mailbox, interrupt in interrupts.items()})
    pipeline.pexpire(keys.interrupts, _KEPT_MS)


async def write_interrupt(client: Redis, keys: ShardKeys, mailbox: str, interrupt: Interrupt) -> None:
    """Write one request, in one round trip."""
    pipeline = client.pipeline(transaction=False)  # a transaction would ask for more rights
    fill_request(pipeline, keys, {mailbox: interrupt})
    await pipeline.execute()
