"""Histories in which a command of several entities goes wrong, each in one way."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.history import History
from tests.simulation.ties import Tie, TieRun

__all__ = ["SEVERAL_BREAKAGES"]


def _done(history: History, *tags: str) -> list[TieRun]:
    """Send these to the same two entities, one after the other; each is done."""
    for number, tag in enumerate(tags):
        at = 1000.0 + number
        history.ties.sent[tag] = Tie(tag, ("k/1", "k/2"), at, at + 0.1)
        history.ties.runs.append(TieRun(tag, ("k/1", "k/2"), 10 * number + 10, "returned"))
    return history.ties.runs


def never_done(history: History) -> None:
    _done(history, "t1", "t2")[1].how = "failed"


def never_started(history: History) -> None:
    _done(history, "t1", "t2").pop()


def overtaken_in_its_second_line(history: History) -> None:
    first, _ = _done(history, "t1", "t2")
    history.ties.sent["t2"].entities = history.ties.runs[1].entities = ("k/2",)
    first.fence = 99


def shared_a_line_while_it_was_retried(history: History) -> None:
    _done(history, "t1", "t2").append(TieRun("t1", ("k/1", "k/2"), 30, "returned"))


def shared_a_fence(history: History) -> None:
    runs = _done(history, "t1", "t2")
    runs[1].fence = runs[0].fence


def came_from_nowhere(history: History) -> None:
    _done(history, "t1")
    del history.ties.sent["t1"]


SEVERAL_BREAKAGES: list[Callable[[History], None]] = [
    never_done,
    never_started,
    overtaken_in_its_second_line,
    shared_a_line_while_it_was_retried,
    shared_a_fence,
    came_from_nowhere,
]
