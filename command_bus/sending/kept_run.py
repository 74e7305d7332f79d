"""`KeptRun`: one run of a command, as the row of an inbox keeps it.

    [1, [digest, reply, follow-ups] packed], or [2, what a cipher made of that]

The digest is of the fields as they were sent: an upcaster, or another release of the class, does not change it. The reply is packed as for the
caller. The follow-ups are what `CommandContext.send` was given, before middleware and signatures, which meet them when they are sent: a key that
was retired since then signs nothing. All of it is encrypted if the bus encrypts. So is the digest, without the key that a server remembers: the
rows outlive the server.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from command_bus.errors import BadResult, InboxConflict
from command_bus.messages.context import RunMemory
from command_bus.messages.outgoing import OutgoingMessage
from command_bus.sending.envelope_builder import command_digest
from command_bus.sending.follow_ups import MOST_BYTES, FollowUps
from command_bus.serialization.envelope import WireEnvelope
from command_bus.serialization.equality import is_same
from command_bus.serialization.limits import PayloadLimits, Undecodable
from command_bus.serialization.models import reply_codec_for
from command_bus.serialization.msgpack import pack, unpack
from command_bus.serialization.protection import Protection
from command_bus.serialization.stored_fields import stored_row
from command_bus.transport.mailboxes import encoded

_CLEAR, _SECRET, _NAME = 1, 2, "inbox"
_LIMITS = PayloadLimits(max_bytes=16 * MOST_BYTES, max_nesting=512)
"""Bounds of a row: wider than those of all that was checked when it was put in."""


class _Row(NamedTuple):
    kind: int
    parts: bytes


class _Parts(NamedTuple):
    digest: bytes
    reply: bytes | None
    follow_ups: tuple[list[Any], ...]


class KeptRun(RunMemory):
    """Implements `RunMemory`.

    Args:
        envelope: The command as it was received.
        reply_type: The class of what it is answered with.
        limits: Bounds of payloads and replies.
        namespace: What the bus is called on the server; two buses may share a database.
        mailbox: The line in which the command stands.
        outbox: What its handler sends, or None: the context was made by hand.
        protection: Encrypts, or None.
    """

    def __init__(
        self,
        envelope: WireEnvelope,
        reply_type: Any,
        limits: PayloadLimits,
        *,
        namespace: str = "",
        mailbox: str = "",
        outbox: FollowUps | None = None,
        protection: Protection | None = None,
    ) -> None:
        self._envelope, self._limits, self._outbox = envelope, limits, outbox
        self._codec = reply_codec_for(reply_type)
        self._protection = None if protection is None or protection.cipher is None else protection
        prefix = f"{namespace}:" if namespace else ""
        self.key = prefix + encoded(envelope.command_id)  # a database stores no NUL in texts, and no long keys
        self.place = "" if envelope.entity_type is None else prefix + mailbox
        self.found_in: set[Any] = set()

    def packed_reply(self, reply: Any) -> bytes:
        return self._codec.encode(reply, self._limits, reads_back=self._outbox is not None)  # by hand: its class is not known

    def reply_of(self, packed: bytes) -> Any:
        return self._codec.decode(packed, self._limits)

    def pack(self, reply: bytes | None) -> bytes:
        parts = pack([self._digest(), reply, [] if self._outbox is None else self._outbox.kept()], _LIMITS)
        if self._protection is None:
            return pack([_CLEAR, parts], _LIMITS)
        return pack([_SECRET, self._protection.sealed(self.place, self.key, _NAME, parts)], _LIMITS)

    def restore(self, kept: bytes) -> bytes | None:
        try:
            kind, parts = stored_row(_Row, unpack(kept, _LIMITS))
            if kind == _SECRET and self._protection is None:
                raise BadResult(f"what the inbox keeps of {self.key} is encrypted, and this bus has no cipher")
            if kind == _SECRET and self._protection is not None:
                parts = self._protection.unsealed(self.place, self.key, _NAME, parts)
            elif kind != _CLEAR:
                raise ValueError(f"a later release wrote it ({kind})")
            digest, reply, follow_ups = stored_row(_Parts, unpack(parts, _LIMITS))
            if not is_same(digest, self._digest()):
                raise InboxConflict(
                    f"the effect of {self._envelope.command_id!r} is committed with other fields: cancel this command, or send it under another id",
                    command_id=self._envelope.command_id,
                )
            if self._outbox is not None:
                self._outbox.restore(follow_ups)
        except (Undecodable, ValueError) as error:
            raise BadResult(f"what the inbox keeps of {self.key} cannot be read: {error}") from None
        return reply

    def _digest(self) -> bytes:
        envelope = self._envelope
        payload = envelope.payload if self._protection is None else self._protection.payload(envelope)
        out = OutgoingMessage(
            envelope.name, envelope.entity_type, envelope.entity_id, payload, options=dict(envelope.options or {})
        )
        return command_digest(out, self._limits)
