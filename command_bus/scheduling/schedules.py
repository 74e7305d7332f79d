"""`Schedules`: put, list, pause, trigger and remove schedules. Reached as `bus.schedules`.

A schedule is a record on the server, in the shard of its name, and any worker fires it (`firing.py`): there is no process of its own. What
code declares (`registry.schedule`) is put when a worker starts, with a revision: a lower one never replaces a higher, so an old worker that
restarts in a rolling deploy takes nothing back.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Unpack

from command_bus.clock import time_of
from command_bus.errors import InvalidSettings, UnknownSchedule
from command_bus.handlers.registry import HandlerRegistry
from command_bus.messages.message import Message
from command_bus.messages.outgoing import OutgoingMessage, RawEnvelope
from command_bus.messages.schedule_declarations import DeclaredSchedule, PutOptions, checked_name, split_options
from command_bus.messages.schedule_specs import Cron, Every
from command_bus.scheduling.firing import ScheduleFiring
from command_bus.scheduling.info import REMOVED, ImportReport, ScheduleInfo, SyncReport, altered, info_of
from command_bus.scheduling.puts import ScheduleMoves, SchedulePuts, contended
from command_bus.scheduling.record import ScheduleRecord, firing_id
from command_bus.sending.envelope_builder import sendable
from command_bus.sending.sender import Sender
from command_bus.serialization.limits import Undecodable
from command_bus.serialization.reply import unpack_reply
from command_bus.session import OnSession, Session
from command_bus.transport.marks import is_settled, reply_in
from command_bus.transport.ports.schedules import RecordChange

_log = logging.getLogger("command_bus.worker")
_TRIES = 100
_MOST_TRIGGERS = 100

Change = Callable[[ScheduleRecord, int], ScheduleRecord | None]
"""Gives the record that a schedule is to have at a time; None: as it is."""


class Schedules(OnSession):
    """The schedules of a namespace.

    Args:
        session: Connections and settings of the bus.
        sender: Passes a schedule's command through the middleware once, when it is put.
    """

    def __init__(self, session: Session, sender: Sender) -> None:
        super().__init__(session)
        self._sender = sender
        self.firing = ScheduleFiring(session)
        self._puts = SchedulePuts(session, sender, self.firing)
        self._moves = ScheduleMoves(session, self.firing)

    async def put(
        self,
        name: str,
        command: Message[Any],
        spec: Cron | Every,
        **options: Unpack[PutOptions],
    ) -> ScheduleInfo:
        """Put a schedule, or change the one of this name; putting the same again changes nothing, its next time least of all.

        What has changed holds from the next tick on. Whether it is paused stays as it is.

        Args:
            name: Unique in the namespace.
            command: What each tick dispatches, under the command id `name@time`.
            spec: `cron(…)` or `every(seconds)`.
            **options: See `SchedulePolicy`; `headers`, text that travels with each command; `expires`, seconds behind its acceptance after which
                a command is not started any more.

        Raises:
            InvalidSettings: A name, time or option is not what it may be, or no tick is to come.
            InvalidCommand: The command cannot be sent.
            TransportUnavailable: The server cannot be reached. Asking again is safe.
        """
        policy, sending = split_options(options)
        declared = DeclaredSchedule(name, command, spec, policy, 0)
        return await self._put_by_hand(declared, sendable(self._sender.builder, command, {"command_id": name, **sending}))

    async def put_raw(
        self,
        name: str,
        entity_type: str | None,
        entity_id: str | int | None,
        command: str,
        payload: Mapping[str, Any],
        spec: Cron | Every,
        *,
        version: int = 1,
        **options: Unpack[PutOptions],
    ) -> ScheduleInfo:
        """Put a schedule without the command's class, as `dispatch_raw` dispatches. `None, None` names no entity."""
        policy, sending = split_options(options)
        declared = DeclaredSchedule(name, None, spec, policy, 0)
        builder = self._sender.builder
        return await self._put_by_hand(
            declared, builder.raw(RawEnvelope(entity_type, entity_id, command, payload, version, {"command_id": name, **sending}))
        )

    async def _put_by_hand(self, declared: DeclaredSchedule, out: OutgoingMessage) -> ScheduleInfo:
        record, _ = await self._puts.put(await self._puts.draft(declared, out), declared.kind)
        return self._info(record)

    async def get(self, name: str) -> ScheduleInfo:
        """Return a schedule.

        Raises:
            UnknownSchedule: There is none of this name.
            TransportUnavailable: The server cannot be reached.
        """
        record = await self._read(name)
        return self._info(record, await self._last_outcome(record))

    async def next(self, name: str, count: int = 5) -> tuple[datetime, ...]:
        """Return the next ticks of a schedule, in UTC; fewer if it ends.

        Raises:
            UnknownSchedule: There is none of this name.
        """
        record = await self._read(name)
        ticks: list[int] = []
        tick = record.pinned or record.next
        most = count if record.policy.max_runs is None else min(count, record.policy.max_runs - record.runs + bool(record.pinned))
        while tick is not None and len(ticks) < most:
            ticks.append(tick)
            tick = record.after(tick)
        return tuple([time_of(each) for each in ticks])

    async def pause(self, name: str, reason: str = "") -> bool:
        """Fire no tick until `resume`; those of that time are left out. False if it was paused.

        A firing that is under way is ended first: nothing fires behind this. What was dispatched is not touched.

        Raises:
            UnknownSchedule: There is none of this name.
            TransportUnavailable: The server cannot be reached. Asking again is safe.
        """
        before, _ = await self._alter(name, lambda record, now: replace(record, paused=record.paused or now, reason=reason))
        return not before.paused

    async def resume(self, name: str) -> bool:
        """Fire again, from the next tick on, also what was exported. False if it was neither paused nor exported.

        Raises:
            UnknownSchedule, TransportUnavailable: As for `pause`.
        """

        def resumed(record: ScheduleRecord, now_ms: int) -> ScheduleRecord | None:
            if not record.paused and not record.exported:
                return None
            following = record.next if record.next is None or record.next > now_ms else record.after(now_ms)
            return replace(record, paused=0, reason="", next=following, catching_up=False, exported=0)

        before, _ = await self._alter(name, resumed)
        return bool(before.paused or before.exported)

    async def trigger(self, name: str) -> str:
        """Fire once now, beside the ticks, also if it is paused; a worker does it. Return the command id.

        Raises:
            UnknownSchedule, TransportUnavailable: As for `pause`.
            InvalidSettings: A hundred firings by hand wait already, or it was exported.
        """

        def triggered(record: ScheduleRecord, now_ms: int) -> ScheduleRecord:
            if record.exported:
                raise InvalidSettings(f"{name!r} was exported: trigger it where it was imported, or resume it here")
            if len(record.triggers) >= _MOST_TRIGGERS:
                raise InvalidSettings(f"{name!r} has {_MOST_TRIGGERS} firings by hand that wait: is there a worker?")
            at = max(now_ms, record.last_at + 1, *(each + 1 for each in record.triggers[-1:]))
            return replace(record, triggers=(*record.triggers, at))

        _, after = await self._alter(name, triggered)
        return firing_id(name, after.triggers[-1], manual=True)

    async def remove(self, name: str) -> None:
        """Remove a schedule. What it has dispatched stays.

        Raises:
            UnknownSchedule, TransportUnavailable: As for `pause`.
        """
        for _ in range(_TRIES):
            record, raw = await self.firing.settled(checked_name(name))
            if record is None and not raw:
                raise _unknown(name)
            if (await self._transport.schedules.change([RecordChange(name, raw, b"", None, REMOVED)]))[0]:
                await self._transport.schedules.forget(name)
                return
        raise contended(name)

    async def sync(self, registry: HandlerRegistry, *, prune: bool = False) -> SyncReport:
        """Put what a registry declares; a worker does it when it starts.

        Args:
            registry: With `registry.schedule(…)`.
            prune: Whether declared schedules go that this registry does not declare (any more). Those put by hand stay.

        Raises:
            InvalidSettings, InvalidCommand, TransportUnavailable: As for `put`.
        """
        declared = {each.name: each for each in registry.schedules()}
        put = tuple([name for name, each in declared.items() if await self._declare(each)])
        removed: list[str] = []
        if prune:
            gone = [info.name async for info in self.list() if info.revision and info.name not in declared]
            for name in gone:
                await self.remove(name)
                removed.append(name)
        return SyncReport(put, tuple(removed))

    async def list(self, *, entity_type: str | None = None) -> AsyncIterator[ScheduleInfo]:
        """Yield the schedules, in no order; those whose commands are of an entity type, if one is given.

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        async for name, raw in self._stored():
            record = ScheduleRecord.unpack(name, raw)
            if record is not None:
                info = self._info(record)
                if entity_type in (None, info.entity_type):
                    yield info

    async def _stored(self) -> AsyncIterator[tuple[str, bytes]]:
        """Yield the names with their records, each once."""
        transport, seen = self._transport, set[str]()
        for shard in range(transport.shards):
            async for page in transport.schedules.pages(shard):
                for name, raw in page:
                    if name not in seen:
                        seen.add(name)
                        yield name, raw

    async def export(self, *, stop: bool = False) -> AsyncIterator[str]:
        """Yield each schedule as a line of JSON, for `import_`: its times and rules, its command, and how far it has come.

        A firing that is under way is ended first.

        Args:
            stop: Whether it fires nothing here any more, because it is being moved. A repeated export gives the same lines. `import_` of its line, or
                `resume`, takes that back.

        Raises:
            NewerState: A schedule was written by a later release: nothing behind it is exported.
            TransportUnavailable: The server cannot be reached. Asking again is safe.
        """
        async for name, _ in self._stored():
            line = await self._moves.export(name, stop=stop)
            if line is not None:
                yield line

    async def import_(self, lines: Iterable[str], *, replace: bool = False) -> ImportReport:
        """Put schedules that were exported, and go on where they were: no tick is lost, none fires twice.

        Ticks of the time in between are due, by the rule `missed`. Repeated, it changes nothing. All lines are checked before the first is put.

        Args:
            lines: As `export` gives them.
            replace: Whether other schedules of the same names are replaced. What those have fired is not fired again. Else they stay, and the
                report names them.

        Raises:
            InvalidSettings: A line is no exported schedule, or its command cannot be verified. Nothing was put.
            TransportUnavailable: The server cannot be reached. Asking again is safe.
        """
        return await self._moves.import_(lines, replacing=replace)

    async def compare(self, registry: HandlerRegistry) -> dict[str, str]:
        """Return what is wrong with schedules that a registry declares, by name: one is not stored as it is declared.

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        found: dict[str, str] = {}
        for declared in registry.schedules():
            (raw,) = await self._transport.schedules.read([declared.name])
            record = None if raw is None else ScheduleRecord.unpack(declared.name, raw)
            if record is None:
                found[declared.name] = "is declared and not stored: no worker with this code has started"
            elif record.revision < declared.revision:
                found[declared.name] = f"is stored as revision {record.revision}, this code declares {declared.revision}"
            elif (
                record.revision == declared.revision
                and not record.by_hand
                and not self._puts.same(record, await self._puts.draft_of(declared), declared.kind)
            ):
                found[declared.name] = f"differs from what is stored, both are revision {record.revision}: raise it in the code"
        return found

    async def _declare(self, declared: DeclaredSchedule) -> bool:
        """Put what code declares; return whether something has changed."""
        _, changed = await self._puts.put(await self._puts.draft_of(declared), declared.kind)
        return changed

    async def _alter(self, name: str, change: Change) -> tuple[ScheduleRecord, ScheduleRecord]:
        """Change a schedule in which no firing is under way; return it as it was and as it is."""
        for _ in range(_TRIES):
            record, raw = await self.firing.settled(checked_name(name))
            if record is None:
                raise _unknown(name)
            after = change(record, await self._operator.entities.now_ms())
            if after is None or await self.firing.change(after, raw, altered(record, after)):
                return record, after or record
        raise contended(name)

    async def _read(self, name: str) -> ScheduleRecord:
        (raw,) = await self._transport.schedules.read([checked_name(name)])
        record = None if raw is None else ScheduleRecord.unpack(name, raw)
        if record is None:
            raise _unknown(name)
        return record

    def _info(self, record: ScheduleRecord, last_outcome: str | None = None) -> ScheduleInfo:
        return info_of(record, self.firing.templates.readable(record), last_outcome)

    async def _last_outcome(self, record: ScheduleRecord) -> str | None:
        envelope = self.firing.templates.readable(record)
        if envelope is None or not record.last_id:
            return None
        mailbox = await self.firing.templates.mailbox(envelope, record.last_id)
        mark = await self._transport.schedules.mark(mailbox, record.last_id)
        if mark is not None and not is_settled(mark):
            return "waiting"
        reply = reply_in(mark)
        try:
            return None if reply is None else type(unpack_reply(reply)[1]).__name__.lower()
        except Undecodable:
            return None


def _unknown(name: str) -> UnknownSchedule:
    return UnknownSchedule(f"there is no schedule {name!r}: `command-bus schedules list` names all", name=name)
