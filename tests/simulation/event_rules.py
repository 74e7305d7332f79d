"""The rule for what a watched entity's events tell."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.history import History

__all__ = ["LIFE", "told"]

# What an event makes of the state of a command; what is not here must not happen.
LIFE = {
    ("", "accepted"): "waits",
    ("waits", "started"): "runs",
    ("runs", "completed"): "",
    ("runs", "rejected"): "",
    ("runs", "expired"): "",
    ("runs", "dead_lettered"): "dead",
    ("runs", "parked"): "parked",
    ("runs", "retried"): "waits",
    ("runs", "cancelled"): "",
    ("runs", "snoozed"): "waits",
    ("runs", "handed_back"): "waits",
    ("waits", "limited"): "waits",
    ("lost", "limited"): "lost",
    ("runs", "interrupted"): "lost",
    ("lost", "started"): "runs",
    ("lost", "dead_lettered"): "dead",
    ("lost", "parked"): "parked",
    ("waits", "cancelled"): "",
    ("waits", "superseded"): "",
    ("lost", "cancelled"): "",
    ("parked", "cancelled"): "",
    ("parked", "replayed"): "waits",
    ("parked", "discarded"): "",
    ("dead", "replayed"): "waits",
    ("dead", "discarded"): "",
    ("dead", "accepted"): "waits",
}


def told(history: History) -> Iterator[tuple[str, str]]:
    """Find acceptances, starts and ends without exactly one event, and events out of order."""
    if history.told is None or history.stuck:
        return
    states: dict[str, str] = {}
    entities: dict[str, str] = {}
    starts: set[tuple[str, int, int]] = set()
    for event in history.told:
        if not event.id:
            continue
        state = states.get(event.id, "")
        if (state, event.kind) not in LIFE:
            yield event.entity, f"{event.id} was told to be {event.kind} while it {state or 'was nowhere'}"
        entities[event.id] = event.entity
        states[event.id] = LIFE.get((state, event.kind), "")
        if event.kind == "started":
            starts.add((event.entity, event.attempt, event.fence))  # a generated id is not known to the history
    for name, state in states.items():
        if state not in ("", "dead"):
            yield entities[name], f"the last that was told of {name} is that it {state}"
    for run in history.executions:
        if (run.entity, run.attempt, run.fence) not in starts:
            yield run.entity, f"the start of {run.id}, attempt {run.attempt}, was not told"
