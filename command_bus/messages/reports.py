"""Reports of handlers on their progress: checks without I/O, and the protocol of what stores it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from command_bus.errors import BadReport, InvalidCommand

MOST_BYTES = 1000
"""Of one note or one entry of the log."""


class Reports(Protocol):
    """Stores what one run of a handler reports. Safe in any thread."""

    def progress(self, share: float, note: str) -> None:
        """Note how far it is.

        Raises:
            HandlerOver: The run is over.
        """
        ...

    def log(self, text: str, facts: Mapping[str, Any]) -> None:
        """Append an entry.

        Raises:
            BadReport: It is too long, or has values that are no plain data.
            HandlerOver: The run is over.
        """
        ...


def checked_share(share: object) -> float:
    """Return a share of the work.

    Raises:
        BadReport: It is no number from 0 to 1.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise BadReport(f"progress is a share of the work, a number from 0 to 1, not {str(share)[:50]!r}")
    return float(share)


def checked_text(what: str, text: object) -> str:
    """Return a text that is short enough.

    Raises:
        BadReport: It is no text, cannot be encoded, or is too long.
    """
    if not isinstance(text, str):
        raise BadReport(f"{what} is text, not {type(text).__name__}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise BadReport(f"{what} has characters that are no text (lone surrogates)") from None
    if size > MOST_BYTES:
        raise BadReport(f"{what} has {size:,} bytes: at most {MOST_BYTES:,}")
    return text


@dataclass(frozen=True, slots=True)
class ProgressInfo:
    """The progress of a command.

    Attributes:
        share: How much of its work is done, from 0 to 1, as its handler says; None if it says nothing (any more).
        note: What it does.
        at_ms: When it said so, by the server's clock, about.
        outcome: Once the command is settled: as `CommandStatus.outcome`. Empty before.
    """

    share: float | None = None
    note: str = ""
    at_ms: int | None = None
    outcome: str = ""


OnProgress = Callable[[ProgressInfo], object]
OnDone = Callable[[int], object]
"""Hears how many an act on many has changed so far."""
"""Hears of a call's progress. What it returns is awaited, if it can be; of a `SyncCommandBus` it is a plain function."""


def checked_listener(listener: object, *, plain: bool = False) -> None:
    """Check what is to hear of a call's progress.

    Args:
        listener: What was given.
        plain: Whether nothing is there to await it.

    Raises:
        InvalidCommand: It cannot be called, or not from here.
    """
    if not callable(listener):
        raise InvalidCommand(f"on_progress takes a function of one ProgressInfo, not {type(listener).__name__}")
    if plain and (inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(getattr(listener, "__call__", None))):  # noqa: B004
        raise InvalidCommand("on_progress is a coroutine function, which a SyncCommandBus cannot await: give a plain function")
