"""Odd values: what is stored, and cannot be what it should be. Any client of a server may write anything.

Who reads stored values passes over an odd one, and goes on with the rest: what it concerns may suffer, and nothing else. Each is counted,
and one line a minute of each kind says so. What is passed over stays where it is, unless its reader says otherwise.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping

from command_bus.clock import mono
from command_bus.serialization.limits import printable

_log = logging.getLogger("command_bus.transport")
_SILENCE = 60.0
_FAR = 2**53
"""Whole numbers are exact up to here, also in scripts."""
_MOST = 200
"""Characters of one value in a line."""


class OddValues:
    """The odd values that this process has passed over. Any thread may report one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._told: dict[str, tuple[float, int]] = {}

    def pass_over(self, kind: str, value: object, why: object = "") -> None:
        """Count one; log it if no other of its kind was logged within a minute.

        Args:
            kind: The key's name, as `docs/wire-format.md` has it.
            value: What names it: it is logged, so it has no payload.
            why: What is wrong with it.
        """
        with self._lock:
            self._counts[kind] += 1
            now, count = mono(), self._counts[kind]
            until, told = self._told.get(kind, (now, 0))
            if now < until:
                return
            self._told[kind] = (now + _SILENCE, count)
        more = f" ({count - told - 1:,} more since the last line)" if count - told > 1 else ""
        reason = f": {printable(str(why))[:_MOST]}" if why else ""
        _log.warning("an odd value in %s is passed over: %s%s%s", kind, printable(_text(value))[:_MOST], reason, more)

    def counts(self) -> Mapping[str, int]:
        """Return how many were passed over, by kind; one that stays is counted each time that it is read."""
        with self._lock:
            return dict(self._counts)


def _text(value: object) -> str:
    """Return the begin of a value: it may have megabytes."""
    return value[:_MOST].decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)[:_MOST]


odd_values = OddValues()
"""Those of this process."""
pass_over = odd_values.pass_over


def stored_text(data: bytes) -> str:
    """Return a stored text; bytes that are no UTF-8 are escaped."""
    return data.decode(errors="backslashreplace")


def stored_number(kind: str, data: bytes | str | None, default: int = 0) -> int:
    """Return a stored whole number from 0 on; `default` if there is none, or something odd, which is passed over."""
    if data is None:
        return default
    text = data if isinstance(data, str) else stored_text(data)
    if text.isascii() and text.isdigit() and len(text) < 17 and int(text) <= _FAR:
        return int(text)
    pass_over(kind, text, "is no whole number")
    return default


def stored_ms(score: float) -> int:
    """Return the ms of a member of a sorted set; times beyond all numbers are the first or the last that there is."""
    return int(max(0, min(score, _FAR)))
