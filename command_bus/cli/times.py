"""Times as people write them: an age, or a point in time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import typer

from command_bus.cli.exit_codes import ExitCode
from command_bus.cli.terminal import print_error

__all__ = ["parse_time"]

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_LONGEST = 50 * 365 * 86400  # seconds; older than any dead letter
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_time(text: str | None) -> datetime | None:
    """Parse an age (`2h`) or a time in ISO format, which is local if it has no zone; None for None.

    Raises:
        typer.Exit: The text is neither.
    """
    if text is None:
        return None
    if age := _AGE.fullmatch(text.strip()):
        seconds = float(age[1]) * _UNITS[age[2]]
        return datetime.now(UTC) - timedelta(seconds=seconds) if seconds < _LONGEST else datetime.fromtimestamp(0, UTC)
    try:
        found = datetime.fromisoformat(text)
        found.timestamp()
    except (ValueError, OverflowError):
        print_error(f"{text!r} is no age such as 30m, 2h or 7d, and no time such as 2026-11-21T10:00")
        raise typer.Exit(ExitCode.USAGE) from None
    return found
