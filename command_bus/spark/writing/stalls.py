"""`StallTimer`: how long a task has made no progress, when it warns, and when it gives up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StallAction = Literal["wait", "warn", "give up"]

WARN_AFTER = 8.0  # and the time until a watching driver reads it: less than ten seconds together
WARN_EVERY = 30.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25


@dataclass(slots=True)
class StallTimer:
    """Decides by the times that it is given; reads no clock.

    Attributes:
        max_wait: Seconds without progress after which the task gives up.
        since: Time of the first refusal since the last progress; None after progress.
        pause: Seconds to wait before the next try.
        warned: Time of the last warning; None if there was none since the last progress.
    """

    max_wait: float
    since: float | None = None
    pause: float = _SHORTEST_PAUSE
    warned: float | None = None

    def progressed(self) -> None:
        """Record that commands were accepted."""
        self.since = self.warned = None
        self.pause = _SHORTEST_PAUSE

    def refused(self, now: float) -> StallAction:
        """Record that nothing was accepted, and return what to do. The caller then waits for `next_pause`, which doubles each time."""
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
        """Return the seconds to wait now."""
        pause = min(self.pause, at_most)
        self.pause = min(self.pause * 2, _LONGEST_PAUSE)
        return pause

    def remaining(self, now: float) -> float:
        """Return the seconds until the task gives up."""
        return max(self.max_wait - (now - (self.since or now)), 0.0)
