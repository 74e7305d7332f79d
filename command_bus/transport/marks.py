"""What a settled command leaves behind, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from command_bus.serialization.envelope import (
    ENCRYPTED,
    GIVEN_ID,
    IN_DISPATCH,
    KEEP_OUTCOME,
    WireEnvelope,
    digest,
)
from command_bus.serialization.outcome import OutcomeRecord, Status
from command_bus.serialization.reply import Outcome, pack_reply
from command_bus.settings import BusSettings
from command_bus.transport.steps import NO_SETTLEMENT, Settlement, Started
from command_bus.transport.submissions import NO_DIGEST

__all__ = [
    "Retention",
    "accepted_ms",
    "digest_in",
    "digest_of",
    "is_marked",
    "is_settled",
    "mailbox_in",
    "reply_in",
    "waiting_mark",
]

_WAITING, _SETTLED = b"q", b"d"
_PREFIX = 9
"""Bytes before the mailbox or the reply: the letter and the digest."""


def accepted_ms(message: str) -> int:
    """Return the server's time of acceptance: the first part of the message id."""
    return int(message.partition("-")[0])


def digest_of(envelope: WireEnvelope) -> bytes:
    """Return the digest that a repeat of the command id is compared by.

    Nothing for a generated id, and nothing for an encrypted payload: its ciphertext differs each time, and a digest of the clear one
    would let a reader of the server confirm a guess.
    """
    if envelope.flags & (GIVEN_ID | ENCRYPTED) != GIVEN_ID:
        return NO_DIGEST
    return digest(envelope.name, envelope.entity_type, envelope.entity_id, envelope.payload)


def is_marked(envelope: WireEnvelope) -> bool:
    """Return whether a mark remembers its command id: a caller chose it and may send it again, or waits for its reply.

    Only the producer can repeat a generated id, and the server answers that by the number of its batch.
    """
    return bool(envelope.inbox) or envelope.flags & (GIVEN_ID | IN_DISPATCH) == GIVEN_ID


@dataclass(frozen=True, slots=True)
class Retention:
    """How long settled commands are remembered, in ms; and who settles them, for the outcomes of dispatches."""

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
        if envelope.flags & IN_DISPATCH and not envelope.inbox:
            return self._in_dispatch(envelope, outcome, status, started, message)
        if not is_marked(envelope):
            return NO_SETTLEMENT
        record = pack_reply(envelope.command_id, outcome)
        kept = self.dedup if envelope.flags & GIVEN_ID else 0
        if envelope.inbox:
            kept = max(kept, self.reply)
        return Settlement(
            envelope.command_id,
            _SETTLED + digest_of(envelope) + record,
            max(kept, 1),
            envelope.inbox or "",
            record if envelope.inbox else b"",
        )

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


def waiting_mark(digest: bytes, mailbox: str) -> bytes:
    """Return the mark of a command that waits in a mailbox."""
    return _WAITING + digest + mailbox.encode()


def digest_in(mark: bytes) -> bytes:
    """Return the digest of a marked command."""
    return mark[1:_PREFIX]


def mailbox_in(mark: bytes | None) -> str | None:
    """Return the mailbox where a command waits; None if it is settled or has no mark."""
    return mark[_PREFIX:].decode() if mark is not None and mark[:1] == _WAITING else None


def is_settled(mark: bytes | None) -> bool:
    """Return whether a mark is that of a settled command."""
    return mark is not None and mark[:1] == _SETTLED


def reply_in(mark: bytes | None) -> bytes | None:
    """Return the reply in the mark of a settled command; None while it waits, or if none was kept."""
    return mark[_PREFIX:] if mark is not None and is_settled(mark) and len(mark) > _PREFIX else None
