"""The events of commands and schedules, as they happen: `async for event in bus.events(): …`.

Off by default. `await bus.events.watch("account")` switches the events of an entity type on, for all processes at once, without a
restart; the step that changes a command's state then writes the event with it, so that none is missing and none reports what did not happen.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args
from urllib.parse import unquote

from command_bus.errors import CommandBusError, InvalidSettings
from command_bus.messages.message import canonical_entity_id, check_entity_type
from command_bus.serialization.envelope import names_of
from command_bus.serialization.odd_values import stored_number
from command_bus.session import OnSession
from command_bus.stream_ids import ms_of
from command_bus.transport.mailboxes import (
    EVERYTHING,
    SCHEDULES,
    is_wide,
    mailbox_name,
    mailbox_parts,
    schedule_in,
    scope_label,
    scopes_of,
)
from command_bus.transport.ports.schedules import REFUSALS
from command_bus.transport.records import BEFORE_ALL, StoredEvent

EventKind = Literal[
    "accepted",
    "started",
    "completed",
    "rejected",
    "expired",
    "retried",
    "snoozed",
    "interrupted",
    "handed_back",
    "limited",
    "suspended",
    "dead_lettered",
    "parked",
    "replayed",
    "discarded",
    "cancelled",
    "superseded",
    "paused",
    "draining",
    "resumed",
    "fired",
    "late",
    "missed",
    "skipped",
    "refused",
    "put",
    "removed",
    "triggered",
    "exported",
    "imported",
]
"""What can happen: to a command from its acceptance to its end, by an operator to a command or dead letter, to what is held, or to a schedule."""

BEGINNING = ""
"""The cursor before the oldest event that is kept."""

_SCANNED = 1500
"""Events of one request: about 200 KB."""
_NO_TYPE = "~"
_EVENT_ID = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")
_BEFORE = re.compile(rf"({_EVENT_ID.pattern})?,({_EVENT_ID.pattern})?")
_LATER = ("accepted", "retried", "snoozed", "handed_back")
_HELD = ("paused", "draining")
_OF_FIRINGS = ("fired", "late", "skipped", "triggered")
_OF_LETTERS = ("dead_lettered", "parked", "replayed", "discarded")


@dataclass(frozen=True, slots=True)
class CommandEvent:
    """Something that happened.

    Attributes:
        kind: What.
        at_ms: When, by the server's clock.
        entity: For people: `account:a-17`, `order (lane 3)`; of `paused`, `draining` and `resumed` also `all account` or `everything`; of a schedule
            `schedule poll-7`.
        entity_type: None if the command has no entity, or all are concerned, or it is about a schedule.
        entity_id: None if the command has no entity, or several are concerned, or it is about a schedule.
        command_id: Empty where it is about no single command, or its bytes cannot be read; of a dead letter where it is not signed as it
            should be (`bad_signature`). Of a schedule that of the firing.
        name: The wire name; empty where there is no command id, and of a schedule except for `refused`.
        attempt: Number of the start that it is about; 0 where none had started.
        fence: Number of that start, which grows with every start in its shard; 0 without one.
        worker: That ran it, or lost it (`interrupted`); empty without one.
        delay: Seconds until it takes its place (`accepted`) or starts again (`retried`, `snoozed`, `handed_back`); None if that is at once.
            Of `late` the seconds by which a firing was behind its time.
        letter_id: The dead letter (`dead_lettered`, `parked`, `replayed`, `discarded`), for `bus.dead_letters.get`; else empty.
        reason: What the operator said (`paused`, `draining`), the error of the attempt (`retried`), or why a firing was refused (`refused`); else
            empty.
        cursor: The place where to go on behind this event: `bus.events(after=event.cursor)`.
        schedule: The name of the schedule that it is about; else empty.
        count: How many ticks were left out (`missed`); else 0.
    """

    kind: EventKind
    at_ms: int
    entity: str
    entity_type: str | None
    entity_id: str | None
    command_id: str
    name: str
    attempt: int
    fence: int
    worker: str
    delay: float | None
    letter_id: str
    reason: str
    cursor: str
    schedule: str = ""
    count: int = 0

    @property
    def outward(self) -> CommandEvent:
        """The event without what an error says, which may have values of the command in it: the class alone."""
        return replace(self, reason=self.reason.partition(":")[0]) if self.kind == "retried" else self


@dataclass(frozen=True, slots=True)
class EventPage:
    """The last events of an entity.

    Attributes:
        events: Newest first. Their own cursors are not those of a listing.
        before: The place where older ones begin; None if there are none.
        looked: How many events were looked at.
    """

    events: tuple[CommandEvent, ...]
    before: str | None
    looked: int


class Events(OnSession):
    """The events of a bus; reached as `bus.events`.

    Args:
        session: Connections and settings of the bus.
    """

    def __call__(
        self, *entity_types: str | None, kinds: Collection[EventKind] = (), after: str | None = None, follow: bool = True
    ) -> AsyncIterator[CommandEvent]:
        """Yield the events of watched types as they happen, in order for each entity (and shard).

        A server that is away is waited for; closing the bus ends the iteration. A reader that is slower than about `kept` events are
        written misses some.

        Args:
            *entity_types: Only those of these types, None is those without an entity, `@schedules` those of schedules; and what concerns the whole
                bus.
            kinds: Only these.
            after: A cursor to go on behind; `BEGINNING`, an empty text, for all that is kept; by default what happens from now on, which is
                when the iteration begins.
            follow: Whether to wait for more; if not, it ends with the last that is there when it begins, shard by shard.

        Raises:
            InvalidSettings: It is no cursor or kind.
            InvalidCommand: It is no entity type.
            TransportUnavailable: The server cannot be reached, at the beginning, or ever if it does not follow.
        """
        wanted = frozenset([kinds] if isinstance(kinds, str) else kinds)
        if unknown := sorted(wanted - set(get_args(EventKind))):
            raise InvalidSettings(f"kinds: {', '.join(unknown)}: one of {', '.join(get_args(EventKind))}")
        types = frozenset(None if each is None else _checked(each) for each in entity_types)
        return self._read(types, wanted, after, follow)

    async def cursor(self) -> str:
        """Return the cursor behind the last event that is there: `bus.events(after=cursor)` goes on from there.

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        return ",".join(await self._operator.events.ends())

    async def watch(self, *entity_types: str | None, kept: int = 10_000) -> None:
        """Record events of commands of these types from now on; None is those without an entity, `@schedules` all schedules. Idempotent.

        If none is named, those of all types and of schedules.

        Args:
            *entity_types: Those whose commands are watched.
            kept: About how many events each shard keeps, the newest of all types together, with about 150 bytes each. If types are watched with
                different numbers, the largest counts.

        Raises:
            InvalidCommand: One is no entity type.
            InvalidSettings: `kept` is below 1.
            TransportUnavailable: The server cannot be reached; with several shards some may record already. Asking again is safe.
        """
        if kept < 1:
            raise InvalidSettings(f"kept = {kept}: at least 1")
        await self._operator.events.watch(_fields(entity_types) or [EVERYTHING], kept)

    async def unwatch(self, *entity_types: str | None) -> None:
        """Take back a `watch` of these types; if none is named, every one. Recorded events are kept for a day once nothing is watched.

        Raises:
            InvalidCommand: One is no entity type.
            TransportUnavailable: As for `watch`.
        """
        await self._operator.events.unwatch(_fields(entity_types))

    async def watched(self) -> dict[str | None, int]:
        """Return the types that are watched, with `kept` as it was given; `*` is all of them, None is what has no entity, `@schedules` schedules."""
        found = await self._operator.events.watched()
        return {None if name == _NO_TYPE else name: kept for name, kept in found.items()}

    async def recent(
        self, entity_type: str, entity_id: str | int, *, limit: int = 100, before: str = "", scan: int = 3000
    ) -> EventPage:
        """Return the last events of one entity, and of holds that concern it, newest first.

        There is no index: the events of its shard are read from the newest on until enough are found, or `scan` of them were looked at.

        Args:
            entity_type: The type.
            entity_id: The id.
            limit: At most so many.
            before: The cursor of the page before.
            scan: Events that are looked at, at most.

        Raises:
            InvalidCommand: The type or id is not what it may be.
            InvalidSettings: A number is below 1, or it is no cursor.
            TransportUnavailable: The server cannot be reached.
        """
        if limit < 1 or scan < 1 or not _BEFORE.fullmatch(before or ","):
            raise InvalidSettings(
                f"limit={limit}, scan={scan}, before={before!r}: numbers from 1, and the cursor of a page of events"
            )
        policy = self._session.settings.entity(check_entity_type(entity_type)).mailbox
        mailbox = mailbox_name(entity_type, canonical_entity_id(entity_id), policy)
        wanted = scopes_of(mailbox)
        shard, found, looked = self._transport.shard_of(mailbox), list[CommandEvent](), 0
        last = (before or ",").split(",")
        while looked < scan:
            size = min(_SCANNED, scan - looked)
            page = await self._transport.operator.views.events(shard, last, size)
            for stored in page:
                looked += 1
                last[stored.feed != stored.shard] = stored.id
                if stored.is_told and stored.mailbox in wanted:
                    found.append(event_of(stored, [stored.id]))
                if len(found) == limit:
                    return EventPage(tuple(found), ",".join(last), looked)
            if len(page) < size:
                return EventPage(tuple(found), None, looked)
        return EventPage(tuple(found), ",".join(last), looked)

    async def _read(
        self, types: frozenset[str | None], kinds: frozenset[str], after: str | None, follow: bool
    ) -> AsyncIterator[CommandEvent]:
        streams = self._operator.events
        try:
            ends = await streams.ends()
        except CommandBusError:
            if streams.closed:
                return
            raise
        ids = ends if after is None else _event_ids(after, len(ends))
        async for stored in streams.follow(list(ids)) if follow else streams.kept(list(ids)):
            ids[stored.feed] = stored.id
            event = event_of(stored, ids)
            if kinds and event.kind not in kinds:
                continue
            if not types or stored.mailbox == EVERYTHING or (SCHEDULES if event.schedule else event.entity_type) in types:
                yield event


