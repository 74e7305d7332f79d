"""Ends the attempt that runs for an entity, as an operator wants it: asks its worker, and waits for what that says."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import NamedTuple

from command_bus.admin.fleet import Fleet
from command_bus.admin.info import AbortReport
from command_bus.clock import checked_seconds, mono
from command_bus.durable.names import ENDING
from command_bus.durable.undo import unpack_ending
from command_bus.errors import CommandTimeout
from command_bus.sending.waiting import WaitingCommands
from command_bus.serialization.envelope import WireEnvelope, unpack_envelope
from command_bus.serialization.envelope_options import DURABLE, OTHERS
from command_bus.serialization.limits import Undecodable
from command_bus.serialization.reply import Cancelled, unpack_reply
from command_bus.session import OnSession, Session
from command_bus.transport.interrupts import Attempt, Interrupt, Kind
from command_bus.transport.mailboxes import mailbox_label
from command_bus.transport.marks import is_settled, reply_in

_LOOK_EVERY = 0.1


class Aborting(OnSession):
    """Aborts what runs in one mailbox, as `EntityScope` does.

    Args:
        session: Open.
        mailbox: Its name.
        entity_type: The type of the entity whose attempt is meant: with lanes another entity's may run there.
        entity_id: The same.
    """

    def __init__(self, session: Session, mailbox: str, entity_type: str, entity_id: str) -> None:
        super().__init__(session)
        self._mailbox = mailbox
        self._entity = (entity_type, entity_id)
        self._interrupts = session.transport.operator.interrupts

    async def abort(self, reason: str, *, by: str, wait: float, force: bool) -> AbortReport:
        deadline = mono() + checked_seconds("wait", wait)
        label = mailbox_label(self._mailbox)
        attempt = await self._interrupts.running(self._mailbox)
        if attempt is None and (home := (await self._operator.entities.look(self._mailbox)).home):
            self._mailbox = home  # a command of several entities runs there
            attempt = await self._interrupts.running(home)
        if attempt is None:
            return AbortReport("nothing", label)
        envelope = self._read(attempt)
        entities = ((envelope.entity_type, envelope.entity_id), *OTHERS.of(envelope.options))
        if self._entity not in entities and entities[0] != (None, None):
            return AbortReport("nothing", label)
        report = await self._described(AbortReport("unanswered", mailbox_label(self._mailbox)), attempt, envelope)
        kind: Kind = "abandon" if force else "abort"
        asked = Interrupt(kind, attempt.id, attempt.now_ms, by, reason)
        await self._interrupts.request(self._mailbox, asked)
        return await self._answered(report, attempt, asked, deadline)

    async def _answered(self, report: AbortReport, attempt: Attempt, asked: Interrupt, deadline: float) -> AbortReport:
        """Wait until the attempt has ended, or time is over."""
        while True:
            now = await self._interrupts.running(self._mailbox)
            said = await self._interrupts.answer(self._mailbox)  # behind the other: what ends an attempt is said before it ends
            ours = said is not None and said.attempt_id == attempt.id
            answer = said.answer if said is not None and ours else ""
            if now is None or now.id != attempt.id:
                if ours:  # else another operator has asked for something newer
                    await self._interrupts.withdraw(self._mailbox)
                if answer in ("cancelled", "told", "abandoned"):
                    return replace(report, result="ended", again=await self._is_tried_again(report))
                return replace(report, result="finished")
            if mono() >= deadline:
                break
            if said is None or not ours or asked.kind == "abandon" != said.kind:
                await self._interrupts.request(
                    self._mailbox, asked
                )  # another operator's request, or its answer, took the place of ours
            await asyncio.sleep(min(_LOOK_EVERY, max(deadline - mono(), 0.0)))
        if answer == "blocked" and said is not None:
            return replace(report, result="blocked", where=said.where)
        return replace(report, result="runs_on", in_thread=answer == "told") if answer else report

    async def _described(self, report: AbortReport, attempt: Attempt, envelope: WireEnvelope) -> AbortReport:
        name = attempt.holder.partition("#")[0]
        worker = next((each for each in await Fleet(self._session).workers() if each.name == name), None)
        return replace(
            report,
            command_id=envelope.command_id,
            name=envelope.name,
            attempt=attempt.attempt,
            running_for=max(attempt.now_ms - attempt.began_ms, 0) / 1000,
            worker=name,
            host=None if worker is None else worker.host,
            pid=None if worker is None else worker.pid,
        )

    async def _is_tried_again(self, report: AbortReport) -> bool | None:
        """Return whether another attempt follows by the contract that the workers announced; None if they announced none."""
        info = await Fleet(self._session).command(report.name)
        if info is None or "attempts" not in info.policy:
            return None
        return info.delivery == "at_least_once" and report.attempt < info.policy["attempts"]

    def _read(self, attempt: Attempt) -> WireEnvelope:
        try:
            return unpack_envelope(attempt.envelope, self._limits)
        except Undecodable:
            return WireEnvelope("", "", None, None, b"")


_DONE = ("cancelled", "told")
"""The answers of a worker that has cancelled its handler."""
_NOT_ASKED = "not asked"
"""No request stands there that ends the attempt as cancelled, or gives it up."""


class _Running(NamedTuple):
    """The attempt of a command that runs."""

    attempt: Attempt
    is_durable: bool


class Cancelling(OnSession):
    """Cancels one command.

    Args:
        session: Open.
        command_id: Id of the command.
        reason: For its caller.
    """

    def __init__(self, session: Session, command_id: str, reason: str) -> None:
        super().__init__(session)
        self._id = command_id
        self._reason = reason
        self._waiting = WaitingCommands(session)
        self._interrupts = session.transport.operator.interrupts

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
                if await self._waiting.cancel_in(mailbox, self._id, self._reason):
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
        told = await self._transport.durable.cancel(mailbox, self._id, (self._reason or "it was cancelled").encode())
        if told != "gone" and running is not None:
            await self._request(mailbox, running.attempt)
        return await self._ends_cancelled(mailbox) if told == "ending" else told != "gone"

    async def _ends_cancelled(self, mailbox: str) -> bool:
        """Return whether a durable command whose end is decided ends as cancelled."""
        (ending,) = await self._transport.durable.fields(mailbox, self._id, [ENDING])
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
        return _Running(attempt, DURABLE.of(envelope.options)) if envelope.command_id == self._id else None

    async def _has_begun(self, mailbox: str) -> bool:
        """Return whether a durable command has stored something: its steps may have to be undone."""
        return await self._transport.durable.has_begun(mailbox, self._id)

    async def _is_there(self, mailbox: str) -> bool:
        return mailbox in await self._waiting.find(self._id, likely=mailbox, most=0)

    async def _was_cancelled(self, answer: str) -> bool:
        """Return whether a command that has ended was cancelled: by its mark, else by what its worker said."""
        marks = await self._transport.locations.marks(self._id)
        replies = [reply for reply in map(reply_in, filter(is_settled, marks)) if reply is not None]
        if not replies:
            return answer in _DONE
        return any(isinstance(unpack_reply(reply, self._limits)[1], Cancelled) for reply in replies)
