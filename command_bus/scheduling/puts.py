"""`SchedulePuts`: what a put makes of a schedule: a new one, a changed one, or the same.

A *draft* is the record of what was declared or put, without a next tick.

`ScheduleMoves`: takes schedules along to another place, with how far they have come.

What is exported to be moved is marked as exported: from then on nothing of it fires where it was, also beside workers that live. So no tick fires
in both places. The ticks since then are due in the new place, by the rule `missed`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from command_bus.errors import InvalidCommand, InvalidSettings, TransportUnavailable
from command_bus.messages.message import Message
from command_bus.messages.outgoing import OutgoingMessage
from command_bus.messages.schedule_declarations import DeclaredSchedule
from command_bus.randomness import token
from command_bus.scheduling.firing import ScheduleFiring
from command_bus.scheduling.info import EXPORTED, IMPORTED, PUT, ImportReport
from command_bus.scheduling.planning import first_tick
from command_bus.scheduling.predecessors import ExportedSchedule, imported, line_of, read_line
from command_bus.scheduling.record import ScheduleRecord
from command_bus.scheduling.templates import BadTemplate, ForeignTemplate
from command_bus.sending.envelope_builder import sendable
from command_bus.sending.sender import Sender
from command_bus.serialization.envelope import AT_MOST_ONCE, WireEnvelope
from command_bus.serialization.equality import NotPlain, canonical
from command_bus.serialization.limits import Undecodable, reading_limits
from command_bus.serialization.models import decoded
from command_bus.serialization.msgpack import unpack
from command_bus.session import Session


@dataclass(eq=False)
class ScheduleMoves:
    """Exports and imports the schedules of a namespace, as `Schedules` does.

    Attributes:
        session: Connections and settings of the bus.
        firing: Changes records.
    """

    session: Session
    firing: ScheduleFiring

    async def export(self, name: str, *, stop: bool) -> str | None:
        """Return the line of a schedule; None: it is gone. See `Schedules.export`."""
        record = await self._exported(name, stop=stop)
        return None if record is None else line_of(record, self.session.settings.namespace)

    async def _exported(self, name: str, *, stop: bool) -> ScheduleRecord | None:
        """Return a schedule in which no firing is under way, marked as exported if it is to stop; None: it is gone."""
        for _ in range(_TRIES):
            record, raw = await self.firing.settled(name)
            if record is None or record.exported or not stop:
                return record
            now_ms = await self.session.transport.operator.entities.now_ms()
            if await self.firing.change(replace(record, exported=now_ms), raw, EXPORTED):
                return record
        raise contended(name)

    async def import_(self, lines: Iterable[str], *, replacing: bool) -> ImportReport:
        found = [read_line(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        records = [self._ours(each) for each in found]
        put: list[str] = []
        kept: list[str] = []
        for record in records:
            (put if await self._import(record, replacing=replacing) else kept).append(record.name)
        return ImportReport(tuple(put), tuple(kept))

    def _ours(self, exported: ExportedSchedule) -> ScheduleRecord:
        """Return an exported schedule with a command that is signed and encrypted for this namespace.

        Raises:
            InvalidSettings: Its command cannot be read here, or is not signed as it ought to be.
        """
        record = exported.record
        try:
            return replace(record, template=self.firing.templates.moved(record, exported.namespace))
        except (BadTemplate, ForeignTemplate) as error:
            raise InvalidSettings(f"schedule {record.name!r}: {error.message}") from None

    async def _import(self, line: ScheduleRecord, *, replacing: bool) -> bool:
        """Put an exported schedule; return whether something has changed."""
        for _ in range(_TRIES):
            record, raw = await self.firing.settled(line.name)
            after = imported(record, line, replacing=replacing)
            if after is None:
                return False
            if await self.firing.change(after, raw, IMPORTED):
                await self.firing.arm(after)
                return True
        raise contended(line.name)


def contended(name: str) -> TransportUnavailable:
    """Return the error of a schedule that others change all the time."""
    return TransportUnavailable(f"the schedule {name!r} changes all the time: try again", outcome_unknown=False)


_log = logging.getLogger("command_bus.worker")
_TRIES = 100

Kind = type[Message[Any]] | None


@dataclass(eq=False)
class SchedulePuts:
    """Puts schedules.

    Attributes:
        session: Connections and settings of the bus.
        sender: Makes the templates of commands.
        firing: Changes records.
    """

    session: Session
    sender: Sender
    firing: ScheduleFiring

    async def draft(self, declared: DeclaredSchedule, out: OutgoingMessage) -> ScheduleRecord:
        """Return the draft of a schedule that dispatches a message."""
        return _draft(declared, await self.sender.template(out), out.tenant)

    async def draft_of(self, declared: DeclaredSchedule) -> ScheduleRecord:
        """Return the draft of what code declares.

        Raises:
            InvalidSettings: It has no command.
        """
        if declared.command is None:
            raise InvalidSettings(f"the schedule {declared.name!r} has no command")
        return await self.draft(declared, sendable(self.sender.builder, declared.command, {"command_id": declared.name}))

    async def put(self, draft: ScheduleRecord, kind: Kind) -> tuple[ScheduleRecord, bool]:
        """Put a schedule; return it, and whether something has changed.

        Args:
            draft: The schedule.
            kind: The class of its command, by which that is compared with what is stored; None if it is not known.

        Raises:
            InvalidSettings: It has no tick to come.
            TransportUnavailable: The server cannot be reached, or others change the schedule all the time.
        """
        for _ in range(_TRIES):
            now_ms = await self.session.transport.operator.entities.now_ms()
            record, raw = await self.firing.found(draft.name)
            if record is not None and self._updated(record, draft, kind, now_ms) is None:
                return record, False  # whatever fires meanwhile: each worker that starts puts what it declares
            record, raw = await self.firing.settled(draft.name)
            after = _created(draft, now_ms) if record is None else self._updated(record, draft, kind, now_ms)
            if after is None and record is not None:
                return record, False
            if after is not None and (await self.firing.change(after, raw, PUT)):
                await self.firing.arm(after)
                return after, True
        raise contended(draft.name)

    def _updated(self, record: ScheduleRecord, draft: ScheduleRecord, kind: Kind, now_ms: int) -> ScheduleRecord | None:
        """Return what a schedule becomes by a put; None: it stays as it is."""
        same = self.same(record, draft, kind)
        if draft.revision:
            if draft.revision <= record.revision:
                if not same and draft.revision == record.revision and not record.by_hand:
                    _log.warning(
                        "schedule %s: this code declares something else than what is stored, both as revision %d: raise it",
                        record.name,
                        draft.revision,
                    )
                return None
        elif same:
            return None
        moved = self._entity(record) != self._entity(draft)
        after = replace(
            record,
            template=record.template if self._same_command(record, draft, kind) else draft.template,
            spec=draft.spec,
            policy=draft.policy,
            revision=draft.revision or record.revision,
            by_hand=not draft.revision,
            tenant=draft.tenant,
            last_id="" if moved else record.last_id,
        )
        if record.spec == draft.spec and _span(record) == _span(draft):
            return after
        origin = draft.policy.start_ms or record.last or record.origin
        after = replace(after, origin=origin, catching_up=False)
        return replace(after, next=first_tick(after, now_ms))

    def same(self, record: ScheduleRecord, draft: ScheduleRecord, kind: Kind) -> bool:
        """Return whether a schedule has the rules and the command of a draft."""
        rules = (record.spec, record.policy, record.tenant) == (draft.spec, draft.policy, draft.tenant)
        return rules and self._same_command(record, draft, kind)

    def _same_command(self, record: ScheduleRecord, draft: ScheduleRecord, kind: Kind) -> bool:
        """Return whether two schedules dispatch the same; what cannot be read here is not the same."""
        try:
            stored, given = self.firing.templates.clear(record), self.firing.templates.clear(draft)
        except (BadTemplate, ForeignTemplate):
            return False
        return _essence(stored) == _essence(given) and (
            stored.payload == given.payload or self._fields(stored, kind) == self._fields(given, kind)
        )

    def _fields(self, envelope: WireEnvelope, kind: Kind) -> bytes:
        """Return the fields of a command as they are compared (see `equality`)."""
        limits = reading_limits(self.session.settings)
        with suppress(InvalidCommand, Undecodable, NotPlain):
            if kind is None:
                return canonical(unpack(envelope.payload, limits))
            return canonical(decoded(kind, envelope.payload, envelope.options, limits))
        return envelope.payload

    def _entity(self, record: ScheduleRecord) -> tuple[str | None, str | None]:
        envelope = self.firing.templates.readable(record)
        return (None, None) if envelope is None else (envelope.entity_type, envelope.entity_id)


def _draft(declared: DeclaredSchedule, template: bytes, tenant: str) -> ScheduleRecord:
    return ScheduleRecord(
        name=declared.name,
        template=template,
        spec=declared.spec,
        policy=declared.policy,
        revision=declared.revision,
        by_hand=not declared.revision,
        incarnation=token(8).hex(),
        seq=0,
        origin=0,
        next=None,
        tenant=tenant,
    )


def _created(draft: ScheduleRecord, now_ms: int) -> ScheduleRecord:
    """Return a new schedule.

    Raises:
        InvalidSettings: It has no tick.
    """
    start, end = draft.policy.start_ms, draft.policy.end_ms
    record = replace(draft, origin=start if start is not None else now_ms)
    at = max(now_ms, start or 0)
    first = at if draft.policy.immediately and (end is None or at <= end) else first_tick(record, now_ms)
    if first is None:
        raise InvalidSettings(
            f"schedule {draft.name!r}: {draft.spec} has no tick to come before its end: check `start` and `end`"
        )
    return replace(record, next=first)


def _span(record: ScheduleRecord) -> tuple[Any, ...]:
    return record.policy.start_ms, record.policy.end_ms, record.policy.max_runs


def _essence(envelope: WireEnvelope) -> tuple[Any, ...]:
    """Return what a command is besides its fields."""
    at_most_once = envelope.flags & AT_MOST_ONCE
    names = (envelope.name, envelope.entity_type, envelope.entity_id)
    return *names, envelope.ttl_ms, envelope.headers or {}, at_most_once, envelope.options or {}
