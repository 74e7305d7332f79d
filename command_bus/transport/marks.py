"""Marks: what is stored under a command id, so that a repeat finds it.

A mark is a letter (`q` while the command waits, `d` once it is settled), a digest, and then the mailbox or the reply. It alone is written
and read here; `retention.py` decides which commands leave one, and for how long.
"""

from __future__ import annotations

from typing import Any

from command_bus.serialization.envelope import GIVEN_ID, IN_DISPATCH, WireEnvelope
from command_bus.serialization.envelope_options import VERSION
from command_bus.serialization.equality import DIGEST, digest, digest_of_head
from command_bus.serialization.odd_values import stored_text
from command_bus.transport.submissions import NO_DIGEST

_WAITING, _SETTLED = b"q", b"d"
_PREFIX = 1 + DIGEST
"""Bytes before the mailbox or the reply: the letter and the digest."""


def accepted_ms(message: str) -> int:
    """Return the server's time of acceptance: the first part of the message id."""
    return int(message.partition("-")[0])


def digest_of(envelope: WireEnvelope, payload: Any = None, key: bytes = b"") -> bytes:
    """Return the digest that a repeat of the command id is compared by, as far as an envelope tells: not of its fields, unless they are given.

    The fields that its sender left at their defaults are known from its class only. So a script that writes this keeps the digest of the
    mark that is there. Nothing for a generated id. The fields of an encrypted payload are given with a key (see `equality.digest`).
    """
    if not envelope.flags & GIVEN_ID:
        return NO_DIGEST
    head, version = (envelope.name, envelope.entity_type, envelope.entity_id), VERSION.of(envelope.options)
    return digest_of_head(head, version) if payload is None else digest(head, payload, version, key)


def is_marked(envelope: WireEnvelope) -> bool:
    """Return whether a mark remembers its command id: it was given, its result is to be kept, or its caller waits for the reply.

    Only the producer can repeat a generated id, and the server answers that by the number of its batch.
    """
    return bool(envelope.inbox) or envelope.flags & (GIVEN_ID | IN_DISPATCH) == GIVEN_ID


def waiting_mark(digest: bytes, mailbox: str) -> bytes:
    """Return the mark of a command that waits in a mailbox."""
    return _WAITING + digest + mailbox.encode()


def settled_mark(envelope: WireEnvelope, reply: bytes) -> bytes:
    """Return the mark of a settled command."""
    return _SETTLED + digest_of(envelope) + reply


def digest_in(mark: bytes) -> bytes:
    """Return the digest of a marked command."""
    return mark[1:_PREFIX]


def with_known_digest(mark: bytes, before: bytes | None) -> bytes:
    """Return a mark with the digest of the one that is there, if its own has none of the fields; `lua/shared/keep_digest.lua` does the same."""
    if mark[1] == 0 or any(mark[_PREFIX - 4 : _PREFIX]) or before is None or len(before) < _PREFIX or before[1] == 0:
        return mark
    return mark[:1] + digest_in(before) + mark[_PREFIX:]


def mailbox_in(mark: bytes | None) -> str | None:
    """Return the mailbox where a command waits; None if it is settled or has no mark."""
    return stored_text(mark[_PREFIX:]) if mark is not None and mark[:1] == _WAITING else None


def is_settled(mark: bytes | None) -> bool:
    """Return whether a mark is that of a settled command."""
    return mark is not None and mark[:1] == _SETTLED


def reply_in(mark: bytes | None) -> bytes | None:
    """Return the reply in the mark of a settled command; None while it waits, or if none was kept."""
    return mark[_PREFIX:] if mark is not None and is_settled(mark) and len(mark) > _PREFIX else None
