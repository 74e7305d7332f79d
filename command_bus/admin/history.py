"""The history: how commands ended that asked for it. Reached as `bus.history`.

A class, an entity type, the bus or a dispatch says `history="30 days"`; then the step that settles the command keeps its end.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, get_args
from uuid import UUID

from command_bus.admin.letter_pages import Place, place_in
from command_bus.clock import time_of
from command_bus.errors import BadResult, CommandBusError, InvalidCommand, InvalidSettings
from command_bus.messages.message import canonical_entity_id, check_entity_type, checked_id
from command_bus.sending.results import reply_value
from command_bus.serialization.limits import Undecodable
from command_bus.serialization.outcome import OutcomeRecord, Status
from command_bus.serialization.protection import readable_payload
from command_bus.serialization.reply import reply_id
from command_bus.serialization.story import StoryStep, story_of
from command_bus.session import OnSession
from command_bus.transport.records import StoredEnd


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """The end of a command.

    Attributes:
        command_id: Its id.
        name: Its wire name.
        entity_type: Type of its entity; None without one.
        entity_id: Id of its entity.
        status: How it ended. `dead_lettered` and `parked` are replaced by another end if an operator replays or discards the command.
        attempts: How many times it was started.
        worker: Who settled it; empty if no worker had started it.
        accepted_ms: When it was accepted, by the server's clock; 0 if it never stood in line, as one that was cancelled while delayed.
        started_ms: When it was first started; 0 if it never was.
        settled_ms: When it ended.
        reply: What its handler returned, as plain values; None unless `error` is.
        error: What a caller would have got instead of a reply; or None. `BadResult` if the reply cannot be read here.
        payload: Its fields, if its history keeps the payload and this bus can read it; else None.
        others: Types and ids of its further entities, if it is a command of several.
        steps: What it did as a durable command, if its history keeps that; else None.
    """

    command_id: str
    name: str
    entity_type: str | None
    entity_id: str | None
    status: Status
    attempts: int
    worker: str
    accepted_ms: int
    started_ms: int
    settled_ms: int
    reply: Any
    error: CommandBusError | None
    payload: dict[str, Any] | None
    others: tuple[tuple[str, str], ...] = ()
    steps: tuple[StoryStep, ...] | None = None

    @property
    def settled_at(self) -> datetime:
        """When it ended, in UTC."""
        return time_of(self.settled_ms)


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """The result of a search.

    Attributes:
        entries: Newest first.
        cut: Whether it ended because it had looked at as many entries as it may: what it seeks may still be among the older ones.
        cursor: The place where to go on; None if there is nothing older.
    """

    entries: tuple[HistoryEntry, ...]
    cut: bool
    cursor: str | None


class _Wanted(NamedTuple):
    """The filters of a search; None matches all."""

    name: str | None
    entity_type: str | None
    entity_id: str | None
    status: str | None

    def matches(self, record: OutcomeRecord) -> bool:
        """Return whether an end is one of those."""
        return (
            self.name in (None, record.name)
            and self.status in (None, record.status)
            and any(
                self.entity_type in (None, of) and self.entity_id in (None, each)
                for of, each in ((record.entity_type, record.entity_id), *record.others)
            )
        )


class CommandHistory(OnSession):
    """The ends of commands that have a history.

    Args:
        session: Connections and settings of the bus.
    """

    async def get(self, command_id: str | UUID) -> HistoryEntry | None:
        """Return the end of a command; None if it has not ended, has no history, or is not kept any more.

        Raises:
            BadResult: What is kept of it cannot be read: a later release wrote it.
            TransportUnavailable: The server cannot be reached.
        """
        found = await self._operator.history.find(checked_id(command_id))
        kept = [end for end in found if not end.is_over]
        if not kept:
            return None
        end = max(kept)
        try:
            return self._entry(end, OutcomeRecord.unpack(end.record))
        except Undecodable as error:
            raise BadResult(f"the end of {command_id} cannot be read: {error}", command_id=str(command_id)) from error

    async def search(
        self,
        *,
        name: str | None = None,
        entity: tuple[str, str | int] | None = None,
        entity_type: str | None = None,
        status: Status | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        scan: int = 10_000,
        cursor: str | None = None,
    ) -> HistoryPage:
        """Return the ends that match all filters, newest first.

        There is no index: entries are read from the newest on until enough are found, or `scan` of them were looked at.

        Args:
            name: The wire name.
            entity: Type and id of the entity, or of one of its entities.
            entity_type: The type of the entity or of one of them, instead of `entity`.
            status: How it ended.
            since: Ended then or later; without a time zone it is local time.
            until: Ended before then.
            limit: At most so many.
            scan: Entries that are looked at, at most.
            cursor: The place where an earlier search with the same filters ended.

        Raises:
            InvalidSettings: A filter, the limit or the cursor is not what it may be.
            TransportUnavailable: The server cannot be reached.
        """
        wanted = _wanted(name, entity, entity_type, status)
        if limit < 1 or scan < 1:
            raise InvalidSettings(f"limit={limit}, scan={scan}: each is at least 1")
        before = place_in(cursor, "the history")
        if until is not None:
            before = min(place for place in (before, (_ms(until), 0, 0)) if place is not None)
        oldest = "-" if since is None else str(_ms(since))
        return await self._found(wanted, before, oldest, limit, scan)

    async def _found(self, wanted: _Wanted, before: Place | None, oldest: str, limit: int, scan: int) -> HistoryPage:
        found: list[HistoryEntry] = []
        looked, last = 0, ""
        async with aclosing(self._newest_first(before, oldest)) as ends:
            async for end in ends:
                if len(found) == limit or looked == scan:
                    return HistoryPage(tuple(found), cut=len(found) < limit, cursor=last)
                looked, last = looked + 1, f"{end.settled_ms}-{end.sequence}-{end.shard}"
                record = None if end.is_over else _record(end)
                if record is not None and wanted.matches(record):
                    found.append(self._entry(end, record))
        return HistoryPage(tuple(found), cut=False, cursor=None)

    async def _newest_first(self, before: Place | None, oldest: str) -> AsyncGenerator[StoredEnd]:
        """Yield the ends of all shards."""
        readers = [
            _each(self._transport.operator.history.newest_first(shard, _newest(before, shard), oldest))
            for shard in range(self._transport.shards)
        ]
        firsts = await asyncio.gather(*map(_next, readers))
        heads = [(-end.settled_ms, -end.sequence, -end.shard, end) for end in firsts if end is not None]
        heapq.heapify(heads)
        while heads:
            end = heads[0][-1]
            yield end
            following = await _next(readers[end.shard])
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (-following.settled_ms, -following.sequence, -following.shard, following))

    def _entry(self, end: StoredEnd, record: OutcomeRecord) -> HistoryEntry:
        command_id = reply_id(record.reply)
        reply, error = None, None
        try:
            reply = reply_value(self._session, self._limits, record.reply, Any, command_id)
        except CommandBusError as outcome:
            error = outcome
        return HistoryEntry(
            command_id,
            record.name,
            record.entity_type,
            record.entity_id,
            record.status,
            record.attempt,
            record.worker,
            record.accepted_ms,
            record.first_started_ms,
            end.settled_ms,
            reply,
            error,
            None if record.envelope is None else readable_payload(record.envelope, self._limits, self._session.protection),
            tuple(record.others),
            None if (story := story_of(record, self._session.protection, self._limits)) is None else tuple(story),
        )


def _wanted(name: str | None, entity: tuple[str, str | int] | None, entity_type: str | None, status: Status | None) -> _Wanted:
    if status is not None and status not in get_args(Status):
        raise InvalidSettings(f"status={status!r}: one of {', '.join(get_args(Status))}")
    if entity is not None and entity_type is not None:
        raise InvalidSettings("entity=… names the type, too: give entity or entity_type")
    if entity is not None and (not isinstance(entity, tuple) or len(entity) != 2):
        raise InvalidSettings(f'entity={entity!r}: the type and the id, as entity=("account", "a-17")')
    try:
        kind = entity_type if entity is None else entity[0]
        entity_id = None if entity is None else canonical_entity_id(entity[1])
        return _Wanted(name, None if kind is None else check_entity_type(kind), entity_id, status)
    except InvalidCommand as error:
        raise InvalidSettings(error.message) from None


def _record(end: StoredEnd) -> OutcomeRecord | None:
    """Return the record of an end; None of one that only a later release can read."""
    try:
        return OutcomeRecord.unpack(end.record)
    except Undecodable:
        return None


def _newest(before: Place | None, shard: int) -> str:
    """Return the id with which a shard's part of what stands before a place begins, from the newest on."""
    if before is None:
        return "+"
    settled_ms, sequence, last = before
    if (settled_ms, sequence) == (0, 0):
        return "0-0"  # nothing stands before the first id, and a server refuses to look there
    return f"{'' if shard < last else '('}{settled_ms}-{sequence}"


def _ms(moment: datetime) -> int:
    return max(int(moment.timestamp() * 1000), 0)


async def _each(pages: AsyncIterator[list[StoredEnd]]) -> AsyncIterator[StoredEnd]:
    async for page in pages:
        for end in page:
            yield end


async def _next(ends: AsyncIterator[StoredEnd]) -> StoredEnd | None:
    return await anext(ends, None)
