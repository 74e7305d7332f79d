"""`Overlaps`: what happens to a firing's predecessor that is not settled."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from command_bus.admin.ending import Cancelling
from command_bus.errors import CommandBusError
from command_bus.scheduling.record import ScheduleRecord
from command_bus.scheduling.templates import BadTemplate, Templates
from command_bus.sending.waiting import WaitingCommands
from command_bus.session import Session
from command_bus.transport.marks import accepted_ms, is_settled


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
