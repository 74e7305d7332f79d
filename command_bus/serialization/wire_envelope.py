"""The parts of an envelope: its elements, flags and limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ENVELOPE_VERSION = 1

GIVEN_ID = 1
"""Flag: the command id is remembered for the whole dedup window, and the result with it: the id was given, or the result is to be kept."""
AT_MOST_ONCE = 2
"""Flag: an interrupted command is dead-lettered, never run again."""
IN_DISPATCH = 4
"""Flag: a dispatch remembers the command id while it is open, so that no mark of its own is kept."""
KEEP_OUTCOME = 8
"""Flag: its outcome is kept for the dispatch, which the correlation id names."""

ENCRYPTED = 16
"""Flag: the payload is what a cipher made of it (see `protection`)."""
CRITICAL = 1 << 16
"""The first critical flag. A reader that does not know one of these treats the envelope as one of a later version; lower ones it ignores."""
OPTIONS = CRITICAL
"""Critical flag: the envelope has options. Packing sets it."""

HEAD_LIMIT = 4 * 1024
"""Bytes of the packed envelope without payload, headers and entity id."""
HEADERS_LIMIT = 16 * 1024
"""Bytes of the packed headers."""
ENTITY_ID_LIMIT = 4 * 1024
"""Bytes of an entity id, as `canonical_entity_id` checks it."""

SHORTEST = 6
"""Elements of the shortest envelope."""


@dataclass(slots=True)
class WireEnvelope:
    """A command on the wire.

    Attributes:
        command_id: Identifies the command, for dedup and replies.
        name: The wire name of its class.
        entity_type: Type of the entity whose commands run in order; None, as `entity_id` then is, for an unordered command.
        entity_id: Id of that entity, as canonical text.
        payload: The packed map of its fields.
        flags: `GIVEN_ID`, `AT_MOST_ONCE`, `IN_DISPATCH`, `KEEP_OUTCOME`, `ENCRYPTED`, or several; unknown ones below `CRITICAL` are kept.
        ttl_ms: It expires so many milliseconds after it was accepted; None: never.
        inbox: The place where the caller waits for the reply, or None.
        correlation_id: Shared by all commands of one business transaction.
        causation_id: The command whose handler sent this one.
        headers: Text by text, for tracing and the like.
        signature: Signature of all elements before it, as received; packing signs again.
        options: What the sender asks for this command alone, by the letters of `KNOWN_OPTIONS`; None if nothing.
        compressed: Whether its payload travels compressed. Here it is not: packing compresses it, if that saves something, and reading
            expands it. Only an encrypted payload that was read is still as it travelled (see `Protection.payload`).
    """

    command_id: str
    name: str
    entity_type: str | None
    entity_id: str | None
    payload: bytes
    flags: int = 0
    ttl_ms: int | None = None
    inbox: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    headers: dict[str, str] | None = None
    signature: bytes | None = None
    options: dict[str, Any] | None = None
    compressed: bool = False
