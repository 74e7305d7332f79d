"""Replies: the outcome of a command as a value, its bytes, and the typed result or error made of it.

    [version, command_id, kind, …body]

A worker packs the outcome once, in the step that settles the command; the server pushes and stores the bytes without reading
them. Packing never fails: of an outcome that cannot be packed in full, all that is possible is packed, because its caller waits. Texts of
handlers and exceptions are capped, and lone surrogates in them escaped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from command_bus.errors import (
    BadResult,
    BadSignature,
    CallCycle,
    CommandBusError,
    CommandCancelled,
    CommandExpired,
    CommandFailed,
    CommandInterrupted,
    CommandOutcomeError,
    CommandRejected,
    InvalidCommand,
    NoHandler,
)
from command_bus.serialization.limits import DEFAULT_LIMITS, PayloadLimits, Undecodable, UnsupportedVersion, capped, expanded
from command_bus.serialization.models import ReplyCodec
from command_bus.serialization.msgpack import pack, reason_of, unpack
from command_bus.serialization.native import Packer, unpackb

REPLY_VERSION = 1
MAX_TEXT = 8 * 1024
"""Bytes of one text in a reply; longer ones are cut."""
BEGUN = "begun"
"""The code of a cancelled command that had started: it may have done something."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Completed:
    """The handler returned; `value` is its packed reply, or what compression and then a cipher made of it.

    Of an encrypted one, `encrypted` is name, entity type and entity id of its command, to which the cipher has bound it.
    """

    value: bytes
    encrypted: tuple[str, str | None, str | None] | None = None
    compressed: bool = False


@dataclass(frozen=True, slots=True)
class Rejected:
    """The handler refused with `Reject`."""

    message: str
    code: str = "rejected"
    details: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised, for the last time."""

    error_type: str
    error_message: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Its worker was lost or stopped while it ran, and it must not run again."""

    message: str


@dataclass(frozen=True, slots=True)
class Expired:
    """Its deadline passed before it was started."""

    message: str


@dataclass(frozen=True, slots=True)
class Unhandled:
    """No worker knows it. Of one that had `begun` an earlier start may have done something."""

    message: str
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Invalid:
    """It cannot be read, or its model refuses it. Of one that had `begun` an earlier start may have done something."""

    message: str
    begun: bool = False


@dataclass(frozen=True, slots=True)
class BadReply:
    """It completed, but its result cannot be sent."""

    message: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """It was taken out of line before it ran to an end; `superseded`, if another one took its place; `begun`, if it may have done something."""

    message: str
    code: str = "cancelled"


@dataclass(frozen=True, slots=True)
class Forged:
    """Its signature is missing or wrong. Of one that had `begun` an earlier start may have done something."""

    message: str
    begun: bool = False


Outcome: TypeAlias = Completed | Rejected | Failed | Interrupted | Expired | Unhandled | Invalid | BadReply | Cancelled | Forged

_COMPLETED, _REJECTED, _FAILED, _CANCELLED, _COMPRESSED = 0, 1, 2, 8, 10
_WITH_MESSAGE: dict[int, type[Interrupted | Expired | Unhandled | Invalid | BadReply | Cancelled | Forged]] = {
    3: Interrupted,
    4: Expired,
    5: Unhandled,
    6: Invalid,
    7: BadReply,
    8: Cancelled,
    9: Forged,
}
_ERRORS: dict[type[Any], type[CommandOutcomeError]] = {
    Interrupted: CommandInterrupted,
    Expired: CommandExpired,
    Unhandled: NoHandler,
    BadReply: BadResult,
    Forged: BadSignature,
}
_MAY_HAVE_BEGUN: dict[int, type[Unhandled | Invalid | Forged]] = {5: Unhandled, 6: Invalid, 9: Forged}
_CALL_CYCLE = f"{CallCycle.__module__}.{CallCycle.__qualname__}"
_KINDS = {kind: number for number, kind in _WITH_MESSAGE.items()}


