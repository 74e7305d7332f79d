"""`Retention`: what a settled command leaves behind, and for how long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

from command_bus.serialization.dead_letter import DeadLetterRecord
from command_bus.serialization.envelope import ENCRYPTED, GIVEN_ID, IN_DISPATCH, KEEP_OUTCOME, WireEnvelope, pack_envelope
from command_bus.serialization.envelope_options import COMPRESSION, DURABLE, HISTORY, RETURN, UNIQUE, KeptHistory
from command_bus.serialization.limits import ZLIB
from command_bus.serialization.outcome import OutcomeRecord, Status
from command_bus.serialization.reply import Outcome, pack_reply
from command_bus.serialization.story import packed_story
from command_bus.settings import BusSettings
from command_bus.transport.marks import accepted_ms, is_marked, settled_mark
from command_bus.transport.steps import NO_SETTLEMENT, ChildOutcome, Settlement, Started
from command_bus.transport.unique_keys import unique_key

_SETTLED_BY = frozenset(option.letter for option in (UNIQUE, DURABLE, RETURN, HISTORY))
"""Options that say what settling leaves; `u` is a unique key."""
_CHILD_MS = 3_600_000
"""Milliseconds for which the outcome of a called command is kept, at least: if its delivery to a durable caller is lost, it is found there."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The times for which settled commands are remembered, in ms; and who settles them, for the outcomes of dispatches."""

    dedup: int
    reply: int
    worker: str = ""

    @classmethod
    def of(cls, settings: BusSettings, worker: str = "") -> Self:
        """Return the windows that the settings name."""
        return cls(int(settings.dedup_window * 1000), int(settings.reply_ttl * 1000), worker)

    def settlement(
        self,
        envelope: WireEnvelope,
        outcome: Outcome,
        status: Status = "cancelled",
        started: Started | None = None,
        message: str = "",
        letter: DeadLetterRecord | None = None,
    ) -> Settlement:
        """Return what settling leaves: the mark, with the reply where a caller may ask for it, the reply itself, and the outcome that is kept.

        Args:
            envelope: What is settled.
            outcome: The answer for its caller.
            status: What its dispatch or the history says of its end.
            started: Its start; None if it never started,
            message: and then where it waited,
            letter: or its dead letter.
        """
        left = self._without_options(envelope, outcome, status, started, message)
        if not envelope.options or _SETTLED_BY.isdisjoint(envelope.options):
            return left
        left = _with_options(left, envelope, outcome, status)
        kept = HISTORY.of(envelope.options)
        if kept is None or left.outcome:
            return left
        record = self._record(envelope, outcome, status, started, message)
        return replace(left, outcome=_in_history(envelope, kept, record, letter))

    def _without_options(
        self, envelope: WireEnvelope, outcome: Outcome, status: Status, started: Started | None, message: str
    ) -> Settlement:
        """Return what settling leaves, whatever the options of the command ask for."""
        if envelope.flags & IN_DISPATCH and not envelope.inbox:
            return self._in_dispatch(envelope, outcome, status, started, message)
        if not is_marked(envelope):
            return NO_SETTLEMENT
        record = pack_reply(envelope.command_id, outcome)
        mark_ms = self.mark_ms(given_id=bool(envelope.flags & GIVEN_ID), called=bool(envelope.inbox))
        return Settlement(
            envelope.command_id,
            settled_mark(envelope, record),
            mark_ms or 1,
            envelope.inbox or "",
            record if envelope.inbox else b"",
        )

    def mark_ms(self, *, given_id: bool, called: bool) -> int:
        """Return how long the mark of a settled command is kept, in ms; 0 for one that has none."""
        kept = self.dedup if given_id else 0
        return self.reply if called and kept < self.reply else kept

    def reply_only(self, envelope: WireEnvelope, outcome: Outcome) -> Settlement:
        """Return what is left of a command whose signature is wrong: a reply to the inbox that it names, and nothing else.

        It may name the id of another command, or of another's dispatch: what is remembered of those must not be its doing. If it was sent
        in good faith, its own mark does not wait for ever.
        """
        if not envelope.command_id:
            return NO_SETTLEMENT
        reply = pack_reply(envelope.command_id, outcome) if envelope.inbox else b""
        return Settlement(envelope.command_id, b"", 0, envelope.inbox or "", reply, waits_ms=max(1, self.dedup))

    def _in_dispatch(
        self, envelope: WireEnvelope, outcome: Outcome, status: Status, started: Started | None, message: str
    ) -> Settlement:
        """Return the outcome of a dispatch's command. It leaves no mark: the open dispatch knows its id, and later its fence does."""
        if not envelope.flags & KEEP_OUTCOME or not envelope.correlation_id:
            return NO_SETTLEMENT
        record = self._record(envelope, outcome, status, started, message).pack()
        return Settlement(envelope.command_id, b"", 0, dispatch=envelope.correlation_id, outcome=record)

    def _record(
        self, envelope: WireEnvelope, outcome: Outcome, status: Status, started: Started | None, message: str
    ) -> OutcomeRecord:
        place = started.message if started is not None else message
        return OutcomeRecord(
            status,
            envelope.name,
            *envelope.first_entity,
            started.attempt if started is not None else 0,
            self.worker,
            accepted_ms(place) if place[:1].isdecimal() else 0,
            started.first_ms if started is not None else 0,
            int(started.fence) if started is not None else 0,
            place,
            pack_reply(envelope.dispatched_id, outcome),
            others=envelope.others,
        )


