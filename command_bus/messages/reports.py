"""Reports of handlers on their progress: checks without I/O, and the protocol of what stores it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from command_bus.errors import BadReport

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
