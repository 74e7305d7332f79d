"""`OutageLog` and `LoggedBackoff`: log a server that does not answer without flooding the log.

Many loops ask one server, each retries, and all fail for the same few causes. So a cause is logged when it first occurs, then at most once
in ten seconds with the number of lines that were left out. Once none of the loops fails any more, one line says that it answers again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from command_bus.clock import mono
from command_bus.randomness import JITTER
from command_bus.serialization.limits import printable


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


_SILENCE = 10.0
"""Seconds for which a cause is not logged again."""
_FORGOTTEN = 15.0
"""Seconds after its last failure for which a loop counts as failing: longer than any try and the pause after it."""
_MOST_CAUSES = 100


@dataclass(slots=True)
class _Cause:
    silent_until: float
    left_out: int = 0


class OutageLog:
    """The failures of all loops that ask one server. Any thread may report one.

    Args:
        label: The server, for the log.
        suspect: Called with each failure, in the thread of its loop: the server may be away.
    """

    def __init__(self, label: str, suspect: Callable[[Exception], None] = lambda _: None) -> None:
        self._label = label
        self.suspect = suspect
        self._lock = threading.Lock()
        self._since: float | None = None
        self._last = 0.0
        self._causes: dict[str, _Cause] = {}
        self._failing: dict[LoggedBackoff, float] = {}

    def failed(self, loop: LoggedBackoff, cause: str) -> int | None:
        """Record a failure. Return how many lines like it were left out if this one is to be logged, else None."""
        with self._lock:
            now = mono()
            if self._since is None or (now - self._last > _FORGOTTEN and not self._still_failing(now)):
                self._since = now
                self._causes.clear()
            self._last = now
            if loop.lasts:
                self._failing[loop] = now
            if cause not in self._causes and len(self._causes) >= _MOST_CAUSES:
                self._causes.clear()
            known = self._causes.get(cause)
            if known is not None and now < known.silent_until:
                known.left_out += 1
                return None
            self._causes[cause] = _Cause(now + _SILENCE)
            return 0 if known is None else known.left_out

    def worked(self, loop: LoggedBackoff, log: logging.Logger) -> None:
        """Record that a loop that failed has an answer; log it if it was the last."""
        with self._lock:
            now = mono()
            self._failing.pop(loop, None)
            if self._since is None or self._still_failing(now):
                return
            seconds, self._since = now - self._since, None
            self._causes.clear()
            self._failing.clear()
        log.warning("%s answers again after %s", self._label, f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s")

    def _still_failing(self, now: float) -> bool:
        return any(now - last <= _FORGOTTEN for last in self._failing.values())


class LoggedBackoff:
    """The retries of one loop: how long it waits after each failure, and what of it is logged.

    Args:
        outage: Collects the failures of its server.
        what: Words for the log: "cannot read work".
        log: The logger.
        lasts: Whether the loop retries until it succeeds. A loop that may give up does not delay the end of an outage.
    """

    __slots__ = ("_backoff", "_failing", "_log", "_outage", "_what", "lasts")

    def __init__(self, outage: OutageLog, what: str, log: logging.Logger, *, lasts: bool = True) -> None:
        self._outage = outage
        self._what = what
        self._log = log
        self._backoff = Backoff()
        self._failing = False
        self.lasts = lasts

    def begin(self) -> None:
        """Begin with short pauses, whether earlier attempts failed or not."""
        self._backoff.reset()

    def failed(self, error: Exception, *, unexpected: bool = False) -> float:
        """Return the seconds to wait before the next attempt.

        Args:
            error: Why this attempt failed.
            unexpected: Whether to log its traceback.
        """
        pause = self._backoff.next()
        self._failing = True
        self._outage.suspect(error)
        left_out = self._outage.failed(self, f"{type(error).__name__}: {error}")
        if left_out is not None:
            more = f" ({left_out:,} more failed so in between)" if left_out else ""
            self._log.warning(
                "%s, trying again: %s%s", self._what, printable(str(error)), more, exc_info=error if unexpected else None
            )
        return pause

    def worked(self) -> None:
        """Begin with short pauses the next time. Costs nothing if the attempt before worked, too."""
        if self._failing:
            self._failing = False
            self._backoff.reset()
            self._outage.worked(self, self._log)
