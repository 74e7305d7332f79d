"""The side of a transport that views of many entities ask: a few round trips, and never a scan without bound."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from command_bus.transport.records import StoredDeadLetter, StoredEntity, StoredEvent

GroupName = Literal["parked", "paused", "limited", "suspended", "retrying", "waiting", "running"]
"""What mailboxes that do not get on have in common."""

JournalName = Literal["audit", "trends"]


@dataclass(frozen=True, slots=True)
class NamedGroup:
    """Mailboxes of one shard that are in the same way.

    Attributes:
        names: Some of them, those first that have been so the longest, as far as that is known.
        total: How many there are; None if that is not counted.
        cut: Whether there may be more than `names`.
    """

    names: tuple[str, ...] = ()
    total: int | None = 0
    cut: bool = False


NO_GROUP = NamedGroup()


@dataclass(frozen=True, slots=True)
class FoundNames:
    """Mailboxes of one shard that were found by a pattern.

    Attributes:
        names: Which.
        cursor: Where the search goes on; 0 if the shard was looked through.
        looked: About how many were looked at.
    """

    names: tuple[str, ...] = field(default=())
    cursor: int = 0
    looked: int = 0


class Views(Protocol):
    """Reads mailboxes, events and dead letters in parts of a bounded size."""

    async def groups(self, shard: int, count: int) -> Mapping[GroupName, NamedGroup]:
        """Return of each group the first mailboxes, about `count`. What is limited stands in the first shard's answer."""
        ...

    async def look(self, mailboxes: Sequence[str]) -> dict[str, StoredEntity]:
        """Return mailboxes of any shards, with or without work."""
        ...

    async def first_commands(self, mailboxes: Sequence[str]) -> dict[str, tuple[str, bytes]]:
        """Return message id and envelope of the first command of each mailbox that has one."""
        ...

    async def find(self, shard: int, cursor: int, pattern: str, count: int) -> FoundNames:
        """Look at about `count` mailboxes with work from a cursor on, and return those that match a glob pattern."""
        ...

    async def events(self, shard: int, before: Sequence[str], count: int) -> list[StoredEvent]:
        """Return the last events of a shard, newest first: before one that workers wrote and one that senders wrote; empty: before none."""
        ...

    async def letters(self, shard: int, before: str, count: int) -> list[tuple[str, StoredDeadLetter]]:
        """Return dead letters with their ids in the shard, newest first, before one of them, or (empty) before none."""
        ...

    async def letters_by_id(self, letter_ids: Sequence[str]) -> list[StoredDeadLetter]:
        """Return those of these dead letters that are there."""
        ...

    def parking(self) -> AsyncIterator[list[StoredDeadLetter]]:
        """Yield the dead letters that park an entity, page by page, in no order."""
        ...


class Journals(Protocol):
    """Keeps entries in time's order, the newest of them only. What they hold is opaque here."""

    async def append(self, name: JournalName, data: bytes, *, kept: int, once_ms: int | None = None) -> str | None:
        """Write an entry; return its id. With `once_ms` only the first is written that names this time or a later one; else None."""
        ...

    async def newest(self, name: JournalName, before: str, count: int) -> list[tuple[str, bytes]]:
        """Return entries with their ids, newest first: before one of them, which is left out; empty: before none."""
        ...
