"""Rules for commands that must start in time (`Sent.within`) once all faults are over."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tests.simulation.history import History, of_commands

__all__ = ["standstill", "starved"]


def starved(history: History) -> Iterator[tuple[str, str]]:
    """Find commands that did not start within their time although no fault was left, however much other work there was."""
    runs_of = of_commands(history)
    for name, sent in history.sent.items():
        if not sent.within or history.calm_from() > sent.invoked:
            continue
        runs = runs_of.get(name)
        began = min(run.began for run in runs) if runs else sent.answered
        if began > sent.invoked + sent.within:
            how = "was started after" if runs else "was never started in"
            yield sent.entity, f"{name} {how} {began - sent.invoked:.2f} s, and {sent.within:.2f} s were allowed"


def standstill(history: History) -> Iterator[tuple[str, str]]:
    """Find attempts that ended by themselves and whose next attempt did not start when it was due, but after a lease."""
    for name, runs in of_commands(history).items():
        within = history.sent[name].within
        for one, other in pairwise(runs):
            if not within or one.how not in ("failed", "shot") or one.ended is None or history.calm_from() > one.ended:
                continue
            if other.began > one.ended + within:
                yield (
                    one.entity,
                    f"{name} {one.how} (attempt {one.attempt}), and was started again {other.began - one.ended:.2f} s later",
                )
