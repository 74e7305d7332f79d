"""Rules for tenants that share the workers by their weights, once all faults are over."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.history import History, of_commands

__all__ = ["shares"]

_BIG = 0.75
"""The part of the starts that the tenant `big` has, while `small` waits, too: their weights are 3 and 1."""
_OFF = 0.05
_ROOM = 4
"""Starts more or less: what was ready before the other came, and what workers had fetched."""


def shares(history: History) -> Iterator[tuple[str, str]]:
    """Find starts that were not shared as 3 : 1, while both tenants waited."""
    firsts = {name: min(run.began for run in runs) for name, runs in of_commands(history).items()}
    begun = sorted((at, history.sent[name].entity) for name, at in firsts.items() if history.sent[name].kind == "weighed")
    total = sum(sent.kind == "weighed" for sent in history.sent.values()) // 2
    if not total or len(begun) < 2 * total or history.calm_from() > begun[0][0]:
        return
    big = 0
    for count, (_, entity) in enumerate(begun, start=1):
        big += entity.startswith("big")
        if big == total:
            return
        if abs(big - _BIG * count) > _OFF * count + _ROOM:
            yield entity, f"of {count} starts {big} were of a tenant that has 3 of 4"
            return
