"""Rules for commands of several entities: in each line as accepted, once begun alone to the end, and each is done in the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations, pairwise

from tests.simulation.history import History
from tests.simulation.ties import Tie, TieRun

__all__ = ["several"]


def several(history: History) -> Iterator[tuple[str, str]]:
    """Find commands that were overtaken in one of their lines, shared it while they were retried, or were never done."""
    ties = history.ties
    lines: dict[str, list[TieRun]] = defaultdict(list)
    for run in sorted(ties.runs, key=lambda run: run.fence):
        for entity in run.entities:
            lines[entity].append(run)
        if run.tag not in ties.sent:
            yield run.entities[0], f"{run.tag} came from nowhere"
    for entity, runs in lines.items():
        yield from _between(entity, runs)
        yield from _overtaken(entity, runs, ties.sent)
    done = {run.tag for run in ties.runs if run.how == "returned"}
    for tie in ties.sent.values() if not history.stuck else ():
        if tie.acked is not None and tie.tag not in done and not tie.discarded:
            yield tie.entities[0], f"{tie.tag} was never done"


def _between(entity: str, runs: list[TieRun]) -> Iterator[tuple[str, str]]:
    """Find what was started in a line between the first and the last start of another command there."""
    ended: set[str] = set()
    for before, run in pairwise(runs):
        if run.fence == before.fence:
            yield entity, f"{run.tag} and {before.tag} have the fence {run.fence}"
        if run.tag != before.tag:
            ended.add(before.tag)
        if run.tag in ended:
            yield entity, f"{run.tag} was started again after {before.tag}, which stands behind it"


def _overtaken(entity: str, runs: list[TieRun], sent: dict[str, Tie]) -> Iterator[tuple[str, str]]:
    line = [sent[tag] for tag in dict.fromkeys(run.tag for run in runs) if tag in sent]
    for later, sooner in combinations(line, 2):
        if sooner.acked is not None and sooner.acked < later.invoked:
            yield entity, f"{later.tag} was started before {sooner.tag}, which was accepted first"
