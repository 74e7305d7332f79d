"""The time for which a worker waits itself before it suspends a command."""

from __future__ import annotations

from collections.abc import Sequence

from command_bus.durable.run_tools import Wait

LINGER, LONG_LINGER = 0.05, 1.0
"""Most seconds for which a worker waits itself before it suspends a command: the longer time for the outcomes of calls, which come to it by
themselves, and if that is in the way of no other. To be suspended costs a second start, and behind a backlog most calls end within a second.
"""


def lingers(pending: Sequence[Wait], may_linger: bool) -> float:
    """Return the seconds for which the worker itself waits for these."""
    if may_linger and all(each.lingers > LINGER for each in pending):
        return LONG_LINGER
    return min(LINGER, max((each.lingers for each in pending), default=0.0))
