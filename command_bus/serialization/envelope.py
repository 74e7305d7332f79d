"""The envelope: what travels with a command's payload. An array, so that no field name is repeated per command.

    [version, command_id, name, entity_type, entity_id, payload, flags, ttl_ms, inbox, correlation_id, causation_id, headers, signature]

With the flag `OPTIONS` a map of options stands between the headers and the signature.

The payload is a map of its own, packed before and carried as opaque bytes: routing and replay never decode it. Trailing defaults
are left out, so a plain dispatch has six elements. Later versions keep the places of `command_id`, `name` and `inbox`, so that
an older worker can answer a caller that it does not understand the command. Only type and size of names and ids are checked here:
handlers are found in a registry only, and the code that writes to `inbox` checks that it is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from command_bus.errors import InvalidCommand
from command_bus.serialization.envelope_options import ACROSS, COMPRESSION, KNOWN_OPTIONS, OTHERS
from command_bus.serialization.limits import (
    DEFAULT_LIMITS,
    ZLIB,
    PayloadLimits,
    Undecodable,
    UnsupportedVersion,
    compressed,
    expanded,
)
from command_bus.serialization.msgpack import reason_of
from command_bus.serialization.native import Packer, Unpacker, unpackb

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
        signature: Signs all elements before it, as received; packing signs again.
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

    @property
    def dispatched_id(self) -> str:
        """The id under which its sender knows it: of a part of a command over several shards that of the whole."""
        across = ACROSS.of(self.options)
        return self.command_id if across is None else across.command_id

    @property
    def first_entity(self) -> tuple[str | None, str | None]:
        """Type and id of the first entity of the whole."""
        across = ACROSS.of(self.options)
        return (self.entity_type, self.entity_id) if across is None else across.entities[0]

    @property
    def others(self) -> Sequence[tuple[str, str]]:
        """The further entities of the whole, with types."""
        across = ACROSS.of(self.options)
        return OTHERS.of(self.options) if across is None else across.entities[1:]


Sign = Callable[[bytes], bytes]
"""Gives the signature of an envelope's bytes, at most 255 bytes long."""

_SHORT_TEXT = [bytes([0xA0 | size]) for size in range(32)]


def pack_envelope(envelope: WireEnvelope, sign: Sign | None = None) -> bytes:
    """Return the envelope's bytes, signed if there is a `sign`.

    Raises:
        InvalidCommand: The head or the headers are too large or not text.
    """
    headers = envelope.headers
    if headers:
        _check_headers(headers)
    if envelope.compressed:
        envelope = shrunk(envelope)
    parts = [
        ENVELOPE_VERSION,
        envelope.command_id,
        envelope.name,
        envelope.entity_type,
        envelope.entity_id,
        envelope.payload,
        *(_tail(envelope) if sign is None else _whole_tail(envelope)),
    ]
    try:
        data: bytes = Packer(buf_size=512).pack(parts)
    except (UnicodeEncodeError, TypeError, OverflowError, ValueError) as error:
        raise InvalidCommand(_head_fault(envelope)) from error
    if len(data) - len(envelope.payload) > HEAD_LIMIT:
        _check_head(envelope, len(data))
    return data if sign is None else signed_array(data, sign)


def shrunk(envelope: WireEnvelope) -> WireEnvelope:
    """Return an envelope whose payload is as it travels: compressed if that was asked for and saves something."""
    smaller = compressed(envelope.payload) if envelope.compressed else None
    if smaller is None:
        return replace(envelope, compressed=False)
    return replace(envelope, payload=smaller, options=COMPRESSION.replaced(envelope.options, ZLIB), compressed=False)


class EnvelopeTemplate:
    """Packs envelopes that differ in command id, entity id and payload only, as `pack_envelope` would, in a fifth of the time.

    Args:
        template: All else.
        sign: As for `pack_envelope`.
        compress_above: Payloads of more bytes are compressed, if that saves something; None: none is.

    Raises:
        InvalidCommand: As `pack_envelope`.
    """

    __slots__ = ("_above", "_head", "_name", "_sign", "_smaller", "_tail", "_template")

    def __init__(self, template: WireEnvelope, sign: Sign | None = None, compress_above: int | None = None) -> None:
        pack_envelope(template)  # checks it
        self._above = compress_above
        self._smaller: EnvelopeTemplate | None = None
        if compress_above is not None:
            self._smaller = EnvelopeTemplate(replace(template, options=COMPRESSION.replaced(template.options, ZLIB)), sign)
        tail = _tail(template) if sign is None else _whole_tail(template)
        pack = Packer().pack
        self._sign = sign
        self._template = template
        self._head: bytes = bytes([0x90 | (SHORTEST + len(tail) + (sign is not None))]) + pack(ENVELOPE_VERSION)
        self._name: bytes = pack(template.name) + pack(template.entity_type)
        self._tail: bytes = b"".join(pack(part) for part in tail)

    def pack(self, command_id: bytes, entity_id: bytes, payload: bytes) -> bytes:
        """Return the envelope; command and entity id are MessagePack already (see `packed_text`)."""
        size = len(payload)
        if self._smaller is not None and (smaller := compressed(payload, self._above)) is not None:
            return self._smaller.pack(command_id, entity_id, smaller)
        if size < 0x100:
            start = b"\xc4" + size.to_bytes(1, "big")
        elif size < 0x10000:
            start = b"\xc5" + size.to_bytes(2, "big")
        else:
            start = b"\xc6" + size.to_bytes(4, "big")
        data = b"".join((self._head, command_id, self._name, entity_id, start, payload, self._tail))
        return data if self._sign is None else _signed(data, self._sign)

    @property
    def constants(self) -> tuple[bytes, bytes, bytes]:
        """What stands before the command id, between it and the entity id, and behind the payload; see `signed`."""
        return self._head, self._name, self._tail

    def signed(self, envelopes: list[bytes]) -> list[bytes]:
        """Return the envelopes, signed if there is a `sign`."""
        sign = self._sign
        return envelopes if sign is None else [_signed(data, sign) for data in envelopes]

    def packer(self) -> Callable[[str, str, bytes], bytes] | None:
        """Return a function that packs many envelopes in a row, in half of `pack`'s time; None if they are signed or may be compressed.

        It does not check the head: the ids that it is given are short.
        """
        if self._sign is not None or self._smaller is not None:
            return None
        pack, name, entity_type, tail = (
            Packer(buf_size=512).pack,
            self._template.name,
            self._template.entity_type,
            _tail(self._template),
        )

        def packed(command_id: str, entity_id: str, payload: bytes) -> bytes:
            data: bytes = pack((ENVELOPE_VERSION, command_id, name, entity_type, entity_id, payload, *tail))
            return data

        return packed


