"""A history, looked up in the ways that the rules need, and what a rule reports."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from tests.chaos.calm import Calm
from tests.chaos.excuses import Excuses
from tests.chaos.history import Asked, Ended, History, Seen, Started, Told

__all__ = ["PLANNED_ENDS", "Facts", "Violation"]

PLANNED_ENDS = ("raise", "shot", "suspended")
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

        self._look_at_journeys()

    def _look_at_journeys(self) -> None:
        history = self.history
        self.journeys = {command for command, requests in self.asked.items() if requests[0].kind == "Journey"}
        self.told: dict[str, list[Told]] = defaultdict(list)
        for told in history.told:
            self.told[told.journey].append(told)
        self.called: dict[tuple[str, str, bool], set[str]] = defaultdict(set)
        for errand in history.errands:
            self.called[errand.journey, errand.key, errand.undoes].add(errand.id)
        self.seen: dict[tuple[str, str], list[Seen]] = defaultdict(list)
        self.reached_by: dict[tuple[str, str], float] = {}
        began = {(start.id, start.fence): start.at for start in history.started}
        for seen in sorted(history.seen, key=lambda seen: (seen.fence, seen.at)):
            if seen.begins:
                at = began.get((seen.id, seen.fence), seen.at)
                self.reached_by[seen.id, seen.key] = min(self.reached_by.get((seen.id, seen.key), at), at)
            else:
                self.seen[seen.id, seen.key].append(seen)
        self.begun_calls = {(seen.id, seen.key): seen for seen in history.seen if seen.begins and "." in seen.key}.values()

    def runs_with_others(self, command_id: str) -> bool:
        """Return whether a command may run in one call with those behind it: a run that is lost counts for none of them."""
        return "batches" in self.history.features and self.asked[command_id][0].kind == "Tally"

    def is_parked_first(self, command_id: str) -> bool:
        """Return whether a command is a node that parks, and is replayed: its attempts begin again."""
        return command_id in self.by_id and self.by_id[command_id][0].entity.startswith("shelf:")

    def started_at(self, command_id: str, fence: int) -> float:
        """Return when a run started; 0.0 if no process recorded it."""
        return next((start.at for start in self.by_id.get(command_id, ()) if start.fence == fence), 0.0)

    def failed_over(self, since: float, until: float) -> bool:
        """Return whether a server was replaced between these times by one that may not know what the other had answered."""
        return any(fault.kind == "failover" and since <= fault.end and fault.start <= until for fault in self.history.faults)

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
