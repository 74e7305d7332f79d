"""Rules for delayed commands: when they start, in which order, and what is accepted behind the moment at which they are due."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.history import Execution, History, Sent

__all__ = ["behind", "due"]

_SLACK = 0.01
"""Seconds by which the time of an acceptance may be off: the server knows it to a millisecond."""
_Line = list[tuple[Sent, Execution]]


def _lines(history: History) -> Iterator[tuple[str, _Line]]:
    """Yield each entity with its commands and their first starts, in the order of these. Times are the server's: a jump of its clock excuses all."""
    if history.jumps:
        return
    lines: dict[str, dict[str, Execution]] = {}
    for run in history.executions:
        lines.setdefault(run.entity, {}).setdefault(run.id, run)
    for entity, first in lines.items():
        yield entity, [(history.sent[name], run) for name, run in first.items()]


def due(history: History) -> Iterator[tuple[str, str]]:
    """Delayed commands of an entity start in the order of their times, and not before them; those of one time in the order of acceptance."""
    for entity, started in _lines(history):
        line = [(sent, run) for sent, run in started if sent.how == "delayed" and sent.tries == 1]
        for at, (later, run) in enumerate(line):
            if run.began < later.invoked + later.delay - _SLACK:
                yield entity, f"{later.id} started {later.invoked + later.delay - run.began:.3f} s before its time"
            for sooner, _ in line[at + 1 :]:
                if sooner.acked is not None and sooner.acked + sooner.delay < later.invoked + later.delay - _SLACK:
                    yield entity, f"{later.id} started before {sooner.id}, which was due first"
                tied = later.batch and (sooner.process, sooner.batch, sooner.delay) == (later.process, later.batch, later.delay)
                if tied and sooner.position < later.position:
                    yield (
                        entity,
                        f"{later.id} started before {sooner.id}, which was due in the same millisecond and accepted first",
                    )


def behind(history: History) -> Iterator[tuple[str, str]]:
    """Find what was accepted behind the moment of a delayed command and started before it, also if no worker was up then."""
    for entity, line in _lines(history):
        for at, (later, _) in enumerate(line):
            for sooner, _ in line[at + 1 :]:
                is_due = sooner.how == "delayed" and sooner.acked is not None and later.how != "delayed"
                if is_due and later.invoked > (sooner.acked or 0.0) + sooner.delay + _SLACK:
                    yield entity, f"{later.id} started before {sooner.id}, which was due before it was sent"
