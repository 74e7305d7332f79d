"""The table *first starts × places*: what may come between the first start of a durable command and its end, and where that start is shown.

Data alone: `test_first_starts.py` carries it out. A new way to wait is a row here, and a method of the same name there.
"""

from __future__ import annotations

__all__ = ["BETWEEN", "PLACES"]

BETWEEN = {
    "signalled": "suspended, and woken by what arrives",
    "slept": "suspended, and woken by the time",
    "wished": "waits for a retry, and is woken by a cancellation",
    "signalled, retried": "suspended, then fails and is tried again",
    "retried, signalled": "fails and is tried again, then is suspended",
    "signalled, aborted": "suspended, then its worker is lost",
    "aborted, signalled": "its worker is lost, then it is suspended",
    "signalled, snoozed": "suspended, then put off by its handler",
    "snoozed, signalled": "put off by its handler, then suspended",
    "signalled, signalled": "suspended twice",
    "signalled, handed back": "suspended, then its worker leaves",
    "signalled, held": "suspended, and paused while it is woken",
    "signalled, parked": "suspended, then parked and replayed",
    "parked": "parked and replayed",
}
"""The events in between, one after the other."""

PLACES = ("while it waits", "entity", "history", "dead letter")