def _with_options(left: Settlement, envelope: WireEnvelope, outcome: Outcome, status: Status) -> Settlement:
    """Return a settlement with what the options of its command ask for."""
    unique, durable, waits = unique_key(envelope), DURABLE.of(envelope.options), RETURN.of(envelope.options)
    if not unique and not durable and waits is None:
        return left
    waiting = None
    if waits is not None and status != "parked":  # a parked command has not ended
        waiting = ChildOutcome(
            *waits[:2], envelope.command_id, waits.call, left.reply or pack_reply(envelope.command_id, outcome)
        )
    has_caller = waits is None or status != "parked"
    return Settlement(  # not by `replace`, which takes as long as all else here
        envelope.command_id,
        left.mark if has_caller else b"",  # it waits still, for its caller and for who looks for a lost outcome
        left.mark_ms if waits is None else max(left.mark_ms, _CHILD_MS),
        left.inbox if has_caller else "",
        left.reply if has_caller else b"",
        left.dispatch,
        left.outcome,
        left.waits_ms,
        unique or "",
        left.stander,
        left.follow_ups,
        waiting,
        _side_after(status) if durable else "",
    )


def _side_after(status: Status) -> Literal["", "ends", "kept"]:
    """Return how the side record of a durable command ends: a dead letter keeps it for its replay, and so does a parked command."""
    if status == "parked":
        return ""
    return "kept" if status == "dead_lettered" else "ends"


def history_text(bounds: str, command_id: str, record: OutcomeRecord) -> bytes:
    """Return an outcome as the scripts take it for the history (see `lua/shared/outcomes.lua`)."""
    return _history_head(bounds, command_id) + record.pack()


def _history_head(bounds: str, command_id: str) -> bytes:
    name = command_id.encode()
    return b"%s:%d:%s" % (bounds.encode(), len(name), name)


def with_story(
    left: Settlement, envelope: WireEnvelope, fields: Mapping[str, bytes], order: Iterable[str], mailbox: str
) -> Settlement:
    """Return a settlement whose end in the history has the story of a durable command, if that is kept.

    Args:
        left: As it is without.
        envelope: The command.
        fields: Its side record.
        order: Names of what its last run did.
        mailbox: The place where it waited.
    """
    kept = HISTORY.of(envelope.options)
    if kept is None or not kept.steps or left.dispatch or not left.outcome:
        return left
    head = _history_head(kept.bounds, envelope.dispatched_id)
    sealed_at = (mailbox, envelope.command_id) if envelope.flags & ENCRYPTED else None
    record = OutcomeRecord.unpack(left.outcome.removeprefix(head))
    return replace(left, outcome=head + replace(record, story=packed_story(fields, order, sealed_at)).pack())


def _in_history(envelope: WireEnvelope, kept: KeptHistory, record: OutcomeRecord, letter: DeadLetterRecord | None) -> bytes:
    if letter is not None:  # what its last start left
        record = replace(
            record,
            attempt=letter.attempts,
            worker=letter.worker,
            accepted_ms=letter.accepted_ms,
            first_started_ms=letter.first_started_ms,
        )
    if kept.payload:
        record = replace(record, envelope=_with_payload_only(envelope))
    return history_text(kept.bounds, envelope.dispatched_id, record)


def _with_payload_only(envelope: WireEnvelope) -> bytes:
    """Return an envelope with the payload as it travelled, encrypted if it was, and without what is for workers and the caller alone."""
    as_it_is = bool(envelope.flags & ENCRYPTED) and envelope.compressed
    return pack_envelope(
        replace(
            envelope,
            flags=envelope.flags & ENCRYPTED,
            inbox=None,
            headers=None,
            signature=None,
            options=COMPRESSION.replaced(None, ZLIB) if as_it_is else None,
            compressed=envelope.compressed and not as_it_is,
        )
    )
