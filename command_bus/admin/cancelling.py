"""`Cancelling`: ends a command wherever it is: in line, running, or suspended."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from command_bus.clock import mono
from command_bus.durable.endings import unpack_ending
from command_bus.durable.names import ENDING
from command_bus.errors import CommandTimeout
from command_bus.sending.waiting import WaitingCommands
from command_bus.serialization.durable_options import is_durable
from command_bus.serialization.envelope_reading import unpack_envelope
from command_bus.serialization.limits import Undecodable, reading_limits
from command_bus.serialization.reply import Cancelled, unpack_reply
from command_bus.session import Session
from command_bus.transport.admin_interfaces import Interrupts
from command_bus.transport.interrupts import Attempt, Interrupt
from command_bus.transport.marks import is_settled, reply_in

_LOOK_EVERY = 0.1
_DONE = ("cancelled", "told")
"""The answers of a worker that has cancelled its handler."""
_NOT_ASKED = "not asked"
"""No request stands there that ends the attempt as cancelled, or gives it up."""


class _Running(NamedTuple):
    """The attempt of a command that runs."""

    attempt: Attempt
    is_durable: bool


class Cancelling:
    """Cancels one command.

    Args:
        session: Open.
        command_id: Of the command.
        reason: For its caller.
    """

    def __init__(self, session: Session, command_id: str, reason: str) -> None:
        self._session = session
        self._id = command_id
        self._reason = reason
        self._waiting = WaitingCommands(session)
        self._limits = reading_limits(session.settings)

    @property
    def _interrupts(self) -> Interrupts:
        return self._session.transport.operator.interrupts

    async def take_out(self) -> bool:
        """Take the command out of line; False if it is not there, or is durable and has begun."""
        return await self._waiting.cancel(self._id)

    async def end(self, wait: float) -> bool:
        """End the command although it runs. See `Commands.cancel`.

        Raises:
            CommandTimeout: Its worker has not answered in time.
        """
        mailboxes, deadline = await self._waiting.find(self._id), mono() + wait
        return any([await self.end_in(each, deadline) for each in mailboxes])

    async def end_in(self, mailbox: str, deadline: float = 0.0) -> bool:
        """End the command in its mailbox; by default it is asked for, and not waited for. What was asked for is not asked for again.

        Raises:
            CommandTimeout: As for `end`.
        """
        asked: Attempt | None = None
        while True:
            running = await self._running(mailbox)
            if running is not None:
                asked = running.attempt
            answer = "" if asked is None else await self._answer(mailbox, asked)
            if await self._has_begun(mailbox) or (running is not None and running.is_durable):
                return await self._tell(mailbox, running if answer == _NOT_ASKED else None)
            if running is None:
                if await self._waiting.cancel_in(mailbox, self._id):
                    return True
                if not await self._is_there(mailbox):
                    return await self._was_cancelled(answer)
            elif answer == _NOT_ASKED:
                answer = ""
                await self._request(mailbox, running.attempt)
            if mono() >= deadline:
                return self._in_time(answer)
            await asyncio.sleep(_LOOK_EVERY)

    def _in_time(self, answer: str) -> bool:
        """Return whether the worker has told the handler, which goes on for now.

        Raises:
            CommandTimeout: It has not.
        """
        if answer in _DONE:
            return True
        raise CommandTimeout(
            "no answer in time from the worker of this command: it may still be cancelled. The worker is blocked, cut off or of an earlier "
            "release, or no worker starts the command; ask again",
            command_id=self._id,
        )

    async def _tell(self, mailbox: str, running: _Running | None) -> bool:
        """Bring a durable command the wish that it ends; the worker of an attempt that runs sees it within a second.

        If its end is decided, that stays, and what it waits for ends.

        Raises:
            BadStep: Its end was written by another release.
        """
        told = await self._session.transport.wishes.cancel(mailbox, self._id, (self._reason or "it was cancelled").encode())
        if told != "gone" and running is not None:
            await self._request(mailbox, running.attempt)
        return await self._ends_cancelled(mailbox) if told == "ending" else told != "gone"

    async def _ends_cancelled(self, mailbox: str) -> bool:
        """Return whether a durable command whose end is decided ends as cancelled."""
        (ending,) = await self._session.transport.operator.suspensions.fields(mailbox, self._id, [ENDING])
        return await self._was_cancelled("") if ending is None else unpack_ending(ending).status == "cancelled"

    async def _request(self, mailbox: str, attempt: Attempt) -> None:
        await self._interrupts.request(mailbox, Interrupt("cancel", attempt.id, attempt.now_ms, "", self._reason))

    async def _answer(self, mailbox: str, attempt: Attempt) -> str:
        """Return what the worker says; `_NOT_ASKED` if that is to be asked for."""
        said = await self._interrupts.answer(mailbox)
        return _NOT_ASKED if said is None or said.attempt_id != attempt.id or said.kind == "abort" else said.answer

    async def _running(self, mailbox: str) -> _Running | None:
        """Return the attempt of this command that runs in a mailbox, or None."""
        attempt = await self._interrupts.running(mailbox)
        if attempt is None:
            return None
        try:
            envelope = unpack_envelope(attempt.envelope, self._limits)
        except Undecodable:
            return None
        return _Running(attempt, is_durable(envelope.options)) if envelope.command_id == self._id else None

    async def _has_begun(self, mailbox: str) -> bool:
        """Return whether a durable command has stored something: its steps may have to be undone."""
        return await self._session.transport.wishes.has_begun(mailbox, self._id)

    async def _is_there(self, mailbox: str) -> bool:
        return mailbox in await self._waiting.find(self._id)

    async def _was_cancelled(self, answer: str) -> bool:
        """Return whether a command that has ended was cancelled: by its mark, else by what its worker said."""
        marks = await self._session.transport.marks.read(self._id)
        replies = [reply for reply in map(reply_in, filter(is_settled, marks)) if reply is not None]
        if not replies:
            return answer in _DONE
        return any(isinstance(unpack_reply(reply, self._limits)[1], Cancelled) for reply in replies)
