"""A case: a name, a question that it belongs to, and how one run of it is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.figures import Sample
from benchmarks.ground import Ground

__all__ = ["Case", "chosen"]


@dataclass(frozen=True, slots=True)
class Case:
    """A measurement, taken once per run.

    Attributes:
        name: Unique; the targets refer to it.
        group: What it belongs to, as the command line chooses: dispatch, drain, call, …, floor, peers.
        measure: One run on an empty server.
        quick: Whether it is part of the quick set.
        most: Runs at most, for the long ones.
        peer: Whose it is, if not ours.
    """

    name: str
    group: str
    measure: Callable[[Ground], Sample]
    quick: bool = False
    most: int = 99
    peer: str = ""


def chosen(cases: list[Case], words: list[str], *, quick: bool) -> list[Case]:
    """Return the cases of these groups, or with one of these words in their names; without words all, or the quick set."""
    if words:
        return [case for case in cases if any(word == case.group or word.lower() in case.name.lower() for word in words)]
    return [case for case in cases if case.quick or not quick]
