"""What a settled command leaves behind, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from command_bus.serialization.envelope import GIVEN_ID, WireEnvelope, digest
from command_bus.serialization.msgpack import Limits
from command_bus.serialization.reply import Outcome, pack_reply
from command_bus.settings import BusSettings
from command_bus.transport.interfaces import NO_DIGEST, Remembered

__all__ = ["Windows", "reading_limits"]

OWN_RETRY_MS = 60_000
"""How long a generated command id is remembered after settling: it need only cover the producer's own repetition."""

_HEAD = 64 * 1024
"""Bytes that an envelope or reply may have beside its payload."""


def reading_limits(settings: BusSettings) -> Limits:
    """The limits of what is read: whatever could be sent under these settings can be read."""
    return Limits(max_bytes=settings.max_payload + _HEAD, max_nesting=settings.max_nesting)


@dataclass(frozen=True, slots=True)
class Windows:
    """How long settled commands are remembered, in ms."""

    dedup: int
    reply: int

    @classmethod
    def of(cls, settings: BusSettings) -> Self:
        """The windows that the settings name."""
        return cls(int(settings.dedup_window * 1000), int(settings.reply_ttl * 1000))

    def remembered(self, envelope: WireEnvelope, outcome: Outcome) -> Remembered:
        """What settling leaves: the mark, with the reply where somebody may ask for it, and the reply itself."""
        given = envelope.flags & GIVEN_ID
        record = pack_reply(envelope.command_id, outcome) if given or envelope.inbox else b""
        kept = OWN_RETRY_MS
        if given:
            kept = max(kept, self.dedup)
        if envelope.inbox:
            kept = max(kept, self.reply)
        seal = digest(envelope.name, envelope.entity_type, envelope.entity_id, envelope.payload) if given else NO_DIGEST
        return Remembered(
            envelope.command_id, b"d" + seal + record, kept, envelope.inbox or "", record if envelope.inbox else b""
        )