def cancelled_midway(reason: str, *, durable: bool) -> Cancelled:
    """Return the outcome of a command that had started, and was cancelled. A durable one has undone what it did."""
    text = f"{reason}; it had started, and may have run partly or fully"
    return Cancelled(text) if durable else Cancelled(text, BEGUN)


def pack_reply(command_id: str, outcome: Outcome) -> bytes:
    """Return the bytes of a reply. Never fails on an outcome: details that cannot be packed are left out, and the message says so."""
    match outcome:
        case Completed():
            kind = _COMPRESSED if outcome.compressed else _COMPLETED
            body: tuple[Any, ...] = (kind, outcome.value, outcome.encrypted) if outcome.encrypted else (kind, outcome.value)
        case Rejected():
            body = (_REJECTED, *_rejection(outcome))
        case Failed():
            body = (_FAILED, capped(outcome.error_type, MAX_TEXT), capped(outcome.error_message, MAX_TEXT), outcome.attempts)
        case Cancelled() if outcome.code != "cancelled":
            body = (_CANCELLED, capped(outcome.message, MAX_TEXT), capped(outcome.code, MAX_TEXT))
        case Unhandled() | Invalid() | Forged() if outcome.begun:
            body = (_KINDS[type(outcome)], capped(outcome.message, MAX_TEXT), 1)
        case _:
            body = (_KINDS[type(outcome)], capped(outcome.message, MAX_TEXT))
    data: bytes = Packer(buf_size=512).pack((REPLY_VERSION, command_id, *body))
    return data


def unpack_reply(data: bytes, limits: PayloadLimits = DEFAULT_LIMITS) -> tuple[str, Outcome]:
    """Return the command id and its outcome. The value of a completed command stays packed, and its size is not checked here.

    One that was compressed is expanded, if it is no larger than the limits allow; an encrypted one is expanded when it is decrypted.

    Raises:
        UnsupportedVersion: A later version wrote it.
        Undecodable: It is no reply. Both errors carry the command id if it can be read.
    """
    try:
        parts = unpackb(data, max_array_len=64)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - msgpack raises many types on bad bytes
        raise Undecodable(f"a reply: {reason_of(error)}", command_id=reply_id(data) or None) from None
    if type(parts) is list and len(parts) > 3:
        version, command_id, kind, *body = parts
        if type(version) is int and version > REPLY_VERSION:
            raise UnsupportedVersion(version, command_id=reply_id(data) or None)
        if version == REPLY_VERSION and type(command_id) is str and type(kind) is int:
            outcome = _outcome(kind, body, limits)
            if outcome is not None:
                return command_id, outcome
    raise Undecodable("a reply of an unknown kind or shape", command_id=reply_id(data) or None)


def reply_id(data: bytes) -> str:
    """Return the command id of a reply without reading the rest, which may be large; empty if there is none."""
    start, end = _id_place(data)
    return data[start:end].decode("utf-8", "replace")


def is_completed(data: bytes) -> bool:
    """Return whether a reply, of which the first bytes suffice, is that of a completed command."""
    _, end = _id_place(data)
    return 0 < end < len(data) and data[1] == REPLY_VERSION and data[end] in (_COMPLETED, _COMPRESSED)


def _id_place(data: bytes) -> tuple[int, int]:
    """Return where the command id of a reply begins and ends; twice 0 if there is none."""
    kind = data[2] if len(data) > 3 else 0  # after the header of the array and the version, a byte each
    if 0xA0 <= kind <= 0xBF:
        return 3, 3 + (kind & 0x1F)
    if kind == 0xD9:
        return 4, 4 + data[3]
    if kind == 0xDA:
        return 5, 5 + int.from_bytes(data[3:5], "big")
    return 0, 0


