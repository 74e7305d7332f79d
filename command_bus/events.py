"""What happens to commands, as it happens: `async for event in bus.events(): …`.

Off by default. `await bus.events.watch("account")` switches the events of an entity type on, for all processes at once, without a
restart; the step that changes a command's state then writes the event with it, so that none is missing and none is told of what did not happen.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, get_args

from command_bus.errors import InvalidSettings
from command_bus.messages import check_entity_type
from command_bus.serialization.envelope import names_of
from command_bus.transport.redis.events import START, StoredEvent
from command_bus.transport.redis.keys import EVERYTHING, mailbox_parts, scope_label
from command_bus.transport.redis.scopes import is_wide

if TYPE_CHECKING:
    from command_bus.bus import CommandBus

__all__ = ["BEGINNING", "Event", "EventKind", "Events"]

EventKind = Literal[
    "accepted",
    "started",
    "completed",
    "rejected",
    "expired",
    "retried",
    "interrupted",
    "handed_back",
    "dead_lettered",
    "parked",
    "replayed",
    "discarded",
    "cancelled",
    "paused",
    "draining",
    "resumed",
]
"""What can happen: to a command from its acceptance to its end, by an operator to a command or dead letter, or to what is held."""

BEGINNING = ""
"""The cursor before the oldest event that is kept."""

_NO_TYPE = "~"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        kind: What.
        at_ms: When, by the server's clock.
        entity: For people: `account:a-17`, `order (lane 3)`; of `paused`, `draining` and `resumed` also `all account` or `everything`.
        entity_type: None if the command has no entity, or all are concerned.
        entity_id: None likewise.
        command_id: Empty where it is about no single command, or its bytes cannot be read.
        name: The wire name, empty likewise.
        attempt: Of which the event tells; 0 where none had started.
        fence: Of that attempt; 0 likewise.
        worker: That ran it, or lost it (`interrupted`); empty likewise.
        detail: Of `accepted` the delay in ms, if it is delayed; of `retried` and `handed_back` the ms until it starts again; of
            `replayed` and `discarded` the dead letter's id in its shard; of `paused` and `draining` the reason. Else empty.
        cursor: Where to go on behind this event: `bus.events(after=event.cursor)`.
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
    detail: str
    cursor: str


class Events:
    """The events of a bus; reached as `bus.events`.

    Args:
        bus: Whose.
    """

    def __init__(self, bus: CommandBus) -> None:
        self._bus = bus

    def __call__(
        self, entity_type: str | None = None, *, kinds: Collection[EventKind] = (), after: str | None = None, follow: bool = True
    ) -> AsyncIterator[Event]:
        """The events of watched types as they happen, in order for each entity (and shard).

        A server that is away is waited for; closing the bus ends the iteration. Whoever reads more slowly than about `kept` events are
        written misses some.

        Args:
            entity_type: Only those of this type.
            kinds: Only these.
            after: A cursor to go on behind; `BEGINNING`, an empty text, for all that is kept; by default what happens from now on, which is
                when the iteration begins.
            follow: Whether to wait for more; if not, it ends with the last that is there.

        Raises:
            InvalidSettings: It is no cursor, no kind or no entity type.
            TransportUnavailable: The server cannot be reached, at the beginning.
        """
        if unknown := sorted(set(kinds) - set(get_args(EventKind))):
            raise InvalidSettings(f"kinds: {', '.join(unknown)}: one of {', '.join(get_args(EventKind))}")
        if entity_type is not None:
            check_entity_type(entity_type)
        return self._read(entity_type, frozenset(kinds), after, follow)

    async def watch(self, *entity_types: str | None, kept: int = 10_000) -> None:
        """Tell of commands of these types from now on, or of all if none is named; None is those without an entity. Idempotent.

        Args:
            *entity_types: Which.
            kept: About how many events each shard keeps, of all types together: the newest, with about 150 bytes each.

        Raises:
            InvalidCommand: One is no entity type.
            TransportUnavailable: The server cannot be reached; with several shards some may tell already. Asking again is safe.
        """
        if kept < 1:
            raise InvalidSettings(f"kept = {kept}: at least 1")
        await self._bus.transport.events.watch(_fields(entity_types), kept)

    async def unwatch(self, *entity_types: str | None) -> None:
        """Take back a `watch` of these types (or, if none is named, that of all). What was told is kept for a day once nothing is watched.

        Raises:
            InvalidCommand: One is no entity type.
            TransportUnavailable: As for `watch`.
        """
        await self._bus.transport.events.unwatch(_fields(entity_types))

    async def watched(self) -> dict[str | None, int]:
        """The types that are watched and how many events are kept of each; `*` is all of them, None what has no entity."""
        found = await self._bus.transport.events.watched()
        return {None if name == _NO_TYPE else name: kept for name, kept in found.items()}

    async def _read(
        self, entity_type: str | None, kinds: frozenset[str], after: str | None, follow: bool
    ) -> AsyncIterator[Event]:
        streams = self._bus.transport.events
        places = await streams.ends() if after is None else _places(after, self._bus.transport.keys.count)
        async for stored in streams.read(list(places), follow=follow):
            places[stored.shard] = stored.id
            event = _event(stored, places)
            if kinds and event.kind not in kinds:
                continue
            if entity_type is None or event.entity_type == entity_type or stored.mailbox == EVERYTHING:
                yield event


def _fields(entity_types: tuple[str | None, ...]) -> list[str]:
    return [_NO_TYPE if each is None else check_entity_type(each) for each in entity_types] or [EVERYTHING]


def _places(cursor: str, shards: int) -> list[str]:
    if cursor == BEGINNING:
        return [START] * shards
    places = cursor.split(",")
    if len(places) != shards or not all(place.replace("-", "", 1).isdecimal() for place in places):
        raise InvalidSettings(f"after = {cursor!r}: not the cursor of an event of this bus, which has {shards} shards")
    return places


def _event(stored: StoredEvent, places: list[str]) -> Event:
    kind, attempt, fence, worker, detail = stored.facts
    command_id, name, _, named_id = names_of(stored.names)
    entity_type, entity_id = (None, None) if stored.mailbox == EVERYTHING else mailbox_parts(stored.mailbox)
    if entity_type is not None:
        entity_id = None if is_wide(stored.mailbox) else named_id or entity_id
    return Event(
        kind=cast("EventKind", kind),
        at_ms=int(stored.id.partition("-")[0]),
        entity=scope_label(stored.mailbox),
        entity_type=entity_type,
        entity_id=entity_id,
        command_id=command_id,
        name=name,
        attempt=int(attempt or 0),
        fence=int(fence or 0),
        worker=worker,
        detail=detail,
        cursor=",".join(places),
    )
