"""Ends the attempt that runs for an entity, as an operator wants it: asks its worker, and waits for what that says."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from command_bus.admin.fleet import Fleet
from command_bus.admin.info import AbortReport
from command_bus.clock import checked_seconds, mono
from command_bus.serialization.envelope_reading import unpack_envelope
from command_bus.serialization.limits import Undecodable, reading_limits
from command_bus.serialization.wire_envelope import WireEnvelope
from command_bus.session import Session
from command_bus.transport.interrupts import Attempt, Interrupt, Kind
from command_bus.transport.mailboxes import mailbox_label

_LOOK_EVERY = 0.1


class Aborting:
    """Aborts what runs in one mailbox.

    Args:
        session: Open.
        mailbox: Its name.
        entity_type: Whose attempt is meant: with lanes another entity's may run there.
        entity_id: The same.
    """

    def __init__(self, session: Session, mailbox: str, entity_type: str, entity_id: str) -> None:
        self._session = session
        self._mailbox = mailbox
        self._entity = (entity_type, entity_id)
        self._limits = reading_limits(session.settings)
        self._interrupts = session.transport.operator.interrupts

    async def abort(self, reason: str, *, by: str, wait: float, force: bool) -> AbortReport:
        """See `EntityScope.abort`."""
        deadline = mono() + checked_seconds("wait", wait)
        label = mailbox_label(self._mailbox)
        attempt = await self._interrupts.running(self._mailbox)
        if attempt is None:
            return AbortReport("nothing", label)
        envelope = self._read(attempt)
        if (envelope.entity_type, envelope.entity_id) not in (self._entity, (None, None)):
            return AbortReport("nothing", label)
        report = await self._described(AbortReport("unanswered", label), attempt, envelope)
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