def raise_or_value(outcome: Outcome, codec: ReplyCodec[R], command_id: str, limits: PayloadLimits = DEFAULT_LIMITS) -> R:
    """Return the typed value of a completed command, or raise the error of another outcome.

    Raises:
        CommandOutcomeError: One of its subclasses, with the command id.
        CallCycle: Its handler failed since a call of it, or of one that it waited for, led back to an entity that waits.
        InvalidCommand: The worker could not read the command.
    """
    if isinstance(outcome, Completed):
        if outcome.encrypted:
            raise BadResult("the reply is encrypted, and this bus has no cipher", command_id=command_id)
        try:
            return codec.decode(outcome.value, limits)
        except BadResult as error:
            error.command_id = command_id
            raise
    if isinstance(outcome, Failed) and outcome.error_type == _CALL_CYCLE:  # as whose call closes the circle
        raise CallCycle(outcome.error_message)
    raise _error_of(outcome, command_id)


def outcome_code(outcome: Outcome) -> str:
    """Return the name of an outcome: `completed`, `rejected`, or the `code` of the error that it is raised as."""
    match outcome:
        case Completed():
            return "completed"
        case Rejected():
            return "rejected"
        case Cancelled(_, code) if code == BEGUN:
            return "cancelled"
        case _:
            return _error_of(outcome, "").code


def _error_of(outcome: Outcome, command_id: str) -> CommandBusError:
    match outcome:
        case Rejected(message, code, details):
            return CommandRejected(message, code=code, details=details, command_id=command_id)
        case Failed(error_type, text, attempts):
            times = "once" if attempts == 1 else f"{attempts} times"
            message = f"{error_type}: {text} (tried {times}; the command is in the dead letters)"
            return CommandFailed(message, error_type=error_type, error_message=text, attempts=attempts, command_id=command_id)
        case Invalid(message):
            return InvalidCommand(message)
        case Cancelled(message, code):
            return CommandCancelled(message, code=code, command_id=command_id)
        case Completed():
            return BadResult("a completed command has a value, not an error", command_id=command_id)
        case _:
            return _ERRORS[type(outcome)](outcome.message, command_id=command_id)


def _rejection(outcome: Rejected) -> tuple[str, str, bytes]:
    """Return message, code and packed details."""
    message = capped(outcome.message, MAX_TEXT)
    try:
        details = pack(outcome.details)
    except InvalidCommand as error:
        message = capped(f"{message} (its details cannot be sent: {error.message})", MAX_TEXT)
        details = pack({})
    return message, capped(outcome.code, MAX_TEXT), details


def _is_encrypted(found: Any) -> bool:
    return type(found) is list or found == 1  # of an earlier release: that cannot be read


def _names_in(found: Any) -> tuple[str, str | None, str | None] | None:
    """Return the names to which an encrypted reply is bound; None if it is not encrypted."""
    match found:
        case [str(name), str() | None as entity_type, str() | None as entity_id]:
            return name, entity_type, entity_id
        case _:
            return None


def _outcome(kind: int, body: list[Any], limits: PayloadLimits) -> Outcome | None:
    """Return the outcome, or None if the body is not that of its kind. Elements that a later version appends are ignored."""
    if kind == _COMPLETED and type(body[0]) is bytes:  # first and without `match`, which takes 2 µs
        if len(body) < 2 or not _is_encrypted(body[1]):
            return Completed(body[0])
        return Completed(body[0], names) if (names := _names_in(body[1])) else None
    if kind == _COMPRESSED and type(body[0]) is bytes:
        if len(body) < 2 or not _is_encrypted(body[1]):
            return Completed(expanded(body[0], limits.max_bytes))
        return Completed(body[0], names, True) if (names := _names_in(body[1])) else None
    match kind, body:
        case 1, [str(message), str(code), bytes(packed), *_]:
            details = unpack(packed, limits)
            return Rejected(message, code, details) if type(details) is dict else None
        case 2, [str(error_type), str(text), int(attempts), *_]:
            return Failed(error_type, text, attempts)
        case 8, [str(message), str(code), *_]:
            return Cancelled(message, code)
        case 5 | 6 | 9, [str(message), 1, *_]:
            return _MAY_HAVE_BEGUN[kind](message, begun=True)
        case _, [str(message), *_] if kind in _WITH_MESSAGE:
            return _WITH_MESSAGE[kind](message)
        case _:
            return None
