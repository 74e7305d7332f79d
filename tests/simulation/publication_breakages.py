"""Histories in which what is published goes wrong, each in one way."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.history import History
from tests.simulation.news import Delivered, Story

__all__ = ["PUBLICATION_BREAKAGES"]


def _published(history: History, *tags: str, cause: str = "") -> list[Story]:
    """Publish these, one after the other; `one` and `two` handle each."""
    for number, tag in enumerate(tags):
        at = 1000.0 + number
        story = Story(tag, "n1", "p1", at, None if cause else at + 0.1, ("one", "two"), cause)
        history.news.stories[tag] = story
        for subscription in story.subscriptions:
            run = Delivered(tag, subscription, "n1", 10 * number, at + 0.2, at + 0.3, "returned")
            history.news.runs.append(run)
    return [*history.news.stories.values()]


def never_handled(history: History) -> None:
    _published(history, "e1", "e2")
    history.news.runs = [run for run in history.news.runs if (run.tag, run.subscription) != ("e2", "two")]


def failed_for_ever(history: History) -> None:
    _published(history, "e1")
    history.news.runs[-1].how = "failed"


def handled_in_another_order(history: History) -> None:
    _published(history, "e1", "e2")
    history.news.runs[0].fence = 99


def of_a_handler_in_another_order(history: History) -> None:
    _published(history, "a1.0", "a1.1", cause="a1")
    history.news.runs.append(Delivered("a1", "", "n1", 1, 999.0, 999.5, "returned"))
    history.news.runs[0].fence = 99


def published_by_nothing(history: History) -> None:
    _published(history, "e1")
    del history.news.stories["e1"]


def published_by_a_handler_that_failed(history: History) -> None:
    _published(history, "a1.0", cause="a1")
    history.news.runs.append(Delivered("a1", "", "n1", 1, 999.0, 999.5, "failed"))


def missed_although_it_was_put(history: History) -> None:
    _published(history, "e1")
    history.news.lives.append((999.0, 1005.0))


PUBLICATION_BREAKAGES: list[Callable[[History], None]] = [
    never_handled,
    failed_for_ever,
    handled_in_another_order,
    of_a_handler_in_another_order,
    published_by_nothing,
    published_by_a_handler_that_failed,
    missed_although_it_was_put,
]
