"""Commands chosen by state, name and content, and acts on all of them: what `bus.commands.select` returns.

Nothing is kept on the server for it. Who acts goes through the commands page by page: who leaves the loop stops, and asking again is harmless.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypedDict, get_args

from command_bus.admin.ending import Cancelling
from command_bus.clock import checked_seconds, milliseconds_of, mono
from command_bus.errors import CommandBusError, InvalidCommand, InvalidSettings, TransportUnavailable
from command_bus.messages.message import check_entity_type
from command_bus.messages.policies import Priority
from command_bus.sending.options import checked_priority
from command_bus.sending.waiting import WaitingCommands
from command_bus.serialization.envelope import names_of
from command_bus.serialization.json_forms import json_form
from command_bus.serialization.protection import readable_payload
from command_bus.session import OnSession, Session
from command_bus.spelling import check_filters, did_you_mean
from command_bus.stream_ids import ms_of
from command_bus.transport.mailboxes import type_of
from command_bus.transport.records import StoredEntity, WaitingEntry

SelectableState = Literal["waiting", "delayed", "limited", "paused", "running", "retrying", "snoozed", "suspended"]
SELECTABLE: tuple[SelectableState, ...] = get_args(SelectableState)
_AT_ONCE = 64
"""Mailboxes that are changed at once."""


class CommandFilters(TypedDict, total=False):
    """Filters for commands that are not settled; all that are given apply, None is as if not given."""

    state: SelectableState | None
    """The state, as `CommandStatus.state` has it. Parked commands are dead letters: see `bus.dead_letters`."""
    entity_type: str | None
    name: str | None
    """The command's wire name."""
    where: Mapping[str, object] | None
    """Top-level fields of the payload and their values, compared as text: 5 and "5" are equal, True is `true`."""
    older_than: float | None
    """Seconds since it was accepted; that of delayed commands is not known, so they do not match."""


@dataclass(frozen=True, slots=True)
class SelectedCommand:
    """A command that was found.

    Attributes:
        command_id: Its id; empty if its envelope cannot be read.
        name: Its wire name; empty if its envelope cannot be read.
        entity_type: Type of its entity; None without one.
        entity_id: Id of its entity.
        state: As `CommandStatus.state`.
        accepted_ms: When it was accepted, by the server's clock; None if it is delayed.
        due_ms: When a delayed command takes its place, by the server's clock; None for others.
        payload: Its fields, while this bus can read them; else None.
    """

    command_id: str
    name: str
    entity_type: str | None
    entity_id: str | None
    state: SelectableState
    accepted_ms: int | None
    due_ms: int | None
    payload: Mapping[str, Any] | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class BulkStep:
    """Progress of an act on many commands.

    Attributes:
        looked: Commands that were looked at.
        matched: Those of them that match.
        done: Those that were changed; of a dry run none.
        left: Those that match and were not changed: they have started or ended meanwhile, or were refused.
        complete: Whether all commands were looked at.
    """

    looked: int = 0
    matched: int = 0
    done: int = 0
    left: int = 0
    complete: bool = False

    def __str__(self) -> str:
        rest = f", {self.left:,} not" if self.left else ""
        return (
            f"{self.done:,} of {self.matched:,} that match{rest}; {self.looked:,} looked at{'' if self.complete else ', not all'}"
        )


class _Found(NamedTuple):
    mailbox: str
    entry: WaitingEntry
    state: SelectableState
    names: tuple[str, str, str, str]
    is_first: bool = False


_Change = Callable[[Sequence[_Found]], Awaitable[int]]
"""Changes commands of one mailbox; returns how many."""


