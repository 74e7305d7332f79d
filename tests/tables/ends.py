"""The table *ends × states*: every way in which a command ends, from every state in which it can be. Data alone: `test_ends.py` carries it out.

A command is set up so that it holds and owes all that a command can in that state (`HELD`). Whatever ends it, afterwards nothing of that is
held, and everybody who waits has been told, once. A new state or end is a row here, and a function of the same name there.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CELLS", "ENDS", "HELD", "NEVER", "ORIGINS", "STATES", "STAYS", "Cell", "why_never"]

STATES = (
    "waiting", "paused", "lone", "line", "delayed", "limited",
    "running", "thread", "batch", "run", "retrying", "snoozed", "suspended", "compensating", "parked",
)  # fmt: skip
"""Where it is when it ends."""

ENDS = {
    "completed": "completed",
    "rejected": "rejected",
    "failed": "dead_lettered",
    "given_up": "dead_lettered",
    "interrupted": "dead_lettered",
    "expired": "dead_lettered|expired",
    "unhandled": "dead_lettered",
    "invalid": "dead_lettered",
    "forged": "dead_lettered",
    "cancelled": "cancelled",
    "aborted": "dead_lettered",
    "purged": "cancelled",
    "superseded": "superseded",
    "discarded": "discarded",
    "replayed": "completed",
    "pruned": "dead_lettered",
    "obliterated": "",
}
"""How it ends, and the event that says so."""

ORIGINS = ("dispatch", "call", "child", "load", "schedule")
"""Who is to be told: who asks a receipt, a caller, the durable command that called it, a dispatch from Spark, the schedule whose next tick waits."""

HELD = {
    "unique": "its unique key",
    "place": "a place of a limit",
    "room": "room in its mailbox and in all",
    "reply": "the reply of its caller",
    "mark": "the mark of its command id",
    "side": "the side record of a durable command, with children and what undoes",
    "history": "an entry in the history",
    "outcome": "the outcome that its dispatch keeps",
    "overlap": "the next tick of its schedule",
}

UNSTARTED = ("waiting", "paused", "lone", "line", "delayed", "limited")
RUNNING = ("running", "thread", "batch", "run")
"""In the call of its handler: a coroutine, a thread, a handler of commands of several entities, and one of neighbours of one entity."""
STARTED = (*RUNNING, "retrying", "snoozed", "suspended", "compensating", "parked")
DURABLE = ("suspended", "compensating")
_DECIDED = (
    "completed",
    "rejected",
    "given_up",
    "interrupted",
    "unhandled",
    "invalid",
    "forged",
    "cancelled",
    "aborted",
    "purged",
)

NEVER: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], str], ...] = (
    (("expired",), STARTED, ORIGINS, "a command that was started is run to its end"),
    (("interrupted", "aborted"), tuple(set(STATES) - {*RUNNING}), ORIGINS, "only an attempt that runs is interrupted"),
    (
        ("interrupted", "aborted"),
        ("batch", "run"),
        ORIGINS,
        "no handler of many takes commands that are run at most once: it runs again",
    ),
    (("superseded",), STARTED, ORIGINS, "what was started is not replaced"),
    (("superseded",), ("lone",), ORIGINS, "a command with a unique key is never alone in its record"),
    (("superseded",), STATES, ("child",), "a call within a handler has the key of its class: there the first wins"),
    (("superseded",), STATES, ("schedule",), "a firing has no unique key"),
    (("purged",), RUNNING, ORIGINS, "what runs is not purged"),
    (("purged",), DURABLE, ORIGINS, "a durable command that has begun is left to undo what it did"),
    (_DECIDED, ("compensating",), ORIGINS, "its end is decided; it is being undone"),
    (("unhandled", "invalid", "forged"), (*RUNNING, "parked"), ORIGINS, "it has been read"),
    (
        ("unhandled", "invalid", "forged"),
        ("suspended",),
        ORIGINS,
        "it parks its entity, since it has something to undo: see the table of unrun ends",
    ),
    (
        ("completed", "rejected", "failed", "given_up"),
        ("parked",),
        ORIGINS,
        "an operator decides: replayed, discarded or removed",
    ),
    (("failed",), ("suspended",), ORIGINS, "that is compensating"),
    (("cancelled",), ("parked",), ORIGINS, "its dead letter is discarded instead"),
    (tuple(ENDS), DURABLE, ("load",), "a load refuses durable commands: no signal would find one"),
    (
        ("discarded", "replayed", "pruned"),
        tuple(set(STATES) - {"parked", "retrying"}),
        ORIGINS,
        "there is no dead letter; behind a failure: see retrying",
    ),
    (("pruned",), ("parked",), ORIGINS, "a letter that parks its entity is never deleted by age or number"),
    (("invalid",), STATES, ("child",), "its caller has the same class, and fails by it first"),
    (("forged",), STATES, ("child", "load"), "what sends these is of the same fleet, with the same keys"),
    (
        tuple(ENDS),
        ("delayed",),
        ("call", "child", "load", "schedule"),
        "a call and a tick do not wait, and a load only with a debounced key",
    ),
    (tuple(ENDS), ("lone", "line"), ("child",), "its caller needs the worker that would start it"),
    (("obliterated",), STATES, ("child",), "its caller is deleted with it"),
    (("expired",), STATES, ("child", "load"), "a call within a handler and a row have no deadline"),
)
"""What cannot be: ends, states, origins, and why."""

UNREAD = ("forged",)
"""Ends of commands that are not believed: their key is free, but its entry stays for a sweep, and they have no history."""
ANY, GONE, EXPIRES = "any", "gone", "expires"
STAYS: tuple[tuple[str, str], ...] = (
    (
        r"meta|commands|workers|fence|states|rules|flows|turns|watched|events|arrivals|hint:.*|note:.*|audit|trends|relayed:\d+",
        ANY,
    ),
    (r"dispatches|b:[^:]*(:out)?", ANY),
    (r"history|history:ids|dead|ready|stats|limits", "counted"),
    (r"p:.*|k:.*|in:.*|interrupts", EXPIRES),
    (r".*", GONE),
)
"""What may be left of a namespace whose commands have all ended: the first pattern that matches a key says how."""


class Cell(NamedTuple):
    """A command that came by one way, is in one state and ends in one way."""

    end: str
    state: str
    origin: str


def why_never(cell: Cell) -> str:
    """Return why a combination cannot be; empty if it can."""
    for ends, states, origins, why in NEVER:
        if cell.end in ends and cell.state in states and cell.origin in origins:
            return why
    return ""


CELLS = tuple(cell for end in ENDS for state in STATES for origin in ORIGINS if not why_never(cell := Cell(end, state, origin)))
