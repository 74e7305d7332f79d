"""Reads envelopes: from bytes that anyone may have written to a `WireEnvelope`, or to an error that says as much of them as can be read."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from command_bus.serialization.limits import COMPRESSED, DEFAULT_LIMITS, Limits, Undecodable, UnsupportedVersion, expanded
from command_bus.serialization.msgpack import reason_of
from command_bus.serialization.native import Unpacker, unpackb
from command_bus.serialization.wire_envelope import (
    CRITICAL,
    ENCRYPTED,
    ENTITY_ID_LIMIT,
    ENVELOPE_VERSION,
    HEAD_LIMIT,
    HEADERS_LIMIT,
    KNOWN_OPTIONS,
    OPTIONS,
    SHORTEST,
    WireEnvelope,
)

_LONGEST = 13
_NAME = 2
_FLAGS = 6
_INBOX = 8
_BEHIND_HEADERS = 12
_NO_TAIL = [0, None, None, None, None, None, None]


def unpack_envelope(data: bytes, limits: Limits = DEFAULT_LIMITS) -> WireEnvelope:
    """Return the envelope that was packed; its payload is expanded if it travelled compressed, and not read.

    Raises:
        UnsupportedVersion: It was written by a later version, or has a critical flag that is not known.
        Undecodable: It is no envelope, or its payload cannot be expanded within the limits.
            Both errors carry the command id, name and inbox as far as they can be read.
    """
    if len(data) > limits.max_bytes + HEAD_LIMIT + HEADERS_LIMIT + ENTITY_ID_LIMIT:
        raise salvage(data, f"an envelope of {len(data)} bytes, the limit of its payload is {limits.max_bytes}")
    try:
        parts = unpackb(data, max_array_len=64)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - msgpack raises many types on bad bytes
        raise salvage(data, reason_of(error)) from None
    if type(parts) is not list or not parts or type(parts[0]) is not int:
        raise salvage(data, "not an envelope")
    options = None
    if len(parts) > _FLAGS and type(parts[_FLAGS]) is int and parts[_FLAGS] >= CRITICAL and parts[0] == ENVELOPE_VERSION:
        options = _take_options(data, parts)
    if parts[0] != ENVELOPE_VERSION or not SHORTEST <= len(parts) <= _LONGEST:
        raise salvage(data, f"an envelope of {len(parts)} elements", version=parts[0])
    envelope = _read(parts)
    if envelope is None:
        raise salvage(data, "an envelope with an element of the wrong type")
    envelope.options = options
    if options and COMPRESSED in options:
        _expand(data, envelope, options, limits)
    return envelope


def _expand(data: bytes, envelope: WireEnvelope, options: dict[str, Any], limits: Limits) -> None:
    """Expand the payload of an envelope; one that is encrypted is expanded when it is decrypted.

    Raises:
        Undecodable: It is damaged, or larger than the limits allow.
    """
    del options[COMPRESSED]
    envelope.options, envelope.compressed = options or None, True
    if envelope.flags & ENCRYPTED:
        return
    try:
        envelope.payload = expanded(envelope.payload, limits.max_bytes)
    except Undecodable as error:
        raise salvage(data, error.reason) from None


def _take_options(data: bytes, parts: list[Any]) -> dict[str, Any]:
    """Take the options out of the elements of an envelope that has critical flags.

    Raises:
        UnsupportedVersion: A critical flag or an option is not known.
        Undecodable: There are no options, or one is not what it may be.
    """
    unknown = parts[_FLAGS] // CRITICAL * CRITICAL & ~OPTIONS
    if unknown:
        raise _of_later_release(data, flags=unknown)
    options = parts.pop(_BEHIND_HEADERS) if len(parts) > _BEHIND_HEADERS else None
    if type(options) is not dict or not options or not all(type(key) is str for key in options):
        raise salvage(data, "an envelope whose options are missing")
    if strange := sorted(options.keys() - KNOWN_OPTIONS.keys()):
        raise _of_later_release(data, options=tuple(strange))
    for key, value in options.items():
        if not KNOWN_OPTIONS[key](value):
            raise salvage(data, f"an envelope whose option {key!r} is of the wrong type")
    return options


def _of_later_release(data: bytes, *, flags: int = 0, options: tuple[str, ...] = ()) -> UnsupportedVersion:
    head = salvage(data, "")
    return UnsupportedVersion(
        ENVELOPE_VERSION, flags=flags, options=options, command_id=head.command_id, name=head.name, inbox=head.inbox
    )


def salvage(data: bytes, reason: str, *, version: int = ENVELOPE_VERSION) -> Undecodable:
    """Return the error for a bad envelope, with all that can be read of it, so that its caller need not wait for a timeout."""
    elements: list[Any] = []
    unpacker = Unpacker(max_buffer_size=max(len(data), 1), max_array_len=64)
    with suppress(Exception):  # cut short or damaged from there on; what was read before counts
        unpacker.feed(data)
        elements.extend(unpacker.unpack() for _ in range(min(unpacker.read_array_header(), _INBOX + 1)))
    command_id, name, inbox = (_text_at(elements, index) for index in (1, _NAME, _INBOX))
    if version > ENVELOPE_VERSION:
        return UnsupportedVersion(version, command_id=command_id, name=name, inbox=inbox)
    return Undecodable(reason, command_id=command_id, name=name, inbox=inbox)


def _read(parts: list[Any]) -> WireEnvelope | None:
    """Return the envelope if every element has its type. Spelled out, because a loop over a table takes three times as long."""
    parts += _NO_TAIL[len(parts) - SHORTEST :]
    (
        _,
        command_id,
        name,
        entity_type,
        entity_id,
        payload,
        flags,
        ttl_ms,
        inbox,
        correlation_id,
        causation_id,
        headers,
        signature,
    ) = parts
    if (
        type(command_id) is str
        and command_id
        and type(name) is str
        and type(payload) is bytes
        and ((type(entity_id) is str and type(entity_type) is str) or (entity_id is None and entity_type is None))
        and (type(flags) is int and flags >= 0)
        and (ttl_ms is None or (type(ttl_ms) is int and ttl_ms >= 0))
        and (inbox is None or type(inbox) is str)
        and (correlation_id is None or type(correlation_id) is str)
        and (causation_id is None or type(causation_id) is str)
        and (headers is None or _is_text_map(headers))
        and (signature is None or type(signature) is bytes)
    ):
        return WireEnvelope(
            command_id,
            name,
            entity_type,
            entity_id,
            payload,
            flags,
            ttl_ms,
            inbox,
            correlation_id,
            causation_id,
            headers,
            signature,
        )
    return None


def names_of(packed: bytes) -> tuple[str, str, str, str]:
    """Return command id, wire name, entity type and entity id as an event quotes them from an envelope; empty where there is none."""
    unpacker = Unpacker(unicode_errors="replace")
    found: list[str] = []
    with suppress(ValueError, TypeError):
        unpacker.feed(packed)
        found = [name if type(name) is str else "" for name in unpacker]
    command_id, name, entity_type, entity_id, *_ = [*found, "", "", "", ""]
    return command_id, name, entity_type, entity_id


def _is_text_map(headers: Any) -> bool:
    return type(headers) is dict and all(type(key) is str and type(value) is str for key, value in headers.items())


def _text_at(elements: list[Any], index: int) -> str | None:
    value = elements[index] if index < len(elements) else None
    return value if type(value) is str and 0 < len(value) <= HEAD_LIMIT else None
