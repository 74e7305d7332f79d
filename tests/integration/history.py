"""Reads the log of `fault_app` and decides what must hold of it: order, no overlap, nothing lost, nothing twice."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Event", "History", "Pause"]


_AWAKE = 1.0
"""Seconds in which a process that was stopped comes to write what it was about to write."""


@dataclass(frozen=True)
class Event:
    what: str
    line: str
    number: int
    attempt: int
    fence: int
    pid: int
    at: float


@dataclass(frozen=True)
class Pause:
    """A process that could not act: stopped (until it was continued) or killed (for ever)."""

    pid: int
    start: float
    end: float = float("inf")


@dataclass
class History:
    events: list[Event]
    pauses: list[Pause] = field(default_factory=list)

    @classmethod
    def read(cls, log: Path, pauses: list[Pause]) -> History:
        records = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        events = [Event(r["ev"], r["line"], r["n"], r["try"], r["fence"], r["pid"], r["t"]) for r in records]
        return cls(sorted(events, key=lambda event: event.at), pauses)

    def by_line(self) -> dict[str, list[Event]]:
        lines: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            lines[event.line].append(event)
        return lines

    def inversions(self) -> list[str]:
        """Return the first starts of a line that are out of order."""
        found = []
        for line, events in self.by_line().items():
            seen: set[int] = set()
            highest = -1
            for event in events:
                if event.what != "start" or event.number in seen:
                    continue
                seen.add(event.number)
                if event.number < highest and not self._just_woke(event):
                    found.append(f"{line}: {event.number} started first after {highest}")
                highest = max(highest, event.number)
        return found

    def overlaps(self) -> list[str]:
        """Return starts while another holder ran, which was neither killed nor stopped at the time. An older start that was logged late is none."""
        found = []
        for line, events in self.by_line().items():
            running: dict[int, Event] = {}
            for event in events:
                if event.what != "start":
                    running.pop(event.fence, None)
                    continue
                found.extend(
                    f"{line}: {event.number} (fence {event.fence}) started while {other.number} (fence {other.fence}) ran"
                    for other in running.values()
                    if not self._excused(other, event.at) and not (event.fence < other.fence and self._just_woke(event))
                )
                running[event.fence] = event
        return found

    def fences_regressing(self) -> list[str]:
        """Return starts of a line whose fence is not above all before."""
        found = []
        for line, events in self.by_line().items():
            highest = 0
            for event in events:
                if event.what == "start":
                    if event.fence <= highest and not self._just_woke(event):
                        found.append(f"{line}: fence {event.fence} after {highest}")
                    highest = max(highest, event.fence)
        return found

    def starts(self) -> dict[tuple[str, int], int]:
        counts: dict[tuple[str, int], int] = defaultdict(int)
        for event in self.events:
            if event.what == "start":
                counts[event.line, event.number] += 1
        return counts

    def _just_woke(self, event: Event) -> bool:
        """Return whether its process may have been stopped between the start and its log line: then it ran, and logged, late."""
        return any(pause.pid == event.pid and pause.start <= event.at <= pause.end + _AWAKE for pause in self.pauses)

    def _excused(self, event: Event, at: float) -> bool:
        return any(pause.pid == event.pid and pause.start <= at and event.at <= pause.end for pause in self.pauses)
