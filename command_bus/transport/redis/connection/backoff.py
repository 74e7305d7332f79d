"""`Backoff`: the pauses before a request is repeated."""

from __future__ import annotations

from random import Random

from command_bus.randomness import JITTER


class Backoff:
    """Capped exponential backoff with full jitter: 20 ms, doubling, to 2 s."""

    __slots__ = ("_delay", "_random")

    def __init__(self, random: Random | None = None) -> None:
        self._random = random or JITTER
        self._delay = 0.02

    def next(self) -> float:
        """Return the seconds to wait before the next try."""
        delay, self._delay = self._delay, min(self._delay * 2, 2.0)
        return delay * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start again with the shortest pause."""
        self._delay = 0.02
