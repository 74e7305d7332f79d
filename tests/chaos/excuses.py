"""Losses of a lease that a fault explains. All others are findings: a bus that steals leases would look just like faults.

A worker renews every third of its lease. A SIGKILL ends its leases; so may a time in which it could not reach the server (stopped, cut off,
the server away) of some four tenths of the lease: the last renewal may have been a third earlier, and asking again takes its time, too.
Shorter troubles, cut connections, flushed scripts, a server at its memory limit and clock steps explain nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tests.chaos.history import Fault

__all__ = ["EVERYBODY", "Excuses"]

EVERYBODY = "*"
_SILENT = {"stop", "short_stop", "gap", "stall", "cut_reply", "chop", "refuse", "server", "failover", "power", "silence"}
_ENOUGH, _APART = 0.4, 0.4


class Excuses:
    """The faults of a run, by who suffered them.

    Args:
        faults: All of them.
        lease: In seconds.
    """

    def __init__(self, faults: Iterable[Fault], lease: float) -> None:
        self._lease = lease
        self._kills: dict[str, float] = {}
        silent: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for fault in faults:
            if fault.kind == "kill":
                self._kills[fault.victim] = fault.start
            elif fault.kind in _SILENT:
                silent[fault.victim].append((fault.start, fault.end))
        common = silent.pop(EVERYBODY, [])
        self._common = self._merged(common)
        self._silent = {who: self._merged(spans + common) for who, spans in silent.items()}

    def explains(self, who: str, since: float, until: float) -> bool:
        """Return whether this process may have lost its leases between these times."""
        killed = self._kills.get(who)
        if killed is not None and killed <= until:
            return True
        earliest = since - self._lease
        return any(start <= until and end >= earliest for start, end in self._silent.get(who, self._common))

    def _merged(self, spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
        """Silences that are too close to each other to renew between them are one; those too short to matter are left out."""
        merged: list[tuple[float, float]] = []
        for start, end in sorted(spans):
            if merged and start - merged[-1][1] < _APART * self._lease:
                merged[-1] = (merged[-1][0], max(merged[-1][1], end))
            else:
                merged.append((start, end))
        return [(start, end) for start, end in merged if end - start >= _ENOUGH * self._lease]
