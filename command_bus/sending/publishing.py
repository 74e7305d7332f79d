"""Publishing: which subscriptions an event is for, and the commands that it becomes, one for each.

Who publishes resolves by a table of the subscriptions, which it may use until one second after it *asked* for it. `Subscriptions.put` returns
a moment later than that, so what is published after it uses no older table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from command_bus.clock import mono, wall_ms
from command_bus.errors import CommandBusError, InvalidSettings, PublishedInPart, TransportUnavailable
from command_bus.handlers.registry import HandlerRegistry
from command_bus.messages.event import Published, matcher
from command_bus.messages.outgoing import OutgoingMessage
from command_bus.messages.policies import delivered_name, parts_of_delivery
from command_bus.messages.receipts import BatchOutcome
from command_bus.serialization.odd_values import pass_over
from command_bus.serialization.stored_fields import JsonNote
from command_bus.session import Session, SessionPart
from command_bus.tasks import end_tasks

BOOK: Final = "subscriptions"
FRESH: Final = 1.0
"""Seconds for which a table is used, from when it was asked for."""
MOST: Final = 200
"""Subscriptions of a namespace: each is a command for each event that it is for."""
_GONE_MS: Final = 7 * 86_400_000
"""Milliseconds for which it is remembered that a subscription was removed."""
_TRIES: Final = 20
_FORGOTTEN: Final = 60.0
_SKEW_MS: Final = 5_000
"""Milliseconds by which the clocks of workers and servers may differ."""


@dataclass(frozen=True, slots=True)
class SubscriptionRecord(JsonNote):
    """A subscription as it is stored.

    Attributes:
        events: Names of events, and patterns.
        at_most_once: Whether its deliveries are never started again after an interruption.
        revision: Number of its declaration.
        since_ms: When it was put first.
        gone_ms: When it was removed; 0: it was not. What was published to it meanwhile is dropped.
    """

    fault = "the record of a subscription cannot be read: put it again, or use the release that wrote it"

    events: tuple[str, ...]
    at_most_once: bool
    revision: int
    since_ms: int
    gone_ms: int = 0


class SubscriptionTable(SessionPart):
    """The subscriptions of a namespace, as one process has read them last. Attach it to the session.

    Args:
        session: Connections and settings of the bus.

    Attributes:
        records: They, by name; also of what was removed.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.renew()

    def renew(self) -> None:
        self._asked = self._asked_ms = -1e18
        self.records: dict[str, SubscriptionRecord] = {}
        self._matching: dict[str, tuple[str, ...]] = {}
        self._reading = asyncio.Lock()
        self._looks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """End the looks."""
        await end_tasks(self._looks)

    def forget(self) -> None:
        """Read them before the next event."""
        self._asked = -1e18

    async def begin(self, *events: OutgoingMessage) -> None:
        """Read the subscriptions, if need be, for events that are published now.

        Raises:
            CommandBusError: They cannot be read.
        """
        if (hook := self._session.active_hook) is not None:
            for event in events:
                await hook.publishing(self._session, event)
        await self.refresh()

    async def refresh(self, age: float = FRESH) -> None:
        """Read the subscriptions, unless they were asked for within so many seconds.

        Raises:
            CommandBusError: They cannot be read.
        """
        if mono() - self._asked < age:
            return
        async with self._reading:
            asked, asked_ms = mono(), wall_ms()
            if asked - self._asked < age:  # another has read them meanwhile
                return
            found = {
                name: record
                for name, data in (await self._session.transport.notes.all(BOOK)).items()
                if (record := _read(name, data))
            }
            if found != self.records:
                self.records, self._matching = found, {}
            self._asked, self._asked_ms = asked, asked_ms

    async def declare(self, registry: HandlerRegistry, *, only_missing: bool = False) -> None:
        """Put the subscriptions of a registry, without waiting until that holds everywhere.

        Args:
            registry: Has their handlers.
            only_missing: Leave those that there is a record of, also of their removal.

        Raises:
            InvalidSettings: There are 200 already.
            TransportUnavailable: The server cannot be reached.
        """
        declared = registry.subscriptions()
        if not declared:
            return
        await self.refresh(0.0)
        now_ms = await self._session.transport.notes.now_ms()
        for name, handlers in declared.items():
            parts = [handler.declared for handler in handlers if handler.declared is not None]
            events, revision = tuple(sorted(each.pattern for each in parts)), max(each.revision for each in parts)
            known = self.records.get(name)
            if known is None or not only_missing:
                await self.put(name, SubscriptionRecord(events, handlers[0].spec.delivery == "at_most_once", revision, now_ms))

    async def put(self, name: str, wanted: SubscriptionRecord) -> bool:
        """Write a record, unless one of a later revision is there; return whether it changed."""

        def change(known: SubscriptionRecord | None) -> SubscriptionRecord | None:
            if known is None or known.gone_ms:
                return wanted
            return known if known.revision > wanted.revision else replace(wanted, since_ms=known.since_ms)

        live = [each for each, record in self.records.items() if not record.gone_ms and each != name]
        if len(live) >= MOST:
            raise InvalidSettings(
                f"{MOST} subscriptions are there, which is the most: each is a command for each event that it is for"
            )
        return await self.change(name, change)

    async def change(self, name: str, change: Callable[[SubscriptionRecord | None], SubscriptionRecord | None]) -> bool:
        """Change a record, also while others do; return whether it is another now. Forget what was removed long ago."""
        notes = self._session.transport.notes
        for _ in range(_TRIES):
            before = await notes.read(BOOK, name)
            known = None if before is None else _readable(before)
            after = change(known)
            if after == known or await notes.change(BOOK, name, before, None if after is None else after.pack()):
                await self._forget_old()
                self.forget()
                return after != known
        raise InvalidSettings(f"subscription {name!r} is changed by others again and again: try it once more")

    async def _forget_old(self) -> None:
        notes, now_ms = self._session.transport.notes, await self._session.transport.notes.now_ms()
        for name, record in self.records.items():
            if record.gone_ms and now_ms - record.gone_ms > _GONE_MS and (data := await notes.read(BOOK, name)) == record.pack():
                await notes.change(BOOK, name, data, None)

    def matching(self, event: str) -> tuple[str, ...]:
        """Return the names of the subscriptions that an event is for, as they were read last; called in any thread."""
        matching = self._matching  # before the records: what is found in older ones is not kept
        if (known := matching.get(event)) is not None:
            return known
        records = self.records
        found = [name for name, record in records.items() if not record.gone_ms and _is_for(record, event)]
        if len(matching) < 10_000:  # names of raw events may be anything
            matching[event] = tuple(found)
        return tuple(found)

    def deliveries(self, event: OutgoingMessage) -> list[OutgoingMessage]:
        """Return the commands that an event becomes, one for each subscription."""
        return [
            replace(
                event,
                name=delivered_name(event.name, subscription),
                entity_type=delivered_name(event.entity_type or "", subscription),
                command_id=delivered_name(event.command_id, subscription),
                given_id=True,
                at_most_once=self.records[subscription].at_most_once,
                headers=dict(event.headers),
                options=dict(event.options),
            )
            for subscription in self.matching(event.name)
        ]

    def is_gone(self, name: str, accepted_ms: int) -> bool:
        """Return whether a delivery of this name is of a subscription that was removed. A missing record does not say so.

        What was read last decides, if that was after the acceptance: the subscription may have been put again since. What is older than a minute
        is read again, for the next time.
        """
        if mono() - self._asked > _FORGOTTEN and not self._looks:
            look = asyncio.get_running_loop().create_task(self._look(), name="command_bus.subscriptions")
            self._looks.add(look)
            look.add_done_callback(self._looks.discard)
        record = self.records.get(parts_of_delivery(name)[1])
        return record is not None and record.gone_ms > 0 and accepted_ms + _SKEW_MS < self._asked_ms

    async def _look(self) -> None:
        with suppress(CommandBusError):  # what was known holds
            await self.refresh()


