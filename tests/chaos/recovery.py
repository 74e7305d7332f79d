"""Recovery times: of what a killed worker held, and of the first start after a server answers again."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tests.chaos.excuses import EVERYBODY
from tests.chaos.history import Fault, History, Started

__all__ = ["Recovery", "measure"]

_TROUBLES = {"kill", "stop", "stall", "gap", "server", "failover", "power", "silence", "oom", "deploy", "block", "load"}
_SHORT_BLOCK = 0.5


@dataclass(frozen=True, slots=True)
class Recovery:
    """Times of one kind.

    Attributes:
        what: What recovered.
        limit: Target in seconds.
        times: (when, seconds, whether no other fault was under way), in order.
    """

    what: str
    limit: float
    times: tuple[tuple[float, float, bool], ...]

    def figures(self, *, undisturbed: bool = False) -> dict[str, float]:
        """Count, p50, p99 and maximum, and how many were within the limit."""
        seconds = sorted(took for _, took, alone in self.times if alone or not undisturbed)
        if not seconds:
            return {"count": 0}
        return {
            "count": len(seconds),
            "p50": round(_quantile(seconds, 0.5), 3),
            "p99": round(_quantile(seconds, 0.99), 3),
            "max": round(seconds[-1], 3),
            "within_limit": sum(took <= self.limit for took in seconds),
        }


def measure(history: History) -> tuple[Recovery, Recovery]:
    """Measure recoveries of killed workers' entities, and of the server.

    With a fault every half second most recoveries meet another one, or a handler that blocks the next worker: those that met none are listed
    separately. Of each killed worker the entity
    that went on last is counted.
    """
    troubles = [
        fault
        for fault in history.faults
        if fault.kind in _TROUBLES and not (fault.kind == "block" and fault.end - fault.start < _SHORT_BLOCK)
    ]
    ends = {(end.id, end.fence): end.at for end in history.ended}
    entities: dict[str, list[Started]] = defaultdict(list)
    for start in sorted(history.started, key=lambda start: start.at):
        entities[start.entity].append(start)
    killed: list[tuple[float, float, bool]] = []
    for fault in (fault for fault in history.faults if fault.kind == "kill" and fault.victim.startswith("w")):
        others = [trouble for trouble in troubles if trouble is not fault]
        took = [took for starts in entities.values() if (took := _resumed(fault, starts, ends)) is not None]
        if took:
            killed.append((fault.start, max(took), _alone(others, fault.start - history.lease, fault.start + max(took))))
    moments = sorted(start.at for start in history.started)
    answered: list[tuple[float, float, bool]] = []
    for fault in (fault for fault in history.faults if fault.kind in ("server", "power")):
        first = next((moment for moment in moments if moment > fault.end), None)
        if first is not None:
            others = [trouble for trouble in troubles if trouble.victim != EVERYBODY]
            answered.append((fault.end, first - fault.end, _alone(others, fault.start, first)))
    return (
        Recovery("a killed worker's entities go on", history.lease + 0.5, tuple(killed)),
        Recovery("first start after the server answers", 1.0, tuple(answered)),
    )


def _resumed(kill: Fault, starts: Iterable[Started], ends: dict[tuple[str, int], float]) -> float | None:
    """Return the seconds until the victim's command ran again; None if it ran nothing here.

    Only a command that runs again counts: after one that is given up, the next start may be of a command that came much later. And a
    command that only the newer release knows waits for that.
    """
    held: Started | None = None
    for start in starts:
        if start.at > kill.start:
            again = held is not None and start.id == held.id and not start.entity.startswith("late:")
            return start.at - kill.start if again else None
        held = start if start.who == kill.victim and (start.id, start.fence) not in ends else None
    return None


def _alone(troubles: Iterable[Fault], since: float, until: float) -> bool:
    return not any(fault.start <= until and fault.end >= since for fault in troubles)


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]
