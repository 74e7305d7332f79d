"""Rules for events: per subscription and entity each once, in order, if its publication began in the subscription's life."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations

from tests.simulation.history import History
from tests.simulation.news import LATE, Delivered, News, Story

__all__ = ["publication"]


def publication(history: History) -> Iterator[tuple[str, str]]:
    """Find events that were lost, came from nowhere, in another order, or not to a subscription that was there."""
    news = history.news
    firsts: dict[tuple[str, str], dict[str, Delivered]] = defaultdict(dict)
    returned: dict[tuple[str, str], list[Delivered]] = defaultdict(list)
    for run in news.runs:
        firsts[run.subscription, run.entity].setdefault(run.tag, run)
        if run.how == "returned":
            returned[run.subscription, run.tag].append(run)
    yield from _out_of_order(news, firsts)
    yield from _from_nowhere(news, firsts, returned)
    for story in news.stories.values() if not history.stuck else ():
        reached = ("one", "two") if story.cause and returned["", story.cause] else story.subscriptions
        for subscription in reached:
            if subscription != LATE and not returned[subscription, story.tag]:
                yield story.entity, f"{subscription} never handled {story.tag}"
        for begun, ended in news.lives:
            is_within = story.acked is not None and begun <= story.invoked and (ended is None or story.acked <= ended)
            if is_within and LATE not in story.subscriptions:
                yield (
                    story.entity,
                    f"{story.tag} was published from {story.invoked:.3f} on, and missed {LATE}, there since {begun:.3f}",
                )


def _from_nowhere(
    news: News, firsts: dict[tuple[str, str], dict[str, Delivered]], returned: dict[tuple[str, str], list[Delivered]]
) -> Iterator[tuple[str, str]]:
    for (subscription, entity), runs in firsts.items():
        for tag, first in runs.items() if subscription else ():
            story = news.stories.get(tag)
            causes = [] if story is None else returned["", story.cause]
            if story is None or (story.cause and not any((cause.ended or 1e12) <= first.began for cause in causes)):
                yield entity, f"{subscription} got {tag}, which was not published by then"


def _out_of_order(news: News, firsts: dict[tuple[str, str], dict[str, Delivered]]) -> Iterator[tuple[str, str]]:
    for (subscription, entity), runs in firsts.items():
        line = [news.stories[tag] for tag in sorted(runs, key=lambda tag: runs[tag].fence) if tag in news.stories]
        for later, sooner in combinations(line, 2):
            if _precedes(sooner, later):
                yield entity, f"{subscription} got {later.tag} before {sooner.tag}, which was published first"


def _precedes(one: Story, other: Story) -> bool:
    if one.cause or other.cause:
        return one.cause == other.cause and one.tag < other.tag
    return one.acked is not None and one.acked < other.invoked
