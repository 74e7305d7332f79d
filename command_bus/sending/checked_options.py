"""Options of a message that are checked before it is built."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from command_bus.clock import checked_seconds, milliseconds_of, wall_ms
from command_bus.errors import InvalidCommand, InvalidSettings
from command_bus.spelling import shown


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers of one's own.

    Raises:
        InvalidCommand: They are not text by text.
    """
    if not isinstance(headers, Mapping):
        raise InvalidCommand(f"headers are a mapping of text to text, not {shown(headers)}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidCommand(f"headers are text: {shown(name)} has {type(value).__name__}")
    return dict(headers)


def moment_ms(at: datetime, delay: float) -> int:
    """Return a moment in milliseconds.

    Raises:
        InvalidCommand: It is none, or there is a delay, too.
    """
    if delay:
        raise InvalidCommand(f"delay={shown(delay)} and at={shown(at)}: give one of them")
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
