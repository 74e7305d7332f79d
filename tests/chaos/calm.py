"""Tells how much of a span of time was free of faults: only that is held against the bus where a rule gives it a time."""

from __future__ import annotations

from collections.abc import Iterable

from tests.chaos.history import Fault

__all__ = ["AFTERMATH", "BACKLOG", "LOAD", "SCRIPTED", "Calm"]

LOAD, SCRIPTED = "load", "scripted"
"""Kinds of fault under which a scripted load is recorded: among other faults, where commands may wait for it; alone, where none may."""
BACKLOG = "backlog"
"""Kind of fault under which the time is recorded in which the workers catch up with what was sent during the storm: many commands a second."""
AFTERMATH = 1.0
"""Seconds after a fault and a lease in which what was lost is taken over and started again."""
_COST_NO_LEASE = {"block", BACKLOG}


class Calm:
    """The time in which nothing was wrong, nor had just been.

    A fault is over when the leases that it may have cost are: after a lease and a second. A handler that blocks its event loop costs none, nor
    does a backlog.

    Args:
        faults: Of the run, whomever they befell.
        lease: In seconds.
    """

    def __init__(self, faults: Iterable[Fault], lease: float) -> None:
        self._troubles: list[tuple[float, float]] = []
        spans = [
            (fault.start, fault.end + (0.0 if fault.kind in _COST_NO_LEASE else lease + AFTERMATH))
            for fault in faults
            if fault.kind != SCRIPTED
        ]
        for start, end in sorted(spans):
            if self._troubles and start <= self._troubles[-1][1]:
                self._troubles[-1] = (self._troubles[-1][0], max(self._troubles[-1][1], end))
            else:
                self._troubles.append((start, end))

    def between(self, since: float, until: float) -> float:
        """Return the seconds of calm from one time to the other."""
        troubled = sum(max(0.0, min(end, until) - max(start, since)) for start, end in self._troubles)
        return until - since - troubled
