"""`DurableRuns`: the durable handlers of one worker: what they find stored, and how their commands end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import InitVar, dataclass, replace
from typing import Any

from command_bus.durable.compensation import CompensationFailed, compensate, has_to_compensate, is_compensating, note_ending
from command_bus.durable.names import ENDING, MESSAGE, UNDO
from command_bus.durable.run import DurableRun
from command_bus.durable.run_tools import RunLost, RunTools, Threads
from command_bus.durable.undo import Ending, pack_ending, unpack_ending
from command_bus.errors import BadResult, CommandBusError
from command_bus.messages.durable import Suspended
from command_bus.sending.children import Children
from command_bus.serialization.envelope import ENCRYPTED, WireEnvelope, unpack_envelope
from command_bus.serialization.limits import Undecodable, reading_limits
from command_bus.serialization.protection import Protection
from command_bus.settings import BusSettings
from command_bus.transport.marks import reply_in
from command_bus.transport.ports.durable import SideRecords
from command_bus.transport.retention import with_story
from command_bus.transport.steps import GIVE_BACK_UNCOUNTED, Cause, DeadLetterStep, Done, GiveBack, Lease, Park, Started, Step
from command_bus.worker.decisions import Decisions, partial_envelope
from command_bus.worker.reports import LOGGED, RunReports
from command_bus.worker.runnable import NO_HANDLER, Runnable, as_durable


@dataclass(eq=False)
class DurableRuns:
    """Begins and ends the runs of durable handlers.

    Attributes:
        records: Side records.
        children: Makes what sends the calls of one run, given the command's id and its mailbox.
        decisions: The rules.
        settings: Limits of values, and policies.
        protection: Encrypts, or None.
        few_wait: Whether few handlers wait in this worker, and it goes on.
    """

    records: SideRecords
    children: Callable[[str, str], Children]
    decisions: Decisions
    settings: InitVar[BusSettings]
    protection: Protection | None
    few_wait: Callable[[], bool]

    def __post_init__(self, settings: BusSettings) -> None:
        self._limits = reading_limits(settings)
        self._unknown = settings.handling(NO_HANDLER.spec)

    async def begin(self, lease: Lease, run: Runnable, task: asyncio.Task[Any] | None, threads: Threads) -> DurableRun:
        """Read what earlier runs of a command have stored, if there may be some."""
        run.envelope = as_durable(run.envelope)
        command_id = run.envelope.command_id
        fields = None if run.started.is_first else await self.records.read(lease, command_id)

        def may_linger() -> bool:
            """Return whether nothing limits how long it runs, and no other waits for what it holds."""
            return run.policy.attempt_timeout is None and not lease.may_have_places and self.few_wait()

        tools = RunTools(
            self.records,
            self.children(command_id, lease.mailbox),
            self._limits,
            *self._cipher(lease.mailbox, run.envelope),
            self._secret(run.envelope),
            threads,
            may_linger,
        )
        run.durable = durable = DurableRun(tools, lease, command_id, run.started, fields, task)
        return durable

    async def unsettled(self, lease: Lease, started: Started, step: DeadLetterStep | Park) -> DeadLetterStep | Park | Runnable:
        """Return how a command goes on that a worker gives up because it cannot run its handler: otherwise, if something is to be undone.

        It is parked: nothing is undone before somebody has seen it. Where it ends already, this worker undoes what it did: that is stored as it is
        sent, so no handler of the command is needed.
        """
        fields = await self.records.read(lease, step.left.command_id) if step.left.command_id else {}
        if fields.get(MESSAGE) != started.message.encode():
            return step
        with suppress(Undecodable):
            envelope = unpack_envelope(started.envelope or b"", self._limits)
            step = replace(step, left=with_story(step.left, envelope, fields, (), lease.mailbox))
        if not any(name.startswith(UNDO) for name in fields):
            return step
        if ENDING in fields:
            try:
                envelope = unpack_envelope(started.envelope or b"", self._limits)
            except Undecodable as error:
                envelope = partial_envelope(error)
            return Runnable(envelope, started, NO_HANDLER, None, self._unknown)
        if isinstance(step, Park):
            return step
        left = replace(step.left, side="", waits_ms=0)
        if not step.left.side:  # it was read in part only: its mark says that it waits here, and is left as it is
            left = replace(left, mark=b"", mark_ms=0)
        if left.waiting is not None:  # its caller waits: it has not ended
            left = replace(left, waiting=None, inbox="", reply=b"")
        return Park(left, step.record, step.raw)

    def reports(self, lease: Lease, run: Runnable) -> RunReports:
        """Return what stores what one run of a handler reports, durable or not."""
        is_sealed = self.protection is not None and run.envelope.flags & ENCRYPTED
        logged = None if run.durable is None else b""
        if run.durable is not None and LOGGED in run.durable.fields:
            with suppress(BadResult):  # then all is logged again
                logged = run.durable.tools.unseal(LOGGED, run.durable.fields[LOGGED])
        return RunReports(
            self.records,
            lease,
            run.envelope.command_id,
            run.started,
            seal=self._cipher(lease.mailbox, run.envelope)[0] if is_sealed else None,
            logged=logged,
        )

    def _secret(self, envelope: WireEnvelope) -> bytes | None:
        """Return the key of digests of what the command stores; empty, unless its payload is encrypted."""
        protection = self.protection
        return protection.digest_key or None if protection is not None and envelope.flags & ENCRYPTED else b""

    def _cipher(
        self, mailbox: str, envelope: WireEnvelope
    ) -> tuple[Callable[[str, bytes], bytes], Callable[[str, bytes], bytes]]:
        """Return what encrypts and decrypts the values of a command: nothing, unless its payload is encrypted."""
        protection = self.protection
        if protection is None or not envelope.flags & ENCRYPTED:
            return _as_it_is, _as_it_is
        command_id = envelope.command_id
        return (
            lambda name, data: protection.sealed(mailbox, command_id, name, data),
            lambda name, data: protection.unsealed(mailbox, command_id, name, data),
        )

    async def end(self, run: Runnable, durable: DurableRun, step: Step | None) -> Step | None:
        """Return how a command ends, as `_end`, with its story where that is kept."""
        step = await (self.compensated(run, durable) if is_compensating(durable) else self._end(run, durable, step))
        if not isinstance(step, Done | DeadLetterStep | Park):
            return step
        return replace(step, left=with_story(step.left, run.envelope, durable.fields, durable.names.used, durable.lease.mailbox))

    async def _end(self, run: Runnable, durable: DurableRun, step: Step | None) -> Step | None:
        """Return how a command ends: suspended, as it is, or once it is compensated; None if another worker has its lease."""
        if isinstance(step, Done) and step.status == "completed":
            return step
        if (
            isinstance(step, GiveBack)
            and durable.ended_waiting
            and run.interrupted is not None
            and run.interrupted.cause is Cause.STOPPING
        ):
            return GIVE_BACK_UNCOUNTED  # a deploy takes no attempt from a wait
        if not isinstance(step, Done | DeadLetterStep):
            return step
        if not has_to_compensate(durable):
            return step
        durable.suspension = None
        try:
            await note_ending(durable, _ending_of(step))
        except RunLost:
            return None
        return await self.compensated(run, durable)

    async def compensated(self, run: Runnable, durable: DurableRun) -> Step | None:
        """Undo what a command did; return how it ends then, None if another worker has its lease."""
        try:
            ending = unpack_ending(durable.fields[ENDING])
            await durable.running(compensate(durable, ending.given_up))
        except Suspended:
            assert durable.suspension is not None  # noqa: S101 - who raises it has set it
            return durable.suspension
        except RunLost:
            return None
        except (CompensationFailed, CommandBusError) as error:
            return self.decisions.uncompensated(run, error)
        return self.decisions.ending(run, ending)


def _as_it_is(name: str, data: bytes) -> bytes:
    del name
    return data


def _ending_of(step: Done | DeadLetterStep) -> bytes:
    """Return what is kept of the step that settles a command, while it is compensated."""
    reply = reply_in(step.left.mark) or b""
    if isinstance(step, DeadLetterStep):
        return pack_ending(Ending("dead_lettered", reply, step.record, step.left.follow_ups))
    return pack_ending(Ending(step.status, reply, b"", step.left.follow_ups))
