"""Rules with a time limit, counted in seconds without a fault."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tests.chaos.calm import SCRIPTED
from tests.chaos.facts import PLANNED_ENDS, Facts, Violation

__all__ = ["again_at_once", "started_in_time"]

_OF_A_LEASE = 0.8


def started_in_time(facts: Facts) -> Iterator[Violation]:
    """I9: find starved commands: each must start within the time that its sender calculated."""
    for command, requests in facts.asked.items():
        first = requests[0]
        if not first.within or all(request.answer == "refused" for request in requests):
            continue
        starts = facts.by_id.get(command)
        if not starts and all(request.answer in ("refused", "unknown") for request in requests):
            continue  # the request may never have arrived
        until = min(start.at for start in starts) if starts else max(facts.history.until, first.answered)
        waited = facts.calm.between(first.at, until)
        if waited > first.within:
            how = f"was started after {waited:.1f} s" if starts else f"was never started in {waited:.1f} s"
            yield Violation("starved", first.entity, f"{command} {how} without a fault; {first.within:.1f} s were allowed", until)


def again_at_once(facts: Facts) -> Iterator[Violation]:
    """I10: an attempt that ended by itself is followed by the next in a moment, not when a lease is over.

    Only for scripted loads, where all other work is known.
    """
    limit = _OF_A_LEASE * facts.history.lease
    for command, starts in facts.by_id.items():
        if facts.way_of(command) != SCRIPTED:
            continue
        for first, second in pairwise(starts):
            end = facts.end_of(first)
            if end is None or end.how not in PLANNED_ENDS:
                continue
            waited = facts.calm.between(end.at, second.at)
            if waited > limit:
                text = f"attempt {first.attempt} of {command} ended ({end.how}), and the next came {waited:.1f} s later, without a fault"
                yield Violation("standstill", first.entity, text, second.at)
