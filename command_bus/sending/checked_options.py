"""Options of a message that are checked before it is built."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from command_bus.clock import checked_seconds, milliseconds_of, wall_ms
from command_bus.errors import InvalidCommand, InvalidSettings
from command_bus.messages.message import MAX_COMMAND_ID_BYTES

__all__ = ["checked_headers", "checked_id", "checked_ms", "moment_ms"]


def checked_id(command_id: str | UUID) -> str:
    """Return a command id as text.

    Raises:
        InvalidCommand: It is empty, too long or no text.
    """
    text = str(command_id) if isinstance(command_id, UUID) else command_id
    if not isinstance(text, str) or not text:
        raise InvalidCommand(f"a command id is a non-empty string or a UUID, not {command_id!r}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidCommand("the command id has lone surrogates, which UTF-8 cannot carry") from error
    if size > MAX_COMMAND_ID_BYTES:
        raise InvalidCommand(f"a command id may have {MAX_COMMAND_ID_BYTES} bytes, this one has {size}: use a digest of it")
    return text


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers of one's own.

    Raises:
        InvalidCommand: They are not text by text.
    """
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidCommand(f"headers are text: {name!r} has {type(value).__name__}")
    return dict(headers)


def moment_ms(at: datetime, delay: float) -> int:
    """Return a moment in milliseconds.

    Raises:
        InvalidCommand: It is none, or there is a delay, too.
    """
    if delay:
        raise InvalidCommand(f"delay={delay!r} and at={at!r}: give one of them")
    try:
        ms = milliseconds_of("at", at)
    except InvalidSettings as error:
        raise InvalidCommand(error.message) from None
    checked_ms("at, from now,", max(ms - wall_ms(), 0) / 1000, zero=True)
    return ms


def checked_ms(what: str, value: float, *, zero: bool = False) -> int:
    """Return seconds as milliseconds: at least one, or none with `zero`.

    Raises:
        InvalidCommand: They are no duration.
    """
    return max(int(checked_seconds(what, value, zero=zero) * 1000), 0 if zero else 1)
