"""`RedisEventStreams`: events of commands, one stream per shard, written by the scripts that change the commands.

A hash on the server lists the watched entity types, and the scripts read it only if it exists. So watching is switched on and off at run
time, for all processes at once, and costs nothing while it is off. A stream keeps about as many entries as the hash says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from command_bus.errors import TransportUnavailable
from command_bus.transport.records import BEFORE_ALL, StoredEvent
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.errors import CONNECTION_ERRORS, translated
from command_bus.transport.redis.connection.outage_log import LoggedBackoff
from command_bus.transport.redis.connection.pipe import Requests
from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.keys import KeySpace, ShardKeys
from command_bus.transport.tasks import end_tasks

__all__ = ["RedisEventStreams", "stored_event"]

_BLOCK = 2.0
_PAGE = 500
_AHEAD = 4
"""Pages that are read ahead of the listener."""
_AFTERWARDS_MS = 24 * 3600 * 1000
"""How long events stay once nothing is watched any more."""
_log = logging.getLogger("command_bus.transport")


_Page = list[StoredEvent]


class RedisEventStreams(RetryingRequests):
    """Switches events on and off, and reads them."""

    def __init__(self, connections: Connections, keys: KeySpace, *, patience: float) -> None:
        super().__init__(connections, keys, patience=patience)
        self._readers: set[asyncio.Task[None]] = set()
        self._closed = False

    async def watch(self, types: Sequence[str], kept: int) -> None:
        """Publish events of these types from now on (`*`: of all), and keep about as many per shard."""

        async def switch(client: Redis, keys: ShardKeys) -> None:
            pipeline = client.pipeline(transaction=False)
            mapping: Any = dict.fromkeys(types, kept)
            pipeline.hset(keys.watched, mapping=mapping)
            pipeline.persist(keys.events)
            await pipeline.execute()

        await self._everywhere(switch)

    async def unwatch(self, types: Sequence[str]) -> None:
        """Stop publishing events of these types; without any, of all types."""

        async def switch(client: Redis, keys: ShardKeys) -> None:
            await (client.hdel(keys.watched, *types) if types else client.delete(keys.watched))
            if not await client.exists(keys.watched):
                await client.pexpire(keys.events, _AFTERWARDS_MS)
            if await client.exists(keys.watched):  # it exists again: another client watches
                await client.persist(keys.events)

        await self._everywhere(switch)

    async def watched(self) -> dict[str, int]:
        """Return the types that are watched on all shards, each with the number of events to keep."""
        found: list[dict[bytes, bytes]] = await self._everywhere(lambda client, keys: client.hgetall(keys.watched))
        everywhere = set(found[0]).intersection(*found[1:])
        return {name.decode(errors="backslashreplace"): _kept(found[0][name]) for name in sorted(everywhere)}

    async def ends(self) -> list[str]:
        """Return the id of the last event of each shard."""
        last: list[Any] = await self._everywhere(lambda client, keys: client.xrevrange(keys.events, count=1))
        return [entries[0][0].decode() if entries else BEFORE_ALL for entries in last]

    async def lost(self, after: Sequence[str]) -> list[bool]:
        """See `EventStreams`."""

        async def ask(keys: ShardKeys, last: str) -> bool:
            if last == BEFORE_ALL:
                return False
            return not await self._ask(keys, _range, keys.events, last, last)

        return await asyncio.gather(*(ask(keys, last) for keys, last in zip(self._keys.shards, after, strict=True)))

    async def kept(self, after: Sequence[str]) -> AsyncIterator[StoredEvent]:
        """Yield the events behind an event in each shard up to now, shard by shard.

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        for shard, (keys, begin, end) in enumerate(zip(self._keys.shards, after, await self.ends(), strict=True)):
            last = begin
            while True:
                page: Any = await self._ask(keys, _range, keys.events, "(" + last, end)
                for entry, fields in page:
                    yield stored_event(shard, entry.decode(), fields)
                if len(page) < _PAGE:
                    break
                last = page[-1][0].decode()

    async def follow(self, after: Sequence[str]) -> AsyncIterator[StoredEvent]:
        """Yield the events behind an event in each shard, in order per shard, until the streams are closed.

        Requests are repeated while a server does not answer.
        """
        if self._closed:
            return
        pages: asyncio.Queue[_Page | BaseException | None] = asyncio.Queue()
        room = asyncio.Semaphore(_AHEAD)
        readers = set()
        for shard, last in enumerate(after):
            feed = _Feed(self._connections, self._keys.shards[shard], shard, last, pages, room)
            reader = asyncio.create_task(feed.run(), name=f"command_bus.events {shard}")
            reader.add_done_callback(lambda ended: pages.put_nowait(None if ended.cancelled() else ended.exception()))
            readers.add(reader)
        self._readers |= readers
        try:
            while (page := await pages.get()) is not None:
                if isinstance(page, BaseException):
                    raise page
                for event in page:
                    yield event
                room.release()
        finally:
            self._readers -= readers
            await end_tasks(readers)

    @property
    def closed(self) -> bool:
        """Whether they are closed."""
        return self._closed

    async def close(self) -> None:
        """End all reading."""
        self._closed = True
        await end_tasks(self._readers)


@dataclass(slots=True)
class _Feed:
    """Reads one shard's stream, a few pages ahead of the listener."""

    connections: Connections
    keys: ShardKeys
    shard: int
    last: str
    pages: asyncio.Queue[_Page | BaseException | None]
    room: asyncio.Semaphore

    async def run(self) -> None:
        connections = self.connections.at(self.keys.prefix)
        pipe = connections.pipe(_BLOCK)
        attempts = LoggedBackoff(connections.outage, "cannot read events", _log, lasts=False)
        try:
            while True:
                try:
                    await self._page(pipe)
                    attempts.worked()
                except CONNECTION_ERRORS as error:
                    problem = translated(error, connections.label)
                    if not isinstance(problem, TransportUnavailable):
                        raise problem from error
                    await asyncio.sleep(attempts.failed(problem))
        finally:
            await connections.end(pipe)

    async def _page(self, pipe: Requests) -> None:
        """Read what comes next."""
        request = ("XREAD", "COUNT", _PAGE, "BLOCK", int(_BLOCK * 1000), "STREAMS", self.keys.events, self.last)
        answer: Any = await pipe.request(*request)
        if answer:
            page = [
                stored_event(self.shard, entry.decode(), dict(zip(flat[::2], flat[1::2], strict=False)))
                for entry, flat in answer[0][1]
            ]
            self.last = page[-1].id
            await self.room.acquire()
            self.pages.put_nowait(page)


def _range(client: Redis, stream: str, low: str, high: str) -> Any:
    return client.xrange(stream, min=low, max=high, count=_PAGE)


def _kept(value: bytes) -> int:
    """Return how many events are kept; 0 if the value is no number."""
    return int(value) if value.isdigit() else 0


def stored_event(shard: int, entry: str, fields: dict[bytes, bytes]) -> StoredEvent:
    """Return an event from its entry in the stream."""
    facts = fields.get(b"v", b"").decode(errors="replace").split("|", 4)
    mailbox = fields.get(b"m", b"").decode(errors="replace")
    return StoredEvent(shard, entry, facts + [""] * (5 - len(facts)), mailbox, fields.get(b"c", b""))
