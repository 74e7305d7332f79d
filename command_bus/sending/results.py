"""Waiting for outcomes: the reply of a call, the stored result of a command."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from command_bus.clock import mono
from command_bus.errors import BadResult, CommandTimeout, TransportUnavailable, UniqueKeyTaken, UnknownCommand
from command_bus.messages.context import while_lent
from command_bus.sending.admission import receipt
from command_bus.sending.command_location import OverdueCalls
from command_bus.serialization.limits import PayloadLimits, Undecodable
from command_bus.serialization.models import reply_codec_for
from command_bus.serialization.reply import Completed, raise_or_value, unpack_reply
from command_bus.session import OnSession, Session
from command_bus.transport.marks import mailbox_in, reply_in
from command_bus.transport.submissions import Admission

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from command_bus.messages.outgoing import OutgoingMessage
    from command_bus.middleware import Sending
    from command_bus.transport.ports.sender import Reply


_POLL_FIRST, _POLL_LAST = 0.01, 0.5


def reply_value(
    session: Session, limits: PayloadLimits, record: bytes, reply_type: Any, command_id: str, of: Sequence[str | None] = ()
) -> Any:
    """Return the result in a reply record, decrypted if it is encrypted, and that of a command of this name and entity.

    Raises:
        CommandBusError: The outcome in the record.
    """
    try:
        _, outcome = unpack_reply(record, limits)
    except Undecodable as error:
        raise BadResult(f"the reply cannot be read: {error}", command_id=command_id) from error
    if session.protection is not None and isinstance(outcome, Completed):
        outcome = session.protection.result(command_id, outcome, of)
    return raise_or_value(outcome, reply_codec_for(reply_type), command_id, limits)


class ResultReader(OnSession):
    """Reads outcomes, as `CommandBus` does.

    Args:
        session: Connections and settings of the bus.
        overdue: Says where a command is whose caller waited too long.
    """

    def __init__(self, session: Session, overdue: OverdueCalls) -> None:
        super().__init__(session)
        self._overdue = overdue

    def value_of(self, record: bytes, reply_type: Any, command_id: str, of: Sequence[str | None] = ()) -> Any:
        """Return the result in a reply record; `of` is name, or name and entity of its command, as far as they are known.

        Raises:
            CommandBusError: The outcome in the record.
        """
        return reply_value(self._session, self._limits, record, reply_type, command_id, of)

    async def exchange(
        self, send: Sending, mailbox_for: Callable[[OutgoingMessage], str], reply_type: Any, deadline: float, out: OutgoingMessage
    ) -> Any:
        """Send a command and wait for its reply: the innermost of the middleware around a call.

        Args:
            send: Sends it, as a dispatch is sent. If it returns a future, its caller is woken once for acceptance and reply together.
            mailbox_for: Gives its mailbox.
            reply_type: Type of its result.
            deadline: Monotonic time until which its caller waits.
            out: The command.
        """
        out.deadline = deadline
        reply = self._transport.replies.expect(out.command_id)
        waiting = self._overdue.begin(out.name)
        accepted: asyncio.Future[Admission] | None = None
        record = None
        try:
            sent = send(out)
            if isinstance(sent, asyncio.Future):
                accepted = sent
                accepted.add_done_callback(partial(_end_unless_accepted, reply))
                record = await while_lent(reply.within(deadline))
            if record is None:
                admission = await sent
                receipt(out.command_id, admission)
                if admission is Admission.FOLDED:
                    raise _taken(out)
                duplicate = admission is Admission.DUPLICATE
                record = await while_lent(self.polled(out.command_id, deadline) if duplicate else reply.within(deadline))
        finally:
            if accepted is not None and not accepted.done():
                accepted.cancel()
            reply.forget()
            self._overdue.end(waiting)
        if record is None:
            waited = (out.ttl_ms or 0) / 1000
            seen = await self._overdue.whereabouts(mailbox_for(out), out.command_id, out.name, waited)
            raise seen.timeout(
                f"{out.name} {out.command_id}: no reply within {waited:g} s; its outcome is unknown, ask bus.result({out.command_id!r}) later",
                out.command_id,
            )
        return self.value_of(record, reply_type, out.command_id, (out.name, out.entity_type, out.entity_id))

    async def polled(self, command_id: str, deadline: float) -> bytes | None:
        """Poll the mark of a command that another process sent, with growing pauses; return its reply, or None if it is not there in time."""
        pause = _POLL_FIRST
        while True:
            left = deadline - mono()
            try:
                for mark in await self._transport.locations.marks(command_id):
                    if (record := reply_in(mark)) is not None:
                        return record
            except TransportUnavailable:
                if left <= 0:
                    raise
            if left <= 0:
                return None
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.5, _POLL_LAST)

    async def result(self, command_id: str, reply_type: Any, timeout: float, of: Sequence[str | None] = ()) -> Any:
        marks = await self._transport.locations.marks(command_id)
        record = next((reply for mark in marks if (reply := reply_in(mark)) is not None), None)
        if record is None and marks and timeout > 0:
            record = await self.polled(command_id, mono() + timeout)
            marks = await self._transport.locations.marks(command_id)
        if record is not None:
            return self.value_of(record, reply_type, command_id, of)
        if mailbox := next(filter(None, map(mailbox_in, marks)), None):
            message = f"command {command_id} is accepted and not settled yet"
            if timeout <= 0:  # callers poll like this, without waiting
                raise CommandTimeout(message, command_id=command_id)
            seen = await self._overdue.whereabouts(mailbox, command_id, "", timeout)
            raise seen.timeout(message, command_id)
        raise UnknownCommand(
            f"no result of command {command_id!r} is kept: it is unknown, was dispatched without an id of yours, or its time is over"
        )


def _taken(out: OutgoingMessage) -> UniqueKeyTaken:
    return UniqueKeyTaken(
        f"{out.name} {out.command_id} was dropped: {out.other} holds its unique key, and its reply goes to another caller. Dispatch "
        "instead of calling, or call again when that one is settled",
        other=out.other or "",
    )


def _end_unless_accepted(reply: Reply, accepted: asyncio.Future[Admission]) -> None:
    """End the wait for a reply that will not come to this process: the command was refused, is a duplicate, or met an error."""
    if (
        accepted.cancelled()
        or accepted.exception() is not None
        or accepted.result() not in (Admission.ACCEPTED, Admission.REPLACED)
    ):
        reply.end()