class Selection(OnSession):
    """Commands that fit filters. Iterate over it, or act on all: `async for step in selection.cancel(): …`.

    Attributes:
        looked: Commands that the last iteration has looked at.
        unread: Those whose payload this bus cannot read, so that `where` did not match them.
        complete: Whether it looked at all commands.
        began_ms: When it began, by the server's clock.
        until_ms: May be set: those in line match that were accepted by then, by the server's clock. None: all.
    """

    def __init__(self, session: Session, filters: CommandFilters, scan: int) -> None:
        super().__init__(session)
        check_filters(filters, CommandFilters.__annotations__)
        state, kind, age = filters.get("state"), filters.get("entity_type"), filters.get("older_than")
        if state is not None and state not in SELECTABLE:
            hint = {"parked": ": parked commands are dead letters, see bus.dead_letters"}.get(state) or did_you_mean(
                state, SELECTABLE
            )
            raise InvalidSettings(f"state={state!r}: one of {', '.join(SELECTABLE)}{hint}")
        if scan < 1:
            raise InvalidSettings("scan: at least 1")
        self._type = None if kind is None else check_entity_type(kind)
        self._age_ms = None if age is None else int(checked_seconds("older_than", age, zero=True) * 1000)
        self._state, self._name, self._scan = state, filters.get("name"), scan
        self._where = {name: _text(value) for name, value in (filters.get("where") or {}).items()}
        self.looked = self.unread = self.began_ms = 0
        self.until_ms: int | None = None
        self.complete = False

    async def __aiter__(self) -> AsyncIterator[SelectedCommand]:
        """Yield the commands, in no order but that of each entity.

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        async for page in self._pages():
            for each in await self._described(page):
                yield each

    async def first(self, limit: int) -> list[SelectedCommand]:
        """Return some of the commands, those in lines before delayed ones. All is read at once, so one that is due meanwhile may come twice.

        Args:
            limit: At most so many; behind these nothing is looked at.

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        before = await self._begin()

        async def of(pages: AsyncIterator[list[_Found]]) -> list[SelectedCommand]:
            found: list[_Found] = []
            async for page in self._matching(pages, before):
                found += page
                if len(found) > limit:
                    self.complete = False
                    break
            return await self._described(found[: limit + 1])

        shards = range(self._transport.shards)
        parts = await asyncio.gather(*map(of, [*map(self._lines, shards), *map(self._later, shards)]))
        self.complete = self.complete and sum(map(len, parts)) <= limit
        return [each for found in parts for each in found][:limit]

    async def _described(self, page: Sequence[_Found]) -> list[SelectedCommand]:
        """Return the public form of commands, which are all of one shard."""
        delayed = [each.entry.id for each in page if each.state == "delayed"]
        due = await self._operator.entities.delayed_times(page[0].mailbox, delayed) if delayed else {}
        return [
            SelectedCommand(
                each.names[0],
                each.names[1],
                each.names[2] or None,
                each.names[3] or None,
                each.state,
                None if each.state == "delayed" else ms_of(each.entry.id),
                due.get(each.entry.id),
                readable_payload(each.entry.envelope, self._limits, self._session.protection),
            )
            for each in page
        ]

    async def count(self) -> Counter[tuple[str, SelectableState]]:
        """Count the commands, by wire name and state.

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        counts = Counter[tuple[str, SelectableState]]()
        async for page in self._pages():
            counts.update((each.names[1], each.state) for each in page)
        return counts

    async def cancel(
        self, reason: str = "", *, running: bool = False, wait: float = 10.0, dry_run: bool = False, limit: int | None = None
    ) -> AsyncIterator[BulkStep]:
        """Cancel them, as `bus.cancel` does each. Yields how far it is after each page, at least once.

        An error in the midst says in its `message` how many were cancelled before.

        Args:
            reason: For their callers.
            running: Whether to end those that have started.
            wait: Seconds to wait for the end of each handler. One that goes on longer has been told, and counts as not cancelled.
            dry_run: Only count.
            limit: Stop after so many that match; None: all.

        Raises:
            InvalidCommand: `wait` is not a positive number of seconds.
            InvalidSettings: The limit is below 1.
            TransportUnavailable: The server cannot be reached. Asking again is safe.
        """
        waiting, seconds = WaitingCommands(self._session), checked_seconds("wait", wait)

        async def change(found: Sequence[_Found]) -> int:
            first = found[0]
            removed = await unless_refused(waiting.cancel_entries(first.mailbox, [each.entry for each in found], reason))
            # Only the first of a mailbox can have started. Others that are left have started or moved meanwhile.
            is_left = running and first.is_first and removed < len(found)
            if is_left and (await self._operator.entities.look(first.mailbox)).oldest_id == first.entry.id:
                ending = Cancelling(self._session, first.names[0], reason)
                removed += await unless_refused(ending.end_in(first.mailbox, mono() + seconds))
            return removed

        async for step in self._act("cancelled", change, dry_run=dry_run, limit=limit):
            yield step

    async def reschedule(
        self, *, delay: float | None = None, at: datetime | None = None, dry_run: bool = False, limit: int | None = None
    ) -> AsyncIterator[BulkStep]:
        """Give the delayed ones of them another time, as `bus.commands.reschedule` does each. Yields as `cancel` does.

        Args:
            delay: Seconds from now; 0 promotes them now.
            at: The moment, with a time zone, instead of `delay`.
            dry_run: Only count.
            limit: Stop after so many that match; None: all.

        Raises:
            InvalidCommand: Neither a delay nor a moment, or both.
            InvalidSettings: The filters choose others than `state="delayed"`, or the limit is below 1.
            TransportUnavailable: The server cannot be reached. Asking again is safe.
        """
        if self._state != "delayed":
            raise InvalidSettings('reschedule goes with state="delayed"')
        at_ms, delay_ms = moment_of(delay, at)

        async def change(found: Sequence[_Found]) -> int:
            return sum(
                [
                    await unless_refused(self._operator.mailboxes.reschedule(each.mailbox, each.entry.id, at_ms, delay_ms))
                    for each in found
                ]
            )

        async for step in self._act("rescheduled", change, dry_run=dry_run, limit=limit):
            yield step

    async def prioritize(self, priority: Priority, *, dry_run: bool = False, limit: int | None = None) -> AsyncIterator[BulkStep]:
        """Give the lines in which they wait another priority, and the delayed ones of them. Yields as `cancel` does.

        It is as `bus.entity(…).prioritize`: all that waits in such a line now has this priority, also what does not match. Of a command of
        several entities these are all its lines.

        Args:
            priority: `"high"`, `"normal"` or `"low"`.
            dry_run: Only count.
            limit: Stop after so many that match; None: all.

        Raises:
            InvalidCommand: The priority is none.
            InvalidSettings: The limit is below 1.
            TransportUnavailable: The server cannot be reached. Asking again is safe.
        """
        checked = checked_priority(priority)

        async def change(found: Sequence[_Found]) -> int:
            delayed = [each.entry.id for each in found if each.state == "delayed"]
            further = () if delayed else dict.fromkeys(line for each in found for line in each.entry.lines)
            for line in further:
                await unless_refused(self._operator.shares.prioritize(line, checked))
            changed = await unless_refused(self._operator.shares.prioritize(found[0].mailbox, checked, delayed))
            return changed if delayed else changed * len(found)

        async for step in self._act("prioritized", change, dry_run=dry_run, limit=limit):
            yield step

    async def _act(self, done: str, change: _Change, *, dry_run: bool, limit: int | None) -> AsyncIterator[BulkStep]:
        if limit is not None and limit < 1:
            raise InvalidSettings("limit: at least 1")
        step = BulkStep()
        async for page in self._pages():
            chosen = page if limit is None else page[: limit - step.matched]
            by_mailbox = defaultdict[str, list[_Found]](list)
            for each in chosen:
                by_mailbox[each.mailbox].append(each)
            step = replace(step, looked=self.looked, matched=step.matched + len(chosen))
            lots = [] if dry_run else list(by_mailbox.values())
            for start in range(0, len(lots), _AT_ONCE):
                some = lots[start : start + _AT_ONCE]
                answers = await asyncio.gather(*map(change, some), return_exceptions=True)
                changed = sum(each for each in answers if isinstance(each, int))
                step = replace(step, done=step.done + changed, left=step.left + sum(map(len, some)) - changed)
                for error in answers:
                    if isinstance(error, CommandBusError):
                        error.message = f"after {step.done:,} were {done}: {error.message}"
                    if isinstance(error, BaseException):
                        raise error
            if step.matched == limit:
                yield step
                return
            yield step
        yield replace(step, looked=self.looked, complete=self.complete)

    async def _pages(self) -> AsyncIterator[list[_Found]]:
        """Yield those of each page that match, if only none; each page is of one shard."""
        before = await self._begin()
        for shard in range(self._transport.shards):
            for part in (self._later(shard), self._lines(shard)):  # in this order, since what is delayed moves to the lines
                async for page in self._matching(part, before):
                    yield page

    async def _begin(self) -> int | None:
        """Begin to look, and return the time before which commands match; None: any."""
        self.looked = self.unread = 0
        self.complete = True
        self.began_ms = await self._operator.entities.now_ms()
        return None if self._age_ms is None else self.began_ms - self._age_ms

    async def _matching(self, pages: AsyncIterator[list[_Found]], before: int | None) -> AsyncIterator[list[_Found]]:
        """Yield those of each page that match, until enough was looked at."""
        async for page in pages:
            if self.looked >= self._scan:
                self.complete = False
                return
            self.looked += len(page)
            yield [each for each in page if self._matches(each, before)]

    async def _later(self, shard: int) -> AsyncIterator[list[_Found]]:
        """Yield the delayed commands of a shard."""
        seen = set[str]()
        if self._state in (None, "delayed"):
            async for page in self._operator.mailboxes.delayed(shard):
                fresh = [(mailbox, entry) for mailbox, entry in page if entry.id not in seen]
                seen.update(entry.id for _, entry in fresh)
                yield [_Found(mailbox, entry, "delayed", names_of(entry.envelope[2:])) for mailbox, entry in fresh]

    async def _lines(self, shard: int) -> AsyncIterator[list[_Found]]:
        """Yield the commands in the lines of a shard."""
        if self._state != "delayed":
            async for lot in self._operator.mailboxes.contents(shard):
                yield [
                    _Found(
                        entity.mailbox,
                        entry,
                        _state_of(entity, entry),
                        names_of(entry.envelope[2:]),
                        is_first=entry.id == entity.oldest_id,
                    )
                    for entity, entries in lot
                    for entry in entries
                ]

    def _matches(self, found: _Found, before: int | None) -> bool:
        if before is not None and (found.state == "delayed" or ms_of(found.entry.id) > before):
            return False
        if self.until_ms is not None and found.state != "delayed" and ms_of(found.entry.id) > self.until_ms:
            return False
        if self._state not in (None, found.state) or self._name not in (None, found.names[1]):
            return False
        if self._type not in (None, found.names[2], type_of(found.mailbox)):
            return False
        if not self._where:
            return True
        payload = readable_payload(found.entry.envelope, self._limits, self._session.protection)
        self.unread += payload is None
        return payload is not None and all(name in payload and _text(payload[name]) == text for name, text in self._where.items())


def moment_of(delay: float | None, at: datetime | None) -> tuple[int | None, int]:
    """Return the moment to which commands are put off, in ms, or None, and the ms from now.

    Raises:
        InvalidCommand: Neither a delay nor a moment, or both.
    """
    if (delay is None) == (at is None):
        raise InvalidCommand("reschedule: give delay= (seconds from now, 0 is at once) or at= (a datetime with a time zone)")
    try:
        at_ms = None if at is None else milliseconds_of("at", at)
    except InvalidSettings as error:
        raise InvalidCommand(error.message) from None
    return at_ms, 0 if delay is None else int(checked_seconds("delay", delay, zero=True) * 1000)


async def unless_refused(changed: Awaitable[int]) -> int:
    """Return how many were changed; none where that is refused: it holds up no other."""
    try:
        return await changed
    except TransportUnavailable:
        raise
    except CommandBusError:
        return 0


def _state_of(entity: StoredEntity, entry: WaitingEntry) -> SelectableState:
    """Return the state of a command in line: that of its entity if it is the first, and not a parked entity's, whose command is a dead letter."""
    is_first = entry.id == entity.oldest_id and entity.state not in ("draining", "blocked", "parked")
    return entity.state if is_first else "waiting"  # type: ignore[return-value]


def _text(value: object) -> str:
    form = json_form(value)
    return form if isinstance(form, str) else json.dumps(form, ensure_ascii=False, sort_keys=True)
