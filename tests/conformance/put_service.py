"""A bus with one worker that handles `Put`. Tests give one entity bad input and check that nothing else suffers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from command_bus import Command, CommandBus, CommandContext, DeadLetter, EntityId, RetryPolicy
from command_bus.transport.redis.keys import ShardKeys
from tests.conformance.conftest import Sandbox

__all__ = ["Put", "PutService", "put_service", "until"]

# Does what the enqueue step does, for bytes that no producer of ours sends.
_INJECT = """
local state, activation = string.match(redis.call('HGET', KEYS[2], ARGV[1]) or '', '^([oO])|([^|]*)')
if state then  -- its only command is lined up, as enqueue.lua does
  redis.call('XADD', KEYS[1], activation, 'l', '1')
  local record = redis.call('HGET', KEYS[2], ARGV[1])
  redis.call('HSET', KEYS[2], ARGV[1], (state == 'o' and 'r' or 'h') .. string.sub(record, 2))
end
redis.call('XADD', KEYS[1], '*', unpack(ARGV, 2))
redis.call('HINCRBY', KEYS[4], 'depth', 1)
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 0 then
  local id = redis.call('XADD', KEYS[3], '*', 'e', ARGV[1])
  redis.call('HSET', KEYS[2], ARGV[1], 'r|' .. id .. '|||0|0|')
end
"""


class Put(Command[int], entity="box", retry=RetryPolicy(attempts=2, delay=0.01, jitter=0.0)):
    box: EntityId
    value: int


async def until(condition: Callable[[], Awaitable[Any] | Any], seconds: float = 10.0) -> Any:
    """Wait until a condition is true, and return its value."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        value = condition()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        assert loop.time() < deadline, "waited in vain"
        await asyncio.sleep(0.01)


class PutService:
    """A bus with a worker that handles `Put`, and checks that other entities are not affected."""

    def __init__(self, sandbox: Sandbox, bus: CommandBus) -> None:
        self.sandbox = sandbox
        self.bus = bus
        self.seen: list[tuple[str, int]] = []
        self._values = itertools.count(1_000_000)

        @sandbox.registry.handles(Put)
        async def put(command: Put, context: CommandContext) -> int:
            assert context.entity_id == str(command.box)
            self.seen.append((str(command.box), command.value))
            return command.value

    @property
    def keys(self) -> ShardKeys:
        return self.bus.session.redis.keys.shards[0]

    async def inject(self, mailbox: str, fields: dict[str, bytes]) -> None:
        """Add an entry with these fields to a mailbox, as if it had been enqueued."""
        keys = self.keys
        names = [keys.mailbox(mailbox), keys.active, keys.ready, keys.stats]
        parts = [part for pair in fields.items() for part in pair]
        place = self.bus.session.redis.connections.at(keys.prefix)
        await place.ask(lambda client: client.eval(_INJECT, len(names), *names, mailbox, *parts))

    async def letters(self) -> list[DeadLetter]:
        return [letter async for letter in self.bus.dead_letters.list()]

    async def letter(self) -> DeadLetter:
        """Wait for the only dead letter, and return it."""
        (letter,) = await until(self.letters)
        return letter

    async def assert_runs(self, *boxes: str) -> None:
        """Check that these boxes and a new one still run, in order."""
        everyone = (*boxes, "neighbour")
        values = [next(self._values) for _ in range(3)]
        batch = await self.bus.dispatch_batch(Put(box=box, value=number) for number in values[:2] for box in everyone)
        assert batch.accepted == 2 * len(everyone)
        for box in everyone:
            assert await self.bus.call(Put(box=box, value=values[2]), timeout=10) == values[2]
        for box in everyone:
            assert [value for name, value in self.seen if name == box and value in values] == values

    async def assert_unharmed(self, *boxes: str) -> None:
        """Check that these boxes and a new one still run, in order, and that then the server holds nothing of any entity."""
        await self.assert_runs(*boxes)
        await self.bus.wait_idle(10)
        stats = await self.bus.stats()
        assert (stats.depth, stats.in_flight, stats.entities) == (0, 0, 0)
        await until(self._worker_lives)
        assert await self.sandbox.entity_keys() == []
        await self._assert_marks_end()

    async def _worker_lives(self) -> bool:
        return bool((await self.bus.stats()).workers)

    async def _assert_marks_end(self) -> None:
        """Check that every mark of a settled command expires."""
        for key in await self.sandbox.keys():
            if "}:k:" in key:
                client = self.sandbox.client(int(key.partition("}")[0].rpartition(":")[2]))
                assert await client.pttl(key) > 0, key
                await client.aclose()


@asynccontextmanager
async def put_service(sandbox: Sandbox, **settings: Any) -> AsyncIterator[PutService]:
    """Open a bus with a running worker."""
    async with sandbox.bus(**settings) as bus:
        service = PutService(sandbox, bus)
        async with bus.worker():
            yield service
