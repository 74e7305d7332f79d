"""`Rate`: how many requests a token may make, as a bucket that fills evenly."""

from __future__ import annotations

import math

from command_bus.clock import mono
from command_bus.errors import InvalidSettings


class Rate:
    """A rate of one token, in this process.

    Args:
        per_second: How many requests, on average; a second's worth may come at once.
    """

    __slots__ = ("_full", "_left", "_per_second", "_since")

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._full = max(per_second, 1.0)
        self._left = self._full
        self._since = mono()

    def wait(self) -> float:
        """Take one request. Return 0, or the seconds after which there is room for it."""
        now = mono()
        self._left = min(self._full, self._left + (now - self._since) * self._per_second)
        self._since = now
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self._per_second

    def take(self, count: int) -> None:
        """Take further ones, of a request that counts for several. The bucket may be in debt for them, and refuses until it is paid."""
        self._left -= count


def checked_rate(name: str, rate: object) -> float | None:
    """Return a rate, or None.

    Raises:
        InvalidSettings: It is no positive number.
    """
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not math.isfinite(rate) or rate <= 0:
        raise InvalidSettings(f"the rate of {name!r} is {rate!r}: requests a second, a positive number")
    return float(rate)
