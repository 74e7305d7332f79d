"""Rules for commands that their handlers put off or give up."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tests.simulation.history import Execution, History, of_commands

__all__ = ["given_up", "put_off"]


def _taken_over(history: History, entity: str, start: float, end: float) -> bool:
    """Return whether the entity changed hands in that time: then the server may never have heard of the end of what ran."""
    return any(claim.entity == f"item:{entity}" and start <= claim.at <= end for claim in history.claims)


def put_off(history: History) -> Iterator[tuple[str, str]]:
    """Find commands that were put off and overtaken, started too early or under another attempt, or expired."""
    runs_of: dict[str, list[Execution]] = {}
    for run in sorted(history.executions, key=lambda run: run.fence):
        runs_of.setdefault(run.entity, []).append(run)
    for entity, runs in runs_of.items():
        for one, other in pairwise(runs):
            if one.how == "put off" and one.ended is not None and not _taken_over(history, entity, one.began, other.began):
                yield from ((entity, text) for text in _wrong_after(history, one, other))
    for name, runs in of_commands(history).items():
        if history.sent[name].outcome == "expired" and any(run.how == "put off" for run in runs):
            yield runs[0].entity, f"{name} was put off, and its deadline counted when it woke"


def _wrong_after(history: History, one: Execution, other: Execution) -> Iterator[str]:
    """Find what is wrong with the start that came next after one that put its command off."""
    sent = history.sent[one.id]
    if other.id != one.id:
        if not sent.cancelled:
            yield f"{one.id} was put off, and {other.id} started before it was settled"
        return
    if other.attempt != one.attempt and not sent.replays:
        yield f"{one.id} was put off in attempt {one.attempt}, and started again as attempt {other.attempt}"
    if not history.jumps and other.began < one.began + (one.puts_off or 0.0) - 0.002:
        yield f"{one.id} was put off for {one.puts_off} s, and started again {other.began - one.began:.3f} s later"


def given_up(history: History) -> Iterator[tuple[str, str]]:
    """Find commands that were started again although their handler had given them up."""
    for name, runs in of_commands(history).items():
        if history.sent[name].replays:
            continue
        for one, other in pairwise(runs):
            if (
                one.how == "gave up"
                and not history.was_aborted(one)
                and not _taken_over(history, one.entity, one.began, other.began)
            ):
                yield one.entity, f"{name} was given up in attempt {one.attempt}, and started again"
