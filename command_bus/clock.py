"""Two clocks, two names: `wall_ms` is stored and shown, `mono` is subtracted. Leases use neither, but the server's clock.

Durations and moments that an application gives are checked here, too.
"""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime, timedelta
from typing import cast

from command_bus.errors import InvalidCommand, InvalidSettings
from command_bus.spelling import shown

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

mono = time.monotonic
"""Seconds that never jump, for durations and local deadlines."""


def wall_ms() -> int:
    """Return the milliseconds since the epoch by this machine's wall clock, for people and records."""
    return time.time_ns() // 1_000_000


LONGEST = 1_000_000_000.0
"""The longest duration in seconds that is accepted anywhere: 31 years."""


def duration_fault(value: object, *, zero: bool = False) -> str | None:
    """Return what is wrong with a duration, for a message that names it, or None.

    Args:
        value: What was given.
        zero: Whether it may be 0.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not (0 <= value < math.inf) or not (value or zero):
        return f"is a {'non-negative' if zero else 'positive'} number of seconds, not {shown(value)}"
    return None if value <= LONGEST else f"is at most {LONGEST:,.0f} seconds (31 years)"


def checked_seconds(what: str, value: float, *, zero: bool = False) -> float:
    """Return a duration that an argument gives.

    Raises:
        InvalidCommand: It is not a number of seconds, or too long.
    """
    fault = duration_fault(value, zero=zero)
    if fault is not None:
        raise InvalidCommand(f"{what} {fault}")
    return float(value)


def milliseconds_of(name: str, at: object) -> int:
    """Return a moment in ms since the epoch.

    Raises:
        InvalidSettings: It is no datetime, or one without a time zone.
    """
    if not isinstance(at, datetime) or at.utcoffset() is None:
        what = "a datetime" if not isinstance(at, datetime) else "a datetime with a time zone"
        raise InvalidSettings(
            f"{name}: {what}, for example datetime(2026, 12, 1, 9, tzinfo=ZoneInfo('Europe/Berlin')), not {shown(at)}"
        )
    return (at - _EPOCH) // timedelta(milliseconds=1)


def time_of(ms: int) -> datetime:
    """Return the moment of a time in ms since the epoch, in UTC."""
    return _EPOCH + timedelta(milliseconds=ms)


_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]+)")
_LONG_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_UNITS = {word: seconds for unit, seconds in _LONG_UNITS.items() for word in (unit, unit + "s", unit[0])}


def seconds_in(text: str) -> float | None:
    """Return the seconds of a duration as people write it: `90s`, `30m`, `2 h`, `7 days`; None if it is none."""
    found = _DURATION.fullmatch(text.strip().lower())
    return None if found is None or found[2] not in _UNITS else float(found[1]) * _UNITS[found[2]]


def duration_ms(value: object) -> int:
    """Return the ms of a duration as people give it: `"30 days"`, or a number of seconds; 1 at least.

    Raises:
        ValueError: It is none. The message says what it is instead, and goes behind the name of the argument.
    """
    seconds = seconds_in(value) if isinstance(value, str) else value
    if seconds is None:
        raise ValueError(f'is a time such as "30 days", "12 h" or "90 s", or a number of seconds, not {value!r}')
    if fault := duration_fault(seconds):
        raise ValueError(fault)
    return max(int(cast("float", seconds) * 1000), 1)


def format_duration(seconds: float | None) -> str:
    """Return a duration such as `0.4 s`, `12 s`, `5 min`, `3 h 20 min` or `4 d`; a dash for None."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 2 * 86400:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
    return f"{seconds / 86400:.0f} d"
