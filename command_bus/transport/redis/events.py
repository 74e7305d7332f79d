"""`EventStreams`: what happened to commands, one stream per shard, written by the scripts that made it happen.

Whether an entity type is watched stands in a hash on the server, which the scripts look into only if it exists: it is switched on and off
while everything runs, for all processes at once, and costs nothing while it is off. A stream keeps about as many entries as the hash says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.asyncio import Redis

from command_bus.clock import mono
from command_bus.errors import CommandBusError, TransportUnavailable
from command_bus.transport.redis.cancellation import end_tasks
from command_bus.transport.redis.connections import Backoff, Connections
from command_bus.transport.redis.errors import CONNECTION_ERRORS, translated
from command_bus.transport.redis.keys import KeySpace, ShardKeys
from command_bus.transport.redis.pipe import Requests

__all__ = ["EventStreams", "StoredEvent"]

START = "0-0"
_BLOCK = 2.0
_PAGE = 500
_AHEAD = 4
"""Pages that are read ahead of whoever listens."""
_AFTERWARDS_MS = 24 * 3600 * 1000
"""How long events stay once nothing is watched any more."""
_log = logging.getLogger("command_bus.transport")


class StoredEvent(NamedTuple):
    """An entry as it is stored."""

    shard: int
    id: str
    facts: list[str]
    """Kind, attempt, fence, worker, detail; empty where there is none."""
    mailbox: str
    """Or a scope."""
    names: bytes
    """Four MessagePack texts (or nil): command id, wire name, entity type, entity id; empty if they could not be read."""


_Page = list[StoredEvent]


class EventStreams:
    """Switches events on and off, and reads them.

    Args:
        connections: Of this process.
        keys: The shards.
        patience: Seconds for which a request is repeated before the server counts as unavailable.
    """

    def __init__(self, connections: Connections, keys: KeySpace, *, patience: float) -> None:
        self._connections = connections
        self._keys = keys
        self._patience = patience
        self._readers: set[asyncio.Task[None]] = set()

    async def watch(self, types: Sequence[str], kept: int) -> None:
        """Tell of these types from now on (`*`: of all), keeping about as many events per shard."""

        async def switch(client: Redis, keys: ShardKeys) -> None:
            pipeline = client.pipeline(transaction=False)
            mapping: Any = dict.fromkeys(types, kept)
            pipeline.hset(keys.watched, mapping=mapping)
            pipeline.persist(keys.events)
            await pipeline.execute()

        await self._everywhere(switch)

    async def unwatch(self, types: Sequence[str]) -> None:
        """Tell of them no more."""

        async def switch(client: Redis, keys: ShardKeys) -> None:
            pipeline = client.pipeline(transaction=False)
            pipeline.hdel(keys.watched, *types)
            pipeline.exists(keys.watched)
            _, left = await pipeline.execute()
            if not left:
                await client.pexpire(keys.events, _AFTERWARDS_MS)

        await self._everywhere(switch)

    async def watched(self) -> dict[str, int]:
        """What is watched on all shards, and how many events are kept of each."""
        found: list[dict[bytes, bytes]] = await self._everywhere(lambda client, keys: client.hgetall(keys.watched))
        everywhere = set(found[0]).intersection(*found[1:])
        return {name.decode(): int(found[0][name]) for name in sorted(everywhere)}

    async def ends(self) -> list[str]:
        """The id of the last event of each shard."""
        last: list[Any] = await self._everywhere(lambda client, keys: client.xrevrange(keys.events, count=1))
        return [entries[0][0].decode() if entries else START for entries in last]

    async def read(self, places: list[str], *, follow: bool) -> AsyncIterator[StoredEvent]:
        """What comes behind a place in each shard, in order per shard; for ever, or with `follow=False` until there is no more.

        A server that does not answer is asked again and again. Closing the streams ends the reading.
        """
        pages: asyncio.Queue[_Page | Exception | None] = asyncio.Queue()
        room = asyncio.Semaphore(_AHEAD)
        feeds = [_Feed(self._keys.shards[shard], shard, place, follow, pages, room) for shard, place in enumerate(places)]
        readers = {asyncio.create_task(feed.run(self._connections)) for feed in feeds}
        self._readers |= readers
        try:
            left = len(readers)
            while left:
                page = await pages.get()
                if page is None:
                    left -= 1
                    continue
                if isinstance(page, Exception):
                    raise page
                for event in page:
                    yield event
                room.release()
        finally:
            self._readers -= readers
            await end_tasks(readers)

    async def close(self) -> None:
        """End all reading."""
        await end_tasks(self._readers)

    async def _everywhere(self, request: Any) -> list[Any]:
        """A repeatable request to every shard; the answers in the order of the shards."""

        async def ask(keys: ShardKeys) -> Any:
            place = self._connections.at(keys.prefix)
            return await place.insist(lambda: place.ask(request, keys), mono() + self._patience)

        return await asyncio.gather(*(ask(keys) for keys in self._keys.shards))


@dataclass(slots=True)
class _Feed:
    """Reads one shard's stream, a few pages ahead of whoever listens; None is its last word, or the error that ends it."""

    keys: ShardKeys
    shard: int
    place: str
    follow: bool
    pages: asyncio.Queue[_Page | Exception | None]
    room: asyncio.Semaphore

    async def run(self, connections: Connections) -> None:
        connections = connections.at(self.keys.prefix)
        pipe = connections.pipe(_BLOCK)
        backoff = Backoff()
        last: CommandBusError | None = None
        try:
            more = True
            while more:
                try:
                    more = await self._page(pipe)
                    backoff.reset()
                except CONNECTION_ERRORS as error:
                    last = translated(error, connections.label)
                    if not isinstance(last, TransportUnavailable):
                        break
                    pause = backoff.next()
                    _log.warning("cannot read events, next try in %.2f s: %s", pause, last)
                    await asyncio.sleep(pause)
                    last = None
        finally:
            self.pages.put_nowait(last)
            await connections.end(pipe)

    async def _page(self, pipe: Requests) -> bool:
        """Read what comes next; whether to go on."""
        blocking = ("BLOCK", int(_BLOCK * 1000)) if self.follow else ()
        answer: Any = await pipe.request("XREAD", "COUNT", _PAGE, *blocking, "STREAMS", self.keys.events, self.place)
        if not answer:
            return self.follow
        page = [_stored(self.shard, entry, flat) for entry, flat in answer[0][1]]
        self.place = page[-1].id
        await self.room.acquire()
        self.pages.put_nowait(page)
        return True


def _stored(shard: int, entry: bytes, flat: list[bytes]) -> StoredEvent:
    fields = dict(zip(flat[::2], flat[1::2], strict=False))
    facts = fields.get(b"v", b"").decode(errors="replace").split("|", 4)
    return StoredEvent(
        shard, entry.decode(), facts + [""] * (5 - len(facts)), fields.get(b"m", b"").decode(), fields.get(b"c", b"")
    )
