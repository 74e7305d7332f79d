"""`Retention`: what a settled command leaves behind, and for how long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from command_bus.serialization.envelope import GIVEN_ID, IN_DISPATCH, KEEP_OUTCOME, WireEnvelope
from command_bus.serialization.outcome import OutcomeRecord, Status
from command_bus.serialization.reply import Outcome, pack_reply
from command_bus.settings import BusSettings
from command_bus.transport.marks import accepted_ms, is_marked, settled_mark
from command_bus.transport.steps import NO_SETTLEMENT, Settlement, Started
from command_bus.transport.unique_keys import unique_key

__all__ = ["Retention"]


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
    ) -> Settlement:
        """Return what settling leaves: the mark, with the reply where a caller may ask for it, the reply itself, and a dispatch's outcome.

        Args:
            envelope: Of the command.
            outcome: The answer for its caller.
            status: The status for its dispatch.
            started: Its start; None if it never started,
            message: and then where it waited.
        """
        if envelope.options and (key := unique_key(envelope)):
            return replace(self.settlement(replace(envelope, options=None), outcome, status, started, message), unique=key)
        if envelope.flags & IN_DISPATCH and not envelope.inbox:
            return self._in_dispatch(envelope, outcome, status, started, message)
        if not is_marked(envelope):
            return NO_SETTLEMENT
        record = pack_reply(envelope.command_id, outcome)
        kept = self.mark_ms(given_id=bool(envelope.flags & GIVEN_ID), called=bool(envelope.inbox))
        return Settlement(
            envelope.command_id,
            settled_mark(envelope, record),
            kept or 1,
            envelope.inbox or "",
            record if envelope.inbox else b"",
        )

    def mark_ms(self, *, given_id: bool, called: bool) -> int:
        """Return how long the mark of a settled command is kept, in ms; 0 for one that has none."""
        return max(self.dedup if given_id else 0, self.reply if called else 0)

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
        place = started.message if started is not None else message
        record = OutcomeRecord(
            status,
            envelope.name,
            envelope.entity_type,
            envelope.entity_id,
            started.attempt if started is not None else 0,
            self.worker,
            accepted_ms(place) if place[:1].isdecimal() else 0,
            started.first_ms if started is not None else 0,
            int(started.fence) if started is not None else 0,
            place,
            pack_reply(envelope.command_id, outcome),
        ).pack()
        return Settlement(envelope.command_id, b"", 0, dispatch=envelope.correlation_id, outcome=record)
