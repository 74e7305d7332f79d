"""`LeaseWatch`: finds leases that have expired, from the pending entries, by two clocks.

By the server's clock a lease is over when its entry has been idle for its length. That clock can jump ahead, so a lease that looks more
than half over is watched for the rest of its time on our own clock. The clock can also go back: then idle times are 0 until it has caught
up, for an hour perhaps. So, more rarely, all leases are checked: a lease is over if its idle time is 0 whenever we look and its renewal
sequence has not changed for a whole lease by our own clock, whatever the server's clock says.

Both use the renewal sequence, which is the entry's delivery count, as the sign of life: every renewal increases it, and a start makes it 0.
Renewals that overtook one another may decrease it to a value that was seen before; then the idle time shows that its worker lives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

SUSPECT = 0.55
"""The part of a lease without renewal after which its worker is watched: later than it renews, early enough for `SHORTEST_WATCH`."""
SHORTEST_WATCH = 0.4
_LATE = 0.1
"""The part of a lease by which answers may be late: idle since a little later is no sign of life."""
_WHOLE_LOOK, _SHORTEST_LOOK = 0.5, 2.0
"""All leases are looked at so often: in parts of a lease, and at least so many seconds apart."""


def rest_of(lease: float, idle: float) -> float:
    """Return the seconds to watch a suspect before it is taken over.

    That is until the lease ends. If that is soon, or seems to be past (the server's clock jumped, or no worker was watching), it is longer
    than the third of a lease after which a live worker renews.
    """
    return max(lease * SHORTEST_WATCH, lease - idle) if idle < lease else lease / 2


class Held(NamedTuple):
    """A pending entry: a lease that a worker holds or held."""

    activation: str
    sequence: int
    idle: float
    """Seconds, by the server's clock."""


class _Suspect(NamedTuple):
    """A lease that may be over: the renewal sequence that was seen, since when it is idle, and how long it is watched.

    Both values show a sign of life: the sequence changes with it, unless a late one brings back a value that was seen; the idle time starts again.
    """

    sequence: int
    since: float
    until: float


class _Known(NamedTuple):
    """A lease that is idle for nothing: its renewal sequence, and since when it was that, by our clock."""

    sequence: int
    since: float


class LeaseWatch:
    """The leases of a shard that are watched.

    Args:
        lease: Seconds that a lease lives.
    """

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._idle: dict[str, _Suspect] = {}
        self._frozen: dict[str, _Known] = {}
        self._looked = self._whole_look_at = 0.0

    @property
    def least_idle(self) -> int:
        """The ms for which a lease must be idle to be watched."""
        return max(1, int(self._lease * 1000 * SUSPECT))

    def idle(self, held: Iterable[Held], now: float) -> list[Held]:
        """Return those that are over, from all leases that are idle for `least_idle`."""
        suspects: dict[str, _Suspect] = {}
        expired: list[Held] = []
        for item in held:
            known = self._idle.get(item.activation)
            since = now - item.idle
            if known is None or known.sequence != item.sequence or since > known.since + _LATE * self._lease:
                suspects[item.activation] = _Suspect(item.sequence, since, now + rest_of(self._lease, item.idle))
            elif now >= known.until:
                expired.append(item)
            else:
                suspects[item.activation] = known
        self._idle = suspects
        return expired

    def wants_all(self, now: float) -> bool:
        """Return whether it is time to check all leases."""
        return now >= self._whole_look_at

    def all(self, held: Iterable[Held], asked: float, answered: float) -> list[Held]:
        """Return those that are over by our clock alone, from all leases, read between two moments."""
        known: dict[str, _Known] = {}
        expired: list[Held] = []
        still = math.inf
        for item in held:
            if item.idle > 0:
                continue  # the server's clock is past its last renewal, so the idle time is right
            before = self._frozen.get(item.activation)
            if before is None or before.sequence != item.sequence:
                before = _Known(item.sequence, answered)
            known[item.activation] = before
            if asked - before.since >= self._lease:
                expired.append(item)
            else:
                still = min(still, before.since + self._lease)
        self._frozen = known
        self._whole_look_at = min(answered + max(self._lease * _WHOLE_LOOK, _SHORTEST_LOOK), still)
        return expired

    def next(self, now: float, longest: float) -> float:
        """Return the seconds until the next look, `longest` at most."""
        moments = [now + longest, self._whole_look_at, *(suspect.until for suspect in self._idle.values())]
        return max(0.0, min(moments) - now)
