"""Times as people write them: an age, or a point in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from command_bus.cli.terminal import usage_error
from command_bus.clock import seconds_in

_LONGEST = 50 * 365 * 86400  # seconds; older than any dead letter


def parse_time(text: str | None) -> datetime | None:
    """Parse an age (`2h`) or a time in ISO format, which is local if it has no zone; None for None.

    Raises:
        typer.Exit: The text is neither.
    """
    if text is None:
        return None
    if (seconds := seconds_in(text)) is not None:
        return datetime.now(UTC) - timedelta(seconds=seconds) if seconds < _LONGEST else datetime.fromtimestamp(0, UTC)
    try:
        found = datetime.fromisoformat(text)
        found.timestamp()
    except (ValueError, OverflowError):
        raise usage_error(f"{text!r} is no age such as 30m, 2h or 7d, and no time such as 2026-11-21T10:00") from None
    return found


def parse_duration(text: str) -> float:
    """Parse a duration (`90s`, `2h`) into seconds.

    Raises:
        typer.Exit: The text is none.
    """
    seconds = seconds_in(text)
    if seconds is None or not 0 < seconds < _LONGEST:
        raise usage_error(f"{text!r} is no duration such as 90s, 30m, 2h or 7d")
    return seconds


def parse_moment(text: str) -> datetime:
    """Parse a time in ISO format, which is local if it has no zone.

    Raises:
        typer.Exit: The text is none.
    """
    try:
        found = datetime.fromisoformat(text)
        return found if found.tzinfo is not None else found.astimezone()
    except (ValueError, OverflowError, OSError):
        raise usage_error(f"{text!r} is no time such as 2026-12-01T09:00 or 2026-12-01T09:00+01:00") from None


def parse_end(until: str | None, duration: str | None) -> datetime | float | None:
    """Parse the options `--until` and `--for`; None if neither was given.

    Raises:
        typer.Exit: Both were given, or one is wrong.
    """
    if until is not None and duration is not None:
        raise usage_error("give --until or --for, not both")
    if until is not None:
        return parse_moment(until)
    return None if duration is None else parse_duration(duration)
