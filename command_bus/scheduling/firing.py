"""`ScheduleFiring`: fires what is due. Any worker does it, and none is special.

    read the record → decide (planning.py) → pin the tick, by compare-and-set → accept the firing in its entity's shard, once → move on

A worker that dies in between leaves a pinned tick that is due: the one that looks next goes on with it, and the number of the firing makes a
repeat nothing. A firing that is refused (its entity is full, say) stays pinned and due, and is tried again a second later.

`Overlaps`: what happens to a firing's predecessor that is not settled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from command_bus.admin.ending import Cancelling
from command_bus.clock import wall_ms
from command_bus.errors import CommandBusError, MissingExtra, NewerState
from command_bus.scheduling.info import Told, fired, missed, paused, skipped
from command_bus.scheduling.planning import plan, present, set_back, unpin
from command_bus.scheduling.record import ScheduleRecord
from command_bus.scheduling.templates import BadTemplate, ForeignTemplate, Templates
from command_bus.sending.waiting import WaitingCommands
from command_bus.serialization.odd_values import pass_over
from command_bus.session import OnSession, Session
from command_bus.transport.marks import accepted_ms, is_settled
from command_bus.transport.ports.schedules import REFUSALS, DueSchedules, FireAnswer, Firing, RecordChange, ScheduleStore


@dataclass(eq=False)
class Overlaps:
    """Looks at predecessors, and makes room.

    Attributes:
        session: Connections and settings of the bus.
        templates: Name the mailboxes.
    """

    session: Session
    templates: Templates

    async def skips(self, record: ScheduleRecord) -> bool:
        """Return whether a tick is left out, because its predecessor is not settled. One that can never run leaves out none."""
        if record.policy.overlap != "skip":
            return False
        mailbox = await self._unsettled(record)
        return mailbox is not None and not await self._is_late(record, mailbox)

    async def makes_room(self, record: ScheduleRecord) -> bool:
        """Take a predecessor out of line that must not come before; return False while it has to be waited for.

        One that is parked stays: an operator decides about it.
        """
        if record.policy.overlap not in ("replace", "cancel"):
            return True
        mailbox = await self._unsettled(record)
        if mailbox is None:
            return True
        if (await self.session.transport.operator.entities.look(mailbox)).state == "parked":
            return True
        replaces = record.policy.overlap == "replace"
        with suppress(CommandBusError):  # one that runs was only asked to end; the next look goes on
            if replaces:
                await WaitingCommands(self.session).cancel_in(mailbox, record.last_id)
            else:
                await Cancelling(self.session, record.last_id, f"the next firing of {record.name} is due").end_in(mailbox)
        return replaces or await self._unsettled(record) is None

    async def _unsettled(self, record: ScheduleRecord) -> str | None:
        """Return the mailbox of the last firing, if that is accepted and not settled.

        One that no worker believes (a wrong signature) is removed without its mark: of an empty mailbox nothing is waited for.
        """
        if not record.last_id:
            return None
        try:
            envelope = self.templates.read(record)
        except BadTemplate:
            return None
        mailbox = await self.templates.mailbox(envelope, record.last_id)
        mark = await self.session.transport.schedules.mark(mailbox, record.last_id)
        if mark is None or is_settled(mark):
            return None
        return mailbox if (await self.session.transport.operator.entities.look(mailbox)).depth else None

    async def _is_late(self, record: ScheduleRecord, mailbox: str) -> bool:
        """Return whether the deadline has passed of a last firing that was never started."""
        ttl_ms, operator = self.templates.read(record).ttl_ms, self.session.transport.operator
        if ttl_ms is None:
            return False
        now_ms = await operator.entities.now_ms()
        message = await WaitingCommands(self.session).place_of(mailbox, record.last_id)
        if message is None or now_ms <= accepted_ms(message) + ttl_ms:
            return False
        entity = await operator.entities.look(mailbox)  # behind the time: what has not started by then never does
        return entity.oldest_id != message or not (entity.attempt or entity.first_ms)


_log = logging.getLogger("command_bus.worker")
_TRIES = 50
_DONE = frozenset("+=k")


class _Due(NamedTuple):
    """The work that a page of schedules needs.

    Attributes:
        changes: Those of records in which nothing fires.
        pins: Records whose tick is being pinned, with what they become.
        pinned: Records whose tick is pinned.
        left: To be tried again.
    """

    changes: list[RecordChange]
    pins: list[tuple[RecordChange, ScheduleRecord]]
    pinned: list[ScheduleRecord]
    left: list[str]


class ScheduleFiring(OnSession, DueSchedules):
    """Implements `DueSchedules`.

    Args:
        session: Connections and settings of the bus.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.templates = Templates(session)
        self._overlaps = Overlaps(session, self.templates)
        self._told: set[str] = set()

    @property
    def _store(self) -> ScheduleStore:
        return self._transport.schedules

    async def fire_due(self, names: Sequence[str]) -> tuple[int, Sequence[str]]:
        found, server_ms = await asyncio.gather(self._store.read(names), self._operator.entities.now_ms())
        due = _Due([], [], [], [])
        for name, raw in zip(names, found, strict=True):
            self._judge(due, name, raw, server_ms)
        pins = await self._without_overlaps(due)
        changed = await self._store.change([*due.changes, *(change for change, _ in pins)])
        won = [record for (_, record), is_ours in zip(pins, changed[len(due.changes) :], strict=True) if is_ours]
        pinned = [*due.pinned, *won]
        done = await self.complete(pinned, server_ms) if pinned else set()
        left = [*due.left, *(record.name for record in pinned if record.name not in done)]
        return sum(changed[: len(due.changes)]) + len(done), left

    def _judge(self, due: _Due, name: str, raw: bytes | None, server_ms: int) -> None:
        """Decide what is to be done about one schedule."""
        if raw is None:
            due.changes.append(RecordChange(name, b"", b"", None))
            return
        record, after = ScheduleRecord.unpack(name, raw), None
        try:
            after = None if record is None else plan(record, present(server_ms, wall_ms()))
        except MissingExtra as error:
            self._tell(name, error.message)
            record = None
        except Exception as error:  # noqa: BLE001 - one schedule stops no other
            pass_over("schedules", name, repr(error))
            record = None
        if record is None:  # a later release's, an odd one, or one that only another worker can plan
            due.left.append(name)
        elif record.pinned:
            due.pinned.append(record)
        elif after is not None and after.pinned:
            due.pins.append((RecordChange(name, raw, after.pack(), -1, missed(record, after)), after))
        elif after is not None:
            due.changes.append(RecordChange(name, raw, after.pack(), after.due, missed(record, after)))
        elif record.due is None or record.due > server_ms:  # it was looked at too early
            due.changes.append(RecordChange(name, raw, raw, record.due))
        else:
            due.left.append(name)

    async def _without_overlaps(self, due: _Due) -> list[tuple[RecordChange, ScheduleRecord]]:
        """Return the pins without those of ticks that are skipped, whose records are only moved on."""
        skips = await asyncio.gather(*(self._overlaps.skips(record) for _, record in due.pins))
        for (change, record), is_skipped in zip(due.pins, skips, strict=True):
            if is_skipped:
                after = unpin(record, drop=True)
                told = (*change.told, *skipped(record))
                due.changes.append(replace(change, after=after.pack(), due=after.due, told=told))
        return [pin for pin, is_skipped in zip(due.pins, skips, strict=True) if not is_skipped]

    async def complete(self, records: Sequence[ScheduleRecord], server_ms: int) -> set[str]:
        """Fire pinned ticks, and move their records on; return the names of those that are done with."""
        firings: dict[str, Firing] = {}
        broken: list[RecordChange] = []
        for record in records:
            try:
                if await self._overlaps.makes_room(record):
                    firings[record.name] = await self.templates.firing(record, server_ms)
            except BadTemplate as error:
                broken.append(_stopped(record, error.message, server_ms))
                _log.error("schedule %s is paused: %s", record.name, error.message)
            except ForeignTemplate as error:
                self._tell(record.name, error.message)
        done = await self._fire(firings)
        moved = [_moved_on(record, server_ms) for record in records if record.name in done]
        if moved or broken:
            await self._store.change([*moved, *broken])  # one that somebody else has moved on is left as it is
        return done | {change.name for change in broken}

    async def _fire(self, firings: dict[str, Firing]) -> set[str]:
        if not firings:
            return set()
        answers = dict(zip(firings, await self._store.fire(list(firings.values())), strict=True))
        alone = [name for name, answer in answers.items() if answer == "u"]
        if alone:
            answers |= await self._fire_unarmed([firings[name] for name in alone])
        for name, answer in answers.items():
            if answer not in _DONE:
                _log.debug("schedule %s waits: its command is refused (%s)", name, REFUSALS.get(answer, answer))
        return {name for name, answer in answers.items() if answer in _DONE}

    async def _fire_unarmed(self, firings: Sequence[Firing]) -> dict[str, FireAnswer]:
        """Fire what the shard cannot compare, if the record still says so: the first there, or the shard has lost its numbers."""
        raws = await self._store.read([firing.schedule for firing in firings])
        sure: list[Firing] = []
        for firing, raw in zip(firings, raws, strict=True):
            now = None if raw is None else ScheduleRecord.unpack(firing.schedule, raw)
            if now is not None and now.pinned and (now.incarnation, now.seq) == (firing.incarnation, firing.seq):
                sure.append(replace(firing, armed=True))
        answers: dict[str, FireAnswer] = {firing.schedule: "=" for firing in firings}  # the others: somebody has ended them
        if sure:
            answers |= dict(zip([firing.schedule for firing in sure], await self._store.fire(sure), strict=True))
        return answers

    async def found(self, name: str) -> tuple[ScheduleRecord | None, bytes]:
        """Return the schedule as it is now, perhaps with a firing under way; none with its bytes, if they are odd.

        Raises:
            NewerState: The record is of a later release.
            TransportUnavailable: The server cannot be reached.
        """
        (raw,) = await self._store.read([name])
        if raw is None:
            return None, b""
        record = ScheduleRecord.unpack(name, raw)
        if record is None and ScheduleRecord.is_later(raw):
            raise NewerState(f"the schedule {name!r} was written by a later release: change it with that")
        return record, raw

    async def settled(self, name: str) -> tuple[ScheduleRecord | None, bytes]:
        """End the firing that is under way, if there is one, and return the schedule as it is then: nothing of it fires behind this.

        Raises:
            NewerState: The record is of a later release.
            TransportUnavailable: The server cannot be reached, or others change the schedule all the time.
        """
        for _ in range(_TRIES):
            record, raw = await self.found(name)
            if record is None or not record.pinned:
                return record, raw
            now_ms = await self._operator.entities.now_ms()
            if name not in await self.complete([record], now_ms):
                await self._end(record, raw, now_ms)
        raise NewerState(f"the schedule {name!r} changes all the time: try again")

    async def _end(self, record: ScheduleRecord, raw: bytes, now_ms: int) -> None:
        """Take back a firing that is refused, so that no later try of it succeeds; or note that one has, once replicas know of it."""
        mailbox = await self.templates.mailbox(self.templates.read(record), record.pinned_id)
        barred = await self._store.bar(record.name, mailbox, record.incarnation, record.seq)
        if barred:
            await self.change(unpin(record), raw)
        elif barred is False:
            after = record.finished(now_ms)
            await self.change(after, raw, fired(record, after))

    async def arm(self, record: ScheduleRecord) -> None:
        """Give the entity's shard a number to compare firings with."""
        envelope = self.templates.read(record)
        if envelope.entity_type is not None:
            mailbox = await self.templates.mailbox(envelope, record.name)
            await self._store.bar(record.name, mailbox, record.incarnation, record.seq)

    async def change(self, after: ScheduleRecord, raw: bytes, told: Told = ()) -> bool:
        """Write a record in the place of one, which may be empty, and its events; return whether that was still there."""
        return (await self._store.change([RecordChange(after.name, raw, after.pack(), after.due, told)]))[0]

    async def look_over(self, page: Sequence[tuple[str, bytes]]) -> None:
        # The server's time alone: a worker whose clock is behind would take every schedule for one whose clock had jumped ahead.
        server_ms = await self._operator.entities.now_ms()
        due = await self._store.due_at([name for name, _ in page])
        changes: list[RecordChange] = []
        for (name, raw), at in zip(page, due, strict=True):
            record = ScheduleRecord.unpack(name, raw)
            if record is None:
                continue
            try:
                back = set_back(record, server_ms)
            except MissingExtra:
                continue
            except Exception as error:  # noqa: BLE001 - one schedule stops no other
                pass_over("schedules", name, repr(error))
                continue
            if back is not None:
                changes.append(RecordChange(name, raw, back.pack(), back.due))
                _log.warning("schedule %s is set back: clocks had jumped ahead", name)
            elif at is None and record.due is not None:
                changes.append(RecordChange(name, raw, raw, record.due))
                _log.warning("schedule %s had lost its time and got it again", name)
        if changes:
            await self._store.change(changes)

    def _tell(self, name: str, why: str) -> None:
        """Log once why this worker leaves a schedule to others."""
        if name not in self._told:
            self._told.add(name)
            _log.warning("schedule %s is left to other workers: %s", name, why)


def _moved_on(record: ScheduleRecord, now_ms: int) -> RecordChange:
    after = record.finished(now_ms)
    return RecordChange(record.name, record.pack(), after.pack(), after.due, fired(record, after))


def _stopped(record: ScheduleRecord, reason: str, now_ms: int) -> RecordChange:
    after = replace(unpin(record), paused=now_ms, reason=reason, triggers=())
    return RecordChange(record.name, record.pack(), after.pack(), None, paused(reason))
