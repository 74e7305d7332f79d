"""Decide how to settle a command: a delivery or a handler's result in, a step out.

Nothing here waits or sends, and no decision changes the next. Jitter comes from a source that is given, and dead letters are logged.
A delivery is read into something that can run, or into a step straight away (undecodable, expired, invalid), or into an offer to newer
workers (unknown); what its handler did (returned, refused, raised, was interrupted) becomes the step that follows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from command_bus.clock import mono, wall_ms
from command_bus.durable.undo import Ending
from command_bus.errors import (
    BadResult,
    BadState,
    BadStep,
    CallCycle,
    CommandBusError,
    HandlerCrashed,
    InboxConflict,
    InvalidCommand,
    Reject,
)
from command_bus.handlers.handler import Handler
from command_bus.messages.message import MessageSpec, is_internal
from command_bus.messages.policies import OF_SUBSCRIPTION, MailboxPolicy, parts_of_delivery
from command_bus.messages.retry_policy import RetryPolicy
from command_bus.messages.snooze import GiveUp, Snooze
from command_bus.messages.state import EntityState
from command_bus.randomness import JITTER
from command_bus.serialization.dead_letter import DeadLetterRecord
from command_bus.serialization.envelope import AT_MOST_ONCE, GIVEN_ID, KEEP_OUTCOME, WireEnvelope, unpack_envelope
from command_bus.serialization.envelope_options import ACROSS, CALLERS, DURABLE, HISTORY, OTHERS
from command_bus.serialization.limits import Undecodable, UnsupportedVersion, compressed, printable, reading_limits
from command_bus.serialization.models import newer_version, reply_codec_for
from command_bus.serialization.protection import Protection, Signatures
from command_bus.serialization.reply import (
    BadReply,
    Cancelled,
    Completed,
    Expired,
    Failed,
    Forged,
    Interrupted,
    Invalid,
    Outcome,
    Rejected,
    Unhandled,
    cancelled_midway,
    unpack_reply,
)
from command_bus.serialization.states import StateCodec
from command_bus.settings import BusSettings
from command_bus.transport.mailboxes import mailbox_name, stands_in
from command_bus.transport.marks import accepted_ms
from command_bus.transport.retention import Retention
from command_bus.transport.steps import (
    NO_SETTLEMENT,
    WORKER_LOST,
    Cancellation,
    Cause,
    DeadLetterStep,
    Done,
    GiveBack,
    Lease,
    Park,
    PutOff,
    Retry,
    Settlement,
    Started,
    Step,
    Suspend,
)
from command_bus.transport.unique_keys import unique_key
from command_bus.worker.offers import Behind, Offer
from command_bus.worker.run_ends import failure_of, named, text_of, trace_of
from command_bus.worker.runnable import Bindings, Runnable

_log = logging.getLogger("command_bus.worker")


def packed_letter(
    worker: str, started: Started, envelope: WireEnvelope, reason: str, error_type: str, text: str, trace: str = ""
) -> bytes:
    """Return the dead letter of a command that has failed for good, and log it."""
    _log.warning(
        "command %r %r is dead-lettered (%s, attempt %d): %s: %s",
        envelope.name,
        envelope.command_id,
        reason,
        started.attempt,
        error_type,
        printable(text),
        extra={
            "command": envelope.name,
            "command_id": envelope.command_id,
            "entity": None if envelope.entity_type is None else f"{envelope.entity_type}:{envelope.entity_id}",
            "attempt": started.attempt,
            "worker": worker,
            "reason": reason,
        },
    )
    return DeadLetterRecord(
        reason=reason,
        command_id=envelope.command_id,
        name=envelope.name,
        entity_type=envelope.entity_type,
        entity_id=envelope.entity_id,
        error_type=error_type,
        error_message=text,
        traceback=trace,
        attempts=started.attempt,
        accepted_ms=accepted_ms(started.message),
        first_started_ms=started.first_ms,
        failed_ms=wall_ms(),
        worker=worker,
        headers=envelope.headers or {},
    ).pack()


_LEASES_LEFT = 3
"""Leases for which an interrupted command that only a newer worker can judge waits for one, besides the grace for what is unknown."""
_UNCONFIRMED = Retry(1000, counts=False)
"""For a command of whose start too few replicas know: after a failover it would start again as if it never had, and so would those before it
whose end they do not know either. So it does not start yet."""


class Decisions:
    """The rules of one worker.

    Args:
        lookup: Finds the handler of a wire name.
        settings: Limits and windows.
        worker: This worker's name, for dead letters.
        random: For jitter.
        protection: Verifies and decrypts, or None.
        recorded: Gives the mailbox policy that the namespace recorded for an entity type; None where it is not known. By default what the
            settings say.
        is_gone: Says whether a delivery of this name, accepted at this time, is of a subscription that was removed.
    """

    def __init__(
        self,
        lookup: Callable[[str], Handler | None],
        settings: BusSettings,
        *,
        worker: str,
        random: Random | None = None,
        protection: Protection | None = None,
        recorded: Callable[[str], MailboxPolicy | None] = lambda _: None,
        is_gone: Callable[[str, int], bool] = lambda _name, _accepted_ms: False,
    ) -> None:
        self._protection = protection
        self._signatures = None if protection is None else protection.signatures
        self._recorded, self._is_gone = recorded, is_gone
        self._settings = settings
        self._worker = worker
        self._random = random or JITTER
        self._limits = reading_limits(settings)
        self._retention = Retention.of(settings, worker)
        self._bindings = Bindings(lookup, settings, protection)
        self._states = StateCodec(settings, protection)
        self._letter = partial(packed_letter, worker)
        self._unknown_grace_ms = int(settings.unknown_grace * 1000)

    def read(self, started: Started, mailbox: str = "") -> Runnable | Step | Offer | Behind:
        """Read a delivery into something that can run, or into the step that settles it unrun, or into an offer to newer workers."""
        if not started.confirmed:
            return _UNCONFIRMED
        if started.envelope is None:
            return self._undecodable(started, Undecodable("the entry has no envelope"))
        try:
            envelope = unpack_envelope(started.envelope, self._limits)
        except UnsupportedVersion as error:
            return self._unknown(started, partial_envelope(error), "unsupported_version", str(error))
        except Undecodable as error:
            return self._undecodable(started, error)
        if self._signatures is not None and (fault := self._forgery(self._signatures, started.envelope, envelope, mailbox)):
            return self._forged(started, envelope, fault)
        if (over := self._over(started, envelope, mailbox)) is not None:
            return over
        bound = self._bindings.of(envelope.name)
        if bound is None:
            return self._unknown(started, envelope, "no_handler", f"no worker handles {envelope.name!r}")
        if envelope.options and (newer := newer_version(bound.handler.spec, envelope.options)):
            return self._unknown(started, envelope, "no_handler", newer)
        try:
            message = self._bindings.message(bound, envelope)
            self._check_lines(started, envelope, mailbox)
        except InvalidCommand as error:
            return self._invalid(started, envelope, bound.handler.spec, error)
        return Runnable(
            envelope, started, bound.handler, message, bound.policy_of(envelope) if envelope.options else bound.policy
        )

    def beside(self, started: Started, head: Runnable, mailbox: str) -> Runnable | None:
        """Return a command that stands behind another one, if it can run with it in one call; nothing is decided about it else."""
        try:
            envelope = unpack_envelope(started.envelope or b"", self._limits)
            if (envelope.name, envelope.entity_type, envelope.entity_id) != (
                head.envelope.name,
                head.envelope.entity_type,
                head.envelope.entity_id,
            ):
                return None
            options = envelope.options
            if envelope.flags & AT_MOST_ONCE or (options and (DURABLE.of(options) or CALLERS.of(options))):
                return None
            if self._signatures is not None and self._forgery(self._signatures, started.envelope or b"", envelope, mailbox):
                return None
            if not started.replayed and is_late(envelope, started.message, started.now_ms):
                return None
            bound = self._bindings.of(envelope.name)
            if bound is None or bound.handler is not head.handler or (options and newer_version(bound.handler.spec, options)):
                return None
            message = self._bindings.message(bound, envelope)
        except (Undecodable, InvalidCommand):
            return None
        return Runnable(envelope, started, bound.handler, message, bound.policy_of(envelope) if options else bound.policy)

    def completed(self, run: Runnable, value: Any) -> Step:
        """Settle a command whose handler returned, whether or not its result can be sent."""
        envelope = run.envelope
        options = envelope.options
        if type(value) is Ending:  # it ends as another command did, which it has held lines for
            return self.ending(run, value)
        if not (envelope.inbox or envelope.flags & (GIVEN_ID | KEEP_OUTCOME) or (options and HISTORY.letter in options)):
            key = options and unique_key(envelope)
            left = replace(NO_SETTLEMENT, unique=key) if key else NO_SETTLEMENT
            return Done(_sending(run, left), state=run.changed_state)
        try:
            if isinstance(value, BadResult):  # of a handler in a process: its reply was packed there
                raise value
            packed = reply_codec_for(run.handler.spec.reply).encode(value, self._limits)
            outcome: Outcome = self._completion(run, packed)
        except BadResult as error:
            if run.durable is not None and is_internal(envelope.name):
                return self.failed(run, BadStep(f"{error.message}, or let a group count its results only, by results=False"))
            outcome = BadReply(error.message)
        left = self._retention.settlement(envelope, outcome, "completed", run.started)
        return Done(_sending(run, left), state=run.changed_state)

    def hold_state(self, run: Runnable, lease: Lease) -> Step | Offer | None:
        """Give a command the state of its entity; return what to do if that cannot be read here. It never runs on defaults instead.

        A newer worker may be able to, so it is left to others for a while; then it is parked.
        """
        started, envelope = run.started, run.envelope
        try:
            run.state = self._states.held(run.handler.state or EntityState, lease.mailbox, lease.state or b"", started.now_ms)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, the entity must not wait for the end of its lease
            reason = error.message if isinstance(error, BadState) else failure_of(error)
            text = f"the state of its entity cannot be read: {reason}"
            left_ms = self._unknown_grace_ms - (started.now_ms - started.woken_ms)
            if left_ms > 0:
                return Offer(left_ms, envelope.name, envelope.command_id, text)
            record = self._letter(started, envelope, "bad_state", "BadState", text)
            outcome = Failed("BadState", text, started.attempt)
            return Park(self._retention.settlement(envelope, outcome, "parked", started), record, started.entry)
        return None

    def renew_state(self, run: Runnable, lease: Lease) -> None:
        """Give a command that has failed within its middleware the state again, as it was stored.

        Raises:
            BadState: It cannot be read.
        """
        if run.state is not None and run.state.is_void:
            kind = type(run.state.value)
            fresh = self._states.held(kind, lease.mailbox, lease.state or b"", run.started.now_ms)
            run.state.value, run.state.before, run.state.is_stored = fresh.value, fresh.before, fresh.is_stored
            run.state.is_void = run.state.is_deleted = False

    def change_state(self, run: Runnable, lease: Lease) -> None:
        """Note what the state of an entity becomes after a handler that returned.

        Raises:
            BadState: It cannot be stored.
        """
        if run.state is not None:
            now_ms = run.started.now_ms + int((mono() - run.began) * 1000)
            after = self._states.changed(run.state, int(run.started.fence), now_ms)
            if after is not None:
                run.changed_state, lease.state = self._states.pack(lease.mailbox, after), after

    def _completion(self, run: Runnable, packed: bytes) -> Completed:
        """Return the outcome with a packed reply, compressed and encrypted as far as that is asked for."""
        above = self._settings.compress_above_of(run.handler.spec)
        smaller = None if above is None else compressed(packed, above)
        outcome = Completed(packed) if smaller is None else Completed(smaller, compressed=True)
        return outcome if self._protection is None else self._protection.reply(run.envelope, outcome)

    def rejected(self, run: Runnable, refusal: Reject) -> Step:
        """Settle a command that its handler refused for business reasons: it is not retried."""
        outcome = Rejected(refusal.message, refusal.code, refusal.details)
        return Done(_sending(run, self._retention.settlement(run.envelope, outcome, "rejected", run.started)), status="rejected")

    def suspended(self, run: Runnable, suspension: Suspend) -> Step:
        """Let a durable command wait without a worker."""
        del run
        return suspension

    def ended(self, run: Runnable, why: Cancellation) -> Step:
        """Settle a command whose handler was ended on request: as interrupted, or as cancelled. It sends nothing."""
        if why.cause is not Cause.CANCELLED:
            return self.interrupted(run.started, why.text)
        run.follow_ups = ()
        return self.cancelled(run, cancelled_midway(why.text, durable=run.durable is not None))

    def cancelled(self, run: Runnable, outcome: Cancelled) -> Step:
        """Settle a command that was to end while it ran."""
        left = self._retention.settlement(run.envelope, outcome, "cancelled", run.started)
        return Done(_sending(run, left), status="cancelled")

    def ending(self, run: Runnable, ending: Ending) -> Step:
        """Settle a durable command that was compensated, with what it ended with before. What it has stored serves no run any more."""
        _, outcome = unpack_reply(ending.reply, self._limits)
        status: Any = ending.status
        run.follow_ups = ending.sends
        left = _sending(run, replace(self._retention.settlement(run.envelope, outcome, status, run.started), side="ends"))
        return DeadLetterStep(left, ending.record, run.started.entry) if ending.record else Done(left, status=status)

    def uncompensated(self, run: Runnable, error: BaseException) -> Step:
        """Park a durable command that cannot be compensated, or try it again later if this worker cannot read how: another release may."""
        error_type, text = named(error), text_of(error)
        if isinstance(error, CommandBusError):
            delay, command_id = self._delay_after(run.policy.retry, run, error), printable(run.envelope.command_id)
            _log.error("%s cannot be compensated here, trying again in %.1f s: %s", command_id, delay, printable(text))
            return Retry(int(delay * 1000), error=failure_of(error))
        outcome = Failed(error_type, text, run.started.attempt)
        record = self._letter(run.started, run.envelope, "compensation_failed", error_type, text, trace_of(error))
        left = self._retention.settlement(run.envelope, outcome, "parked", run.started)
        return Park(left, record, run.started.entry)

    def exhausted(self, run: Runnable) -> Step | None:
        """Return the end of a durable command whose worker was lost too often since it last got on; None if it may run."""
        if run.started.attempt <= run.policy.retry.attempts:
            return None
        text = f"{WORKER_LOST.text}; it may have run not at all, partly or fully"
        record = self._letter(run.started, run.envelope, "interrupted", "Interrupted", text)
        return self._poisoned(run.handler.spec, run.started, run.envelope, Interrupted(text), record)

    def failed(self, run: Runnable, error: BaseException) -> Step:
        """Retry a command whose handler raised, by its policy, or treat it as poisoned.

        What does not fit a durable command's steps parks it, and so does what an inbox knows with other fields.

        The error of an outcome that a durable command has stored comes again in each retry, and a call that leads back does so again: both are
        final.
        """
        if isinstance(error, BadResult) and run.handler.process is not None:
            return self.completed(run, error)
        if isinstance(error, HandlerCrashed) and run.policy.delivery == "at_most_once":
            return self.interrupted(run.started, error.message)
        policy, durable = run.policy.retry, run.durable
        lasts = isinstance(error, GiveUp | BadStep | BadState | CallCycle | InboxConflict) or (
            durable is not None and durable.errors.has(error)
        )
        attempt = 1 if durable is not None and durable.progressed else run.started.attempt
        if attempt < policy.attempts and not lasts and policy.retries(error):
            return Retry(int(self._delay_after(policy, run, error) * 1000), error=failure_of(error))
        error_type, text = named(error), text_of(error)
        record = self._letter(run.started, run.envelope, "failed", error_type, text, trace_of(error))
        outcome = Failed(error_type, text, run.started.attempt)
        parks = isinstance(error, InboxConflict) or (durable is not None and isinstance(error, BadStep))
        if parks:  # nothing is undone before somebody has seen it
            return Park(self._retention.settlement(run.envelope, outcome, "parked", run.started), record, run.started.entry)
        step = self._poisoned(run.handler.spec, run.started, run.envelope, outcome, record)
        return replace(step, left=_sending(run, step.left)) if isinstance(step, DeadLetterStep) else step

    def snoozed(self, run: Runnable, snooze: Snooze) -> Step:
        """Put a command off whose handler cannot do its work now. Once more than it may is a failure."""
        if run.started.snoozes.times < snooze.most:
            facts = {"command": run.envelope.name, "command_id": run.envelope.command_id, "worker": self._worker}
            text = printable(str(snooze))
            _log.info("%s %s is put off %s", printable(run.envelope.name), printable(run.envelope.command_id), text, extra=facts)
            return PutOff(math.ceil(snooze.seconds * 1000))
        return self.failed(run, snooze.too_often())

    def _delay_after(self, policy: RetryPolicy, run: Runnable, error: BaseException) -> float:
        """Return the seconds until the next attempt; by the policy's numbers if its function fails."""
        attempt = run.started.attempt
        try:
            return policy.delay_after(attempt, self._random.uniform, error)
        except (Exception, SystemExit):  # noqa: BLE001 - it is the application's, and the command must not wait for the end of its lease
            _log.exception("the function of backoff of %s failed: the delay is the exponential one", printable(run.envelope.name))
            return policy.delay_after(attempt, self._random.uniform)

    def interrupted(self, started: Started, why: str = WORKER_LOST.text) -> Step:
        """Run a started command again whose worker is gone or stopping, or dead-letter it, by its contract.

        How often it may be run its handler knows. A worker without (an older release that takes over from a newer) leaves that to one that has it.
        """
        if started.begun:  # its next run finds out whether it was interrupted too often, and what has to be undone
            return GiveBack(counts=True)
        try:
            envelope = unpack_envelope(started.envelope or b"", self._limits)
        except Undecodable as error:
            return self._undecodable(started, error)
        if self._signatures is not None and (fault := self._signatures.fault(started.envelope or b"", envelope.signature)):
            return self._forged(started, envelope, fault)
        bound = self._bindings.of(envelope.name)
        if bound is not None and newer_version(bound.handler.spec, envelope.options):
            bound = None
        policy = None if bound is None else bound.policy_of(envelope)
        if DURABLE.of(envelope.options) or (bound is not None and bound.handler.spec.durable):
            return GiveBack(counts=True)
        at_most_once = bool(envelope.flags & AT_MOST_ONCE) if policy is None else policy.delivery == "at_most_once"
        if not at_most_once and (policy is None or started.attempt < policy.retry.attempts):
            return GiveBack(counts=True)
        text = f"{why}; it may have run not at all, partly or fully"
        record = self._letter(started, envelope, "interrupted", "Interrupted", text)
        return self._poisoned(bound.handler.spec if bound else None, started, envelope, Interrupted(text), record)

    def lost(self, started: Started, why: str = WORKER_LOST.text) -> Step | None:
        """Decide as `interrupted` for a command whose worker was lost or abandoned it; None leaves it to another worker.

        Only a newer release can decide about what it wrote: whether it may run again is in a part we cannot read. So it stays interrupted
        until a newer worker takes it over, for as long as an unknown command is kept and some leases more. A run is given back whole: it counts for
        none of its commands, and the next one is smaller.
        """
        if started.run.size > 1:
            return GiveBack(counts=True)
        try:
            unpack_envelope(started.envelope or b"", self._limits)
        except UnsupportedVersion as error:
            if started.begun:
                return self.interrupted(started, why)
            if started.now_ms - started.began_ms < self._unknown_grace_ms + _LEASES_LEFT * self._settings.lease * 1000:
                return None
            text = (
                f"{error}, and no newer worker took it over after its own was lost; it may have run not at all, partly or fully"
            )
            envelope = partial_envelope(error)
            left = self._left_of_unread(started, envelope, Interrupted(text))
            return DeadLetterStep(left, self._letter(started, envelope, "interrupted", "Interrupted", text), started.entry)
        except Undecodable:
            pass
        return self.interrupted(started, why)

    # What cannot run.

    def _undecodable(self, started: Started, error: Undecodable) -> Step:
        envelope = partial_envelope(error)
        record = self._letter(started, envelope, "undecodable", "Undecodable", str(error))
        return DeadLetterStep(self._left_of_unread(started, envelope, Invalid(str(error))), record, started.entry)

    def _left_of_unread(self, started: Started, envelope: WireEnvelope, outcome: Outcome) -> Settlement:
        """Return what is left of a command that can be read in part only. Where commands are signed, its id may be another command's."""
        if not envelope.command_id:
            return NO_SETTLEMENT
        if self._signatures is not None:
            return self._retention.reply_only(envelope, outcome)
        return self._retention.settlement(envelope, outcome, "dead_lettered", started)

    def _forgery(self, signatures: Signatures, data: bytes, envelope: WireEnvelope, mailbox: str) -> str | None:
        """Return what is wrong with a command's signature or with its mailbox; None if nothing is."""
        fault = signatures.fault(data, envelope.signature)
        if fault is not None or envelope.signature is None:
            return fault
        entity_type = envelope.entity_type or ""
        policy = self._recorded(entity_type) or self._settings.entity(envelope.entity_type).mailbox
        if stands_in(mailbox, envelope.entity_type, envelope.entity_id, envelope.command_id, policy):
            return None
        return "it was signed for another entity than that in whose line it stands"

    def _check_lines(self, started: Started, envelope: WireEnvelope, mailbox: str) -> None:
        """Check that a command stands in the lines of all its entities.

        Raises:
            InvalidCommand: It does not.
        """
        if not (started.raw or envelope.options):
            return
        named = {
            mailbox_name(entity, each, self._recorded(entity) or self._settings.entity(entity).mailbox)
            for entity, each in OTHERS.of(envelope.options)
        }
        if named - {mailbox} != {*started.others}:
            lines, names = (", ".join(sorted(each)) or "none" for each in (started.others, named))
            raise InvalidCommand(f"besides its own it stands in these lines: {lines}; its envelope names: {names}")

    def _forged(self, started: Started, envelope: WireEnvelope, fault: str) -> Step:
        text = f"bad signature: {fault}"
        left = self._retention.reply_only(envelope, Forged(text, begun=started.had_begun))
        return DeadLetterStep(left, self._letter(started, envelope, "bad_signature", "BadSignature", text), started.entry)

    def _over(self, started: Started, envelope: WireEnvelope, mailbox: str) -> Step | Behind | None:
        """Return the end of a command that is not to be run any more, or why it may not be run now; None if it may."""
        if envelope.options and (across := ACROSS.of(envelope.options)) and int(started.fence) <= across.fence:
            return Behind(mailbox, across.fence)
        if started.attempt <= 1 and not started.replayed and is_late(envelope, started.message, started.now_ms):
            return self._expired(started, envelope)
        if OF_SUBSCRIPTION in envelope.name and self._is_gone(envelope.name, accepted_ms(started.message)):
            outcome = Cancelled(f"subscription {parts_of_delivery(envelope.name)[1]} was removed", "unsubscribed")
            return Done(self._retention.settlement(envelope, outcome, "cancelled", started), status="cancelled")
        return None

    def _expired(self, started: Started, envelope: WireEnvelope) -> Step:
        late = started.now_ms - accepted_ms(started.message) - (envelope.ttl_ms or 0)
        text = f"not started: its deadline passed {late} ms before its turn"
        left = self._retention.settlement(envelope, Expired(text), "expired", started)
        if envelope.inbox:
            return Done(left, status="expired")
        return DeadLetterStep(left, self._letter(started, envelope, "expired", "Expired", text), started.entry)

    def _unknown(self, started: Started, envelope: WireEnvelope, reason: str, text: str) -> Step | Offer:
        """Leave it to a newer worker for a while: a rolling deploy must not lose it."""
        left_ms = self._unknown_grace_ms - (started.now_ms - started.woken_ms)
        end = partial(self._given_up, started, envelope, reason, text)
        if self._unknown_grace_ms > 0 and reason == "no_handler" and self._bindings.of(envelope.name) is None:
            since = started.woken_ms if started.replayed else accepted_ms(started.message)
            return Offer(left_ms, envelope.name, envelope.command_id, text, end, since)
        return Offer(left_ms, envelope.name, envelope.command_id, text) if left_ms > 0 else end()

    def _given_up(self, started: Started, envelope: WireEnvelope, reason: str, text: str) -> Step:
        outcome = Unhandled(text, begun=started.had_begun)
        left = self._retention.settlement(envelope, outcome, "dead_lettered", started)
        if reason != "no_handler":  # it was not read, or not verified
            left = self._left_of_unread(started, envelope, outcome)
        return DeadLetterStep(left, self._letter(started, envelope, reason, "NoHandler", text), started.entry)

    def _invalid(self, started: Started, envelope: WireEnvelope, spec: MessageSpec, error: InvalidCommand) -> Step:
        record = self._letter(started, envelope, "invalid", "InvalidCommand", error.message)
        return self._poisoned(spec, started, envelope, Invalid(error.message, begun=started.had_begun), record)

    # What is poisoned.

    def _poisoned(
        self, spec: MessageSpec | None, started: Started, envelope: WireEnvelope, outcome: Outcome, record: bytes
    ) -> Park | DeadLetterStep:
        choice = (None if spec is None else spec.on_poison) or self._settings.entity(envelope.entity_type).on_poison or "skip"
        left = self._retention.settlement(envelope, outcome, "parked" if choice == "park" else "dead_lettered", started)
        return (Park if choice == "park" else DeadLetterStep)(left, record, started.entry)


def _sending(run: Runnable, left: Settlement) -> Settlement:
    """Return a settlement with what the handler sends."""
    published = () if run.outbox is None else run.outbox.published
    return replace(left, follow_ups=run.follow_ups, published=published) if run.follow_ups or published else left


def is_late(envelope: WireEnvelope, message: str, now_ms: int) -> bool:
    """Return whether the deadline has passed of a command that never ran. One that ran, or that an operator replays, is run to its end."""
    return envelope.ttl_ms is not None and now_ms > accepted_ms(message) + envelope.ttl_ms


def partial_envelope(error: Undecodable) -> WireEnvelope:
    """Return as much of an envelope as could be read, to answer its caller."""
    return WireEnvelope(
        command_id=error.command_id or "",
        name=error.name or "",
        entity_type=None,
        entity_id=None,
        payload=b"",
        flags=GIVEN_ID,  # it may have a mark, which must not wait for ever
        inbox=error.inbox,
    )
