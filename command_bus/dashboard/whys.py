"""Sentences: why an entity stands still, and what happened to it."""

from __future__ import annotations

from command_bus.admin.events import Event
from command_bus.admin.info import EntityInfo, HoldInfo, Stats
from command_bus.admin.views import StandingEntity
from command_bus.dashboard.words import ago, span, when

LABELS = {
    "parked": "parked",
    "no_handler": "no handler",
    "paused": "paused",
    "retrying": "retrying",
    "snoozed": "snoozed",
    "limited": "limited",
    "suspended": "suspended",
    "running": "running long",
    "waiting": "waiting",
}
"""The states of what stands still, for people."""


def why(each: StandingEntity, stats: Stats, now_ms: int, error: str) -> str:
    """Return why an entity does not get on.

    Args:
        each: The entity.
        stats: The stats of the same moment.
        now_ms: The server's time.
        error: The error of its dead letter, masked.
    """
    entity = each.entity
    match each.state:
        case "parked" if each.letter is not None:
            return f"{error} ({each.letter.reason}, {_times(each.letter.attempts)})"
        case "parked":
            return "a dead letter holds it"
        case "no_handler":
            return f"no live worker handles {each.command}" if stats.workers else "no worker is alive"
        case "paused":
            return hold_text(entity.hold, now_ms)
        case "retrying" | "snoozed":
            done = f"attempt {entity.attempt} failed" if each.state == "retrying" else f"put off {_times(entity.snoozes)}"
            return f"{done}; the next {ago(entity.retry_at_ms, now_ms) or 'is due'}"
        case "limited":
            return str(entity.limit) if entity.limit is not None else "waits for a limit"
        case "suspended":
            return str(entity.suspension) if entity.suspension is not None else "a durable command waits"
        case "running":
            return f"attempt {entity.attempt} has run for {span(entity.running_for)} on worker {entity.worker}"
        case _:
            return "waits for a worker" if stats.workers else "no worker is alive"


def hold_text(hold: HoldInfo | None, now_ms: int | None = None) -> str:
    """Return a pause or drain as a sentence."""
    if hold is None:
        return ""
    done = "paused" if hold.mode == "paused" else "drained"
    parts = [f"{hold.what} was {done}", f": {hold.reason}" if hold.reason else ""]
    ends = f"; it ends {ago(hold.until_ms, now_ms)}, at {when(hold.until_ms)}" if hold.until_ms else ""
    broken = "" if hold.everywhere else "; not on all shards: ask again"
    return "".join(parts) + ends + broken


def happened(event: Event) -> str:
    """Return what an event adds to its kind."""
    parts: list[str] = []
    if event.attempt:
        parts.append(f"attempt {event.attempt}")
    if event.delay is not None:
        parts.append(f"again in {span(event.delay)}" if event.kind != "accepted" else f"delayed for {span(event.delay)}")
    if event.worker:
        parts.append(f"worker {event.worker}")
    if event.reason:
        parts.append(event.reason)
    return ", ".join(parts)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times" if number else "never started"


def state_of(entity: EntityInfo) -> str:
    """Return the state of an entity of a listing, for people."""
    return "delayed" if entity.due_ms is not None else entity.state
