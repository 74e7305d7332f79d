"""`RedisEventStreams`: events of commands, written by the scripts that change the commands, two streams per shard.

Senders write to one of their own (`arrivals`): who may send may add to it what they like, so it tells what senders say and nothing else.
What workers and operators did is in `events`, which they alone may write. Listeners get both by time.

A hash on the server lists the watched entity types, and the scripts read it only if it exists. So watching is switched on and off at run
time, for all processes at once, and costs nothing while it is off. A stream keeps about as many entries as the hash says.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from command_bus.errors import TransportUnavailable
from command_bus.serialization.odd_values import stored_number
from command_bus.stream_ids import ms_of
from command_bus.tasks import end_tasks
from command_bus.transport.ports.operator import EventStreams
from command_bus.transport.records import BEFORE_ALL, StoredEvent
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.errors import CONNECTION_ERRORS, translated
from command_bus.transport.redis.connection.outage_log import LoggedBackoff
from command_bus.transport.redis.connection.pipe import Requests
from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.keys import KeySpace, ShardKeys

_BLOCK = 2.0
_PAGE = 500
_AHEAD = 4
"""Pages that are read ahead of the listener."""
_AFTERWARDS_MS = 24 * 3600 * 1000
"""How long events stay once nothing is watched any more."""
_log = logging.getLogger("command_bus.transport")


_Page = list[StoredEvent]
_Entries = list[tuple[bytes, dict[bytes, bytes]]]


class RedisEventStreams(RetryingRequests, EventStreams):
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
            pipeline.persist(keys.arrivals)
            await pipeline.execute()

        await self._everywhere(switch)

    async def unwatch(self, types: Sequence[str]) -> None:
        """Stop publishing events of these types; without any, of all types."""

        async def switch(client: Redis, keys: ShardKeys) -> None:
            await (client.hdel(keys.watched, *types) if types else client.delete(keys.watched))
            if not await client.exists(keys.watched):
                for stream in (keys.events, keys.arrivals):
                    await client.pexpire(stream, _AFTERWARDS_MS)
            if await client.exists(keys.watched):  # it exists again: another client watches
                for stream in (keys.events, keys.arrivals):
                    await client.persist(stream)

        await self._everywhere(switch)

    async def watched(self) -> dict[str, int]:
        """Return the types that are watched on all shards, each with the number of events to keep."""
        found: list[dict[bytes, bytes]] = await self._everywhere(lambda client, keys: client.hgetall(keys.watched))
        everywhere = set(found[0]).intersection(*found[1:])
        return {name.decode(errors="backslashreplace"): _kept(found[0][name]) for name in sorted(everywhere)}

    async def ends(self) -> list[str]:

        async def last(client: Redis, keys: ShardKeys) -> list[str]:
            found: Any = [await client.xrevrange(stream, count=1) for stream in (keys.events, keys.arrivals)]
            return [entries[0][0].decode() if entries else BEFORE_ALL for entries in found]

        pairs: list[list[str]] = await self._everywhere(last)
        return [pair[feed] for feed in (0, 1) for pair in pairs]

    async def lost(self, after: Sequence[str]) -> list[bool]:

        async def ask(feed: int, last: str) -> bool:
            keys = self._keys.shards[feed % self._keys.count]
            stream = keys.arrivals if feed >= self._keys.count else keys.events
            return last != BEFORE_ALL and not await self._ask(keys, _range, stream, last, last)

        return await asyncio.gather(*(ask(feed, last) for feed, last in enumerate(after)))

    async def kept(self, after: Sequence[str]) -> AsyncIterator[StoredEvent]:
        """Yield the events behind an event in each shard up to now, shard by shard.

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        last, ends, count = list(after), await self.ends(), self._keys.count
        for shard, keys in enumerate(self._keys.shards):
            has_more = True
            while has_more:
                done, sent = [
                    await self._ask(keys, _range, stream, "(" + last[feed], ends[feed])
                    for stream, feed in ((keys.events, shard), (keys.arrivals, count + shard))
                ]
                for event in _in_order(shard, count, done, sent):
                    last[event.feed] = event.id
                    if event.is_told:
                        yield event
                has_more = _PAGE in (len(done), len(sent))

    async def follow(self, after: Sequence[str]) -> AsyncIterator[StoredEvent]:
        """Yield the events behind an event in each shard, in order per shard, until the streams are closed.

        Requests are repeated while a server does not answer.
        """
        if self._closed:
            return
        pages: asyncio.Queue[_Page | BaseException | None] = asyncio.Queue()
        room = asyncio.Semaphore(_AHEAD)
        readers, count = set(), self._keys.count
        for shard, keys in enumerate(self._keys.shards):
            feed = _Feed(self._connections, keys, shard, count, [after[shard], after[count + shard]], pages, room)
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


