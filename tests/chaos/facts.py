"""A history, looked up in the ways that the rules need, and what a rule reports."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from tests.chaos.calm import Calm
from tests.chaos.excuses import Excuses
from tests.chaos.history import Asked, Ended, History, Started

__all__ = ["PLANNED_ENDS", "Facts", "Violation"]

PLANNED_ENDS = ("raise", "shot")
"""How an attempt ends after which another was planned."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept.

    Attributes:
        rule: Name of the rule.
        entity: Its entity; empty if there is none.
        text: What happened.
        at: Time; 0.0 for the end of the run.
    """

    rule: str
    entity: str
    text: str
    at: float = 0.0

    def __str__(self) -> str:
        return f"{self.rule}: {self.entity + ': ' if self.entity else ''}{self.text}"


class Facts:
    """The history, looked up in the ways that the rules need."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.final = history.final
        self.excuses = Excuses(history.faults, history.lease)
        self.calm = Calm(history.faults, history.lease)
        self.asked: dict[str, list[Asked]] = defaultdict(list)
        for request in history.asked:
            self.asked[request.id].append(request)
        self.by_entity: dict[str, list[Started]] = defaultdict(list)
        self.by_id: dict[str, list[Started]] = defaultdict(list)
        for start in sorted(history.started, key=lambda start: start.fence):
            self.by_entity[start.entity].append(start)
            self.by_id[start.id].append(start)
        self.ends: dict[tuple[str, int], Ended] = {(end.id, end.fence): end for end in history.ended}
        self.hows: dict[str, set[str]] = defaultdict(set)
        for end in history.ended:
            self.hows[end.id].add(end.how)
        self.effects = Counter(effect.id for effect in history.effects)

    def end_of(self, start: Started) -> Ended | None:
        """Return how a start ended, or None if no process recorded it."""
        return self.ends.get((start.id, start.fence))

    def entity_of(self, command_id: str) -> str:
        """Return the entity of a command."""
        return self.asked[command_id][0].entity if self.asked.get(command_id) else ""

    def way_of(self, command_id: str) -> str:
        """Return how a command was sent."""
        return self.asked[command_id][0].way if self.asked.get(command_id) else ""

    def number_of(self, command_id: str) -> int:
        """Return the place of a command in its entity's line."""
        return self.asked[command_id][0].number