def _fields(entity_types: tuple[str | None, ...]) -> list[str]:
    return [_NO_TYPE if each is None else _checked(each) for each in entity_types]


def _checked(entity_type: str) -> str:
    return entity_type if entity_type == SCHEDULES else check_entity_type(entity_type)


def _event_ids(cursor: str, count: int) -> list[str]:
    if cursor == BEGINNING:
        return [BEFORE_ALL] * count
    ids = cursor.split(",")
    if len(ids) != count or not all(map(_EVENT_ID.fullmatch, ids)):
        raise InvalidSettings(f"after = {cursor!r}: not the cursor of an event of this bus, which has {count // 2} shards")
    return ids


def event_of(stored: StoredEvent, ids: list[str]) -> CommandEvent:
    """Return an event from its entry; the ids are those of its cursor."""
    kind, attempt, fence, worker, detail = stored.facts
    command_id, name, _, named_id = names_of(stored.names)
    schedule = schedule_in(stored.mailbox)
    number, _, firing = detail.partition(" ")
    entity_type, entity_id = (None, None) if schedule or stored.mailbox == EVERYTHING else mailbox_parts(stored.mailbox)
    if entity_type is not None:
        # A mailbox says whose it is; only of a lane or a long id the envelope has to, which anybody may have put there.
        entity_id = None if is_wide(stored.mailbox) else entity_id or named_id
    reason = detail if kind in _HELD else unquote(firing) if kind == "retried" else ""
    if schedule:
        reason = REFUSALS.get(detail, detail) if kind in ("paused", "refused") else ""
    return CommandEvent(
        kind=cast("EventKind", kind),
        at_ms=ms_of(stored.id),
        entity=scope_label(stored.mailbox),
        entity_type=entity_type,
        entity_id=entity_id,
        command_id=firing if schedule and kind in _OF_FIRINGS else command_id,
        name=name,
        attempt=_number(attempt),
        fence=_number(fence),
        worker=worker,
        delay=_number(number) / 1000 if detail and kind in (("late",) if schedule else _LATER) else None,
        letter_id=f"{stored.shard}-{detail}" if detail and kind in _OF_LETTERS else "",
        reason=reason,
        cursor=",".join(ids),
        schedule=schedule,
        count=_number(number) if schedule and kind == "missed" else 0,
    )


def _number(text: str) -> int:
    """Return a number as the scripts write it; 0 for anything else."""
    return stored_number("events", text) if text else 0
