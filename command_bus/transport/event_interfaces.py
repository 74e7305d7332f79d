"""The protocols of a transport for what happened to commands: events, and the ends that a history keeps. See `interfaces.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from command_bus.transport.records import HistoryExtent, StoredEnd, StoredEvent


class EventStreams(Protocol):
    """Switches events on and off, and reads them.

    A shard has two streams: what workers and operators wrote, and what senders wrote. An event has an id in its stream, and
    `records.BEFORE_ALL` is before all ids. A list of ids has one for each stream: those of what workers wrote, shard by shard, then the others.
    """

    async def watch(self, types: Sequence[str], kept: int) -> None:
        """Record events of these types (`*`: of all), and keep about `kept` events per shard."""
        ...

    async def unwatch(self, types: Sequence[str]) -> None:
        """Record events of these types no more; without any, no events at all."""
        ...

    async def watched(self) -> dict[str, int]:
        """Return what is watched on all shards, and how many events are kept."""
        ...

    async def ends(self) -> list[str]:
        """Return the id of the last event of each stream."""
        ...

    async def lost(self, after: Sequence[str]) -> list[bool]:
        """Return for each stream whether events behind an id may have been deleted, because they were too many: that of the id itself is gone."""
        ...

    def kept(self, after: Sequence[str]) -> AsyncIterator[StoredEvent]:
        """Yield the events behind an id in each stream that happened before this began, shard by shard."""
        ...

    def follow(self, after: Sequence[str]) -> AsyncIterator[StoredEvent]:
        """Yield the events behind an id in each stream, in order per shard, until the streams are closed."""
        ...

    @property
    def closed(self) -> bool:
        """Whether they are closed."""
        ...


class HistoryStore(Protocol):
    """Reads the ends of commands that have a history. An entry's id is `ms-number`, and `-` and `+` stand before and behind all."""

    async def find(self, command_id: str) -> list[StoredEnd]:
        """Return the end of a command in each shard that has one."""
        ...

    def newest_first(self, shard: int, newest: str, oldest: str) -> AsyncIterator[list[StoredEnd]]:
        """Yield the ends of a shard between two ids, page by page, newest first; a `(` before `newest` leaves that one out."""
        ...

    async def extents(self, count: int) -> list[HistoryExtent]:
        """Return how much each shard keeps, with the bounds of at most so many of its oldest ends."""
        ...
