"""`StallTimer`: how long a task has made no headway, when it says so, and when it gives up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["StallAction", "StallTimer"]

StallAction = Literal["wait", "warn", "give up"]

WARN_AFTER = 8.0  # with what a watching driver takes to hear of it, less than ten seconds
WARN_EVERY = 30.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25


@dataclass(slots=True)
class StallTimer:
    """Pure: it is told the time.

    Attributes:
        max_wait: Seconds without any headway after which the task gives up.
        since: When it made headway last; None while it is not held up.
        pause: Seconds to wait before the next try.
    """

    max_wait: float
    since: float | None = None
    pause: float = _SHORTEST_PAUSE
    warned: float | None = None

    def progressed(self) -> None:
        """Something was accepted."""
        self.since = self.warned = None
        self.pause = _SHORTEST_PAUSE

    def refused(self, now: float) -> StallAction:
        """Nothing was: what to do. A pause follows, of `pause` seconds; the next is twice as long."""
        if self.since is None:
            self.since = now
        if now - self.since > self.max_wait:
            return "give up"
        due = self.since + WARN_AFTER if self.warned is None else self.warned + WARN_EVERY
        if now < due:
            return "wait"
        self.warned = now
        return "warn"

    def next_pause(self, at_most: float) -> float:
        """The seconds to wait now."""
        pause = min(self.pause, at_most)
        self.pause = min(self.pause * 2, _LONGEST_PAUSE)
        return pause

    def remaining(self, now: float) -> float:
        """Seconds until the task gives up."""
        return max(self.max_wait - (now - (self.since or now)), 0.0)
