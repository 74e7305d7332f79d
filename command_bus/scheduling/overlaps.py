"""`Overlaps`: what happens to a firing's predecessor that is not settled."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from command_bus.clock import mono
from command_bus.errors import CommandBusError
from command_bus.scheduling.record import ScheduleRecord
from command_bus.scheduling.templates import BadTemplate, Templates
from command_bus.sending.waiting import WaitingCommands
from command_bus.serialization.envelope import unpack_envelope
from command_bus.serialization.limits import Undecodable, reading_limits
from command_bus.session import Session
from command_bus.transport.interrupts import Interrupt
from command_bus.transport.marks import accepted_ms, is_settled
from command_bus.transport.tasks import end_tasks

__all__ = ["Overlaps"]

_log = logging.getLogger("command_bus.worker")
_LOOK_EVERY = 0.02
_PATIENCE = 30.0
"""Seconds for which the end of an attempt is waited for at a stretch; afterwards it is asked for again."""


class Overlaps:
    """Looks at predecessors, and makes room.

    Args:
        session: Of the bus.
        templates: Name the mailboxes.
    """

    def __init__(self, session: Session, templates: Templates) -> None:
        self._session = session
        self._templates = templates
        self._limits = reading_limits(session.settings)
        self._ending: dict[str, asyncio.Task[None]] = {}

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
        if (await self._session.transport.operator.entities.look(mailbox)).state == "parked":
            return True
        if await self._is_running(mailbox, record.last_id):
            if record.policy.overlap == "replace":
                return True
            self._end_attempt(record, mailbox)
            return False
        await WaitingCommands(self._session).cancel_in(mailbox, record.last_id)
        return True

    async def _unsettled(self, record: ScheduleRecord) -> str | None:
        """Return the mailbox of the last firing, if that is accepted and not settled.

        One that no worker believes (a wrong signature) is removed without its mark: of an empty mailbox nothing is waited for.
        """
        if not record.last_id:
            return None
        try:
            envelope = self._templates.read(record)
        except BadTemplate:
            return None
        mailbox = await self._templates.mailbox(envelope, record.last_id)
        mark = await self._session.transport.schedules.mark(mailbox, record.last_id)
        if mark is None or is_settled(mark):
            return None
        return mailbox if (await self._session.transport.operator.entities.look(mailbox)).depth else None

    async def _is_late(self, record: ScheduleRecord, mailbox: str) -> bool:
        """Return whether the deadline has passed of a last firing that was never started."""
        ttl_ms, operator = self._templates.read(record).ttl_ms, self._session.transport.operator
        if ttl_ms is None:
            return False
        now_ms = await operator.entities.now_ms()
        message = await WaitingCommands(self._session).place_of(mailbox, record.last_id)
        if message is None or now_ms <= accepted_ms(message) + ttl_ms:
            return False
        entity = await operator.entities.look(mailbox)  # behind the time: what has not started by then never does
        return entity.oldest_id != message or not (entity.attempt or entity.first_ms)

    async def _is_running(self, mailbox: str, command_id: str) -> str | None:
        """Return the attempt of a command that runs in a mailbox, or None."""
        attempt = await self._session.transport.operator.interrupts.running(mailbox)
        if attempt is None:
            return None
        try:
            runs = unpack_envelope(attempt.envelope, self._limits).command_id == command_id
        except Undecodable:
            return None
        return attempt.id if runs else None

    def _end_attempt(self, record: ScheduleRecord, mailbox: str) -> None:
        """Ask for the end of the running attempt in the background; once it has ended its command is taken out, also out of a retry."""
        task = self._ending.get(record.name)
        if task is None or task.done():
            work = self._ended(record, mailbox)
            self._ending[record.name] = asyncio.get_running_loop().create_task(work, name=f"command_bus.overlap {record.name}")

    async def _ended(self, record: ScheduleRecord, mailbox: str) -> None:
        """End the attempt while its entity is paused for a moment: else it would be started again at once."""
        operator, by = self._session.transport.operator, f"schedule {record.name}"
        with suppress(CommandBusError):
            until_ms = await operator.entities.now_ms() + int(_PATIENCE * 1000)
            borrowed = await operator.holds.borrow(mailbox, f"{by} ends its last firing", until_ms)
            try:
                await self._abort(record.last_id, mailbox, by)
            finally:
                if borrowed:
                    await operator.holds.give_back(mailbox, until_ms)
        self._ending.pop(record.name, None)

    async def _abort(self, command_id: str, mailbox: str, by: str) -> None:
        """End the attempt, and take the command out of line."""
        operator, asked, deadline = self._session.transport.operator, "", mono() + _PATIENCE
        while mono() < deadline:
            attempt = await self._is_running(mailbox, command_id)
            if attempt is None:
                await WaitingCommands(self._session).cancel_in(mailbox, command_id)
                return
            if attempt != asked:
                now_ms = await operator.entities.now_ms()
                await operator.interrupts.request(mailbox, Interrupt("abort", attempt, now_ms, by, "its next firing is due"))
                asked = attempt
            await asyncio.sleep(_LOOK_EVERY)

    async def close(self) -> None:
        """End what goes on in the background."""
        tasks, self._ending = list(self._ending.values()), {}
        await end_tasks(tasks)
