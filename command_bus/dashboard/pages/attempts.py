"""The attempts of one command side by side, from the events of its entity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from command_bus.admin.events import Event

_ENDS = (
    "completed", "rejected", "retried", "snoozed", "interrupted", "handed_back", "dead_lettered", "parked", "cancelled", "suspended",
)  # fmt: skip


@dataclass(slots=True)
class Attempt:
    """One start of a handler.

    Attributes:
        number: The number of the attempt.
        worker: Who ran it.
        started_ms: When; None if that is not kept.
        ended_ms: When it ended; None if that is not known.
        end: How it ended, as an event's kind; empty if that is not known.
        pause: Seconds until the next; None if that followed at once, or none did.
    """

    number: int
    worker: str = ""
    started_ms: int | None = None
    ended_ms: int | None = None
    end: str = ""
    pause: float | None = None

    @property
    def seconds(self) -> float | None:
        """How long it ran; None if that is not known."""
        return None if self.started_ms is None or self.ended_ms is None else (self.ended_ms - self.started_ms) / 1000


def attempts_of(events: Sequence[Event], command_id: str) -> list[Attempt]:
    """Return the attempts of a command, oldest first, as far as its events are kept. After a replay they are counted from one again."""
    found: list[Attempt] = []
    for event in sorted(events, key=lambda each: each.at_ms):
        if event.command_id != command_id or not event.attempt:
            continue
        if event.kind == "started":
            found.append(Attempt(event.attempt, event.worker, event.at_ms))
        elif event.kind in _ENDS:
            if not found or found[-1].end or found[-1].number != event.attempt:
                found.append(Attempt(event.attempt, event.worker))
            last = found[-1]
            last.ended_ms, last.end, last.pause, last.worker = event.at_ms, event.kind, event.delay, event.worker or last.worker
    return found