def _readable(data: bytes) -> SubscriptionRecord | None:
    """Return a record; None if it cannot be read: then it is written again."""
    try:
        return SubscriptionRecord.unpack(data)
    except InvalidSettings:
        return None


def _is_for(record: SubscriptionRecord, event: str) -> bool:
    return any(each == event or ("*" in each and matcher(each)(event)) for each in record.events)


def _read(name: str, data: bytes) -> SubscriptionRecord | None:
    try:
        return SubscriptionRecord.unpack(data)
    except InvalidSettings as error:
        pass_over(f"note:{BOOK}", name, error.message)
        return None


def received(event_id: str, deliveries: Sequence[OutgoingMessage], outcomes: Sequence[BatchOutcome]) -> Published:
    """Return the receipt of what was published under an id, and sent as these deliveries.

    Raises:
        PublishedInPart: Some were refused.
        CommandBusError: All were, or it is not known.
    """
    errors: dict[str, CommandBusError | None] = {}
    for each, outcome in zip(deliveries, outcomes, strict=True):
        name = parts_of_delivery(each.name)[1]
        errors[name] = errors.get(name) or outcome.error
    refused = {name: error for name, error in errors.items() if error is not None}
    if not refused:
        return Published(event_id, tuple(errors))
    first = next(iter(refused.values()))
    if all(outcome.error for outcome in outcomes) or isinstance(first, TransportUnavailable):
        raise first
    reached = tuple(name for name in errors if name not in refused)
    raise PublishedInPart(
        f"{parts_of_delivery(deliveries[0].name)[0]} {event_id} reached {', '.join(reached) or 'none as a whole'}, but not {', '.join(refused)}: "
        f"{first}; publish it again with this id",
        event_id=event_id,
        subscriptions=reached,
        refused=refused,
    ) from first