@dataclass(eq=False, slots=True)
class _Feed:
    """Reads one shard's streams, a few pages ahead of the listener."""

    connections: Connections
    keys: ShardKeys
    shard: int
    count: int
    last: list[str]
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
        streams = (self.keys.events, self.keys.arrivals)
        answer: Any = await pipe.request("XREAD", "COUNT", _PAGE, "BLOCK", int(_BLOCK * 1000), "STREAMS", *streams, *self.last)
        if answer:
            read = {name.decode(): [(entry, _fields(flat)) for entry, flat in entries] for name, entries in answer}
            page = _in_order(self.shard, self.count, *(read.get(stream, []) for stream in streams))
            for event in page:
                self.last[event.feed // self.count] = event.id
            await self.room.acquire()
            self.pages.put_nowait([event for event in page if event.is_told])


def _range(client: Redis, stream: str, low: str, high: str) -> Any:
    return client.xrange(stream, min=low, max=high, count=_PAGE)


def _kept(value: bytes) -> int:
    """Return how many events are kept; 0 if the value is no number."""
    return stored_number("watched", value)


def _fields(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=False))


def newest_events(shard: int, count: int, done: _Entries, sent: _Entries) -> list[StoredEvent]:
    """Return what pages of both streams of a shard have, newest first; the first is that of workers."""
    return _woven(shard, count, done[::-1], sent[::-1])[::-1]


def _in_order(shard: int, count: int, done: _Entries, sent: _Entries) -> list[StoredEvent]:
    """Return what pages of both streams of a shard have, as far as their order is known: behind a full page there may be more."""
    end = min(_end_of(done), _end_of(sent))
    return _woven(shard, count, *([each for each in page if ms_of(each[0]) < end] for page in (done, sent)))


def _end_of(page: _Entries) -> float:
    """Return the ms before which a page has everything."""
    if len(page) < _PAGE:
        return math.inf
    first, last = ms_of(page[0][0]), ms_of(page[-1][0])
    return last if first < last else last + 1


def _woven(shard: int, count: int, done: _Entries, sent: _Entries) -> list[StoredEvent]:
    """Return the events of both streams by time.

    A command is accepted before what else happens to it, and superseded after that, also in one ms, or if the clock went back.
    """
    arrivals = [StoredEvent.parse(shard, count + shard, *each) for each in sent]
    events = [StoredEvent.parse(shard, shard, *each) for each in done]
    accepted = [(at, each.names) for at, each in enumerate(arrivals) if each.names and each.facts[0] == "accepted"]
    first = {names: at for at, names in reversed(accepted)}
    last = {(ms_of(sent[at][0]), names): at for at, names in accepted}
    again, ends = {names: at for at, names in accepted}, {each.names: at for at, each in enumerate(events)}
    found: list[StoredEvent] = []
    place = 0

    def is_over(at: int) -> bool:
        """Return whether what is superseded next has no other event from a place on; an id that is sent again afterwards may."""
        kind, names = arrivals[place].facts[0], arrivals[place].names
        return kind != "superseded" or ends.get(names, -1) < at or again.get(names, -1) > place

    for at, event in enumerate(events):
        ms = ms_of(done[at][0])
        needed = max(first.get(event.names, -1), last.get((ms, event.names), -1))
        while place < len(arrivals) and (place <= needed or (ms_of(sent[place][0]) < ms and is_over(at))):
            found.append(arrivals[place])
            place += 1
        found.append(event)
    return found + arrivals[place:]