def packed_text(text: str) -> bytes:
    """Return the text as MessagePack; for short texts in half of a packer's time."""
    data = text.encode()
    size = len(data)
    if size < len(_SHORT_TEXT):
        return _SHORT_TEXT[size] + data
    packed: bytes = Packer(buf_size=64).pack(text)
    return packed


def _tail(envelope: WireEnvelope) -> tuple[Any, ...]:
    """Return the elements behind the payload, without trailing defaults."""
    tail = _whole_tail(envelope)
    length = len(tail)
    while length > 1 and tail[length - 1] is None:
        length -= 1
    return tail[:length] if length > 1 or tail[0] else ()


def _whole_tail(envelope: WireEnvelope) -> tuple[Any, ...]:
    """Return the elements behind the payload, with all defaults: options or a signature come behind them."""
    flags, options = envelope.flags & ~OPTIONS, envelope.options  # it may have had options before
    whole = (flags, envelope.ttl_ms, envelope.inbox, envelope.correlation_id, envelope.causation_id, envelope.headers or None)
    return (flags | OPTIONS, *whole[1:], options) if options else whole


def signed_array(data: bytes, sign: Sign) -> bytes:
    """Return a packed array of at most fourteen elements with one more: the signature of what stands before it."""
    return _signed(bytes((data[0] + 1,)) + data[1:], sign)


def _signed(data: bytes, sign: Sign) -> bytes:
    signature = sign(data)
    return b"".join((data, bytes((0xC4, len(signature))), signature))


def _check_headers(headers: dict[str, str]) -> None:
    for key, value in headers.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidCommand(f"headers: text by text; the value of {str(key)[:40]!r} is of type {type(value).__name__}")
    try:
        size = len(Packer().pack(headers))
    except ValueError as error:
        raise InvalidCommand("headers: text with lone surrogates, which UTF-8 cannot carry") from error
    if size > HEADERS_LIMIT:
        raise InvalidCommand(f"headers: {size} bytes packed, the limit is {HEADERS_LIMIT}; send references instead of data")


def _check_head(envelope: WireEnvelope, size: int) -> None:
    """Subtract what has a limit of its own from the size of the packed envelope."""
    entity = len((envelope.entity_id or "").encode())
    if entity > ENTITY_ID_LIMIT:
        raise InvalidCommand(f"entity_id: {entity} bytes, the limit is {ENTITY_ID_LIMIT}; use a digest of it")
    headers = len(Packer().pack(envelope.headers)) if envelope.headers else 0
    head = size - len(envelope.payload) - entity - headers
    if head > HEAD_LIMIT:
        raise InvalidCommand(f"command and correlation ids take {head} bytes, the limit is {HEAD_LIMIT}: use digests of them")


def _head_fault(envelope: WireEnvelope) -> str:
    for field in ("command_id", "name", "entity_type", "entity_id", "inbox", "correlation_id", "causation_id"):
        value = getattr(envelope, field)
        if value is not None and not isinstance(value, str):
            return f"{field}: text, not {type(value).__name__}"
        try:
            (value or "").encode()
        except UnicodeEncodeError:
            return f"{field}: text with lone surrogates, which UTF-8 cannot carry"
    return "the envelope has a number beyond 64 bits or an element of the wrong type"


_LONGEST = 13
_NAME = 2
_FLAGS = 6
_INBOX = 8
_BEHIND_HEADERS = 12
_NO_TAIL = [0, None, None, None, None, None, None]


def unpack_envelope(data: bytes, limits: PayloadLimits = DEFAULT_LIMITS) -> WireEnvelope:
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
    if options and COMPRESSION.letter in options:
        _expand(data, envelope, limits)
    return envelope


def _expand(data: bytes, envelope: WireEnvelope, limits: PayloadLimits) -> None:
    """Expand the payload of an envelope; one that is encrypted is expanded when it is decrypted.

    Raises:
        Undecodable: It is damaged, or larger than the limits allow.
    """
    envelope.options, envelope.compressed = COMPRESSION.replaced(envelope.options, None), True
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
        if not KNOWN_OPTIONS[key].check(value):
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
        return WireEnvelope(*parts[1:])
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
