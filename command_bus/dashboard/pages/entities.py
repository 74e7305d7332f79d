"""Pages of entities: what is stuck and why, all that have work, and one with its story."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.responses import Response

from command_bus.admin.events import CommandEvent
from command_bus.admin.history import HistoryEntry
from command_bus.admin.info import DeadLetter, EntityDetails, EntityInfo, EntityTypeInfo, Stats, WaitingCommand
from command_bus.admin.states import StateEntry
from command_bus.admin.views import STANDING_STATES, StandingEntity, StandingState, Standstill
from command_bus.dashboard.masking import LARGE, Masking
from command_bus.dashboard.visit import Visit
from command_bus.dashboard.words import ago, span, when
from command_bus.errors import BadState, InvalidCommand, UnsuitableServer
from command_bus.spelling import without_numbers
from command_bus.transport.records import Failure, HoldInfo

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
"""The states of what is stuck, for people."""
NEXT = {
    "parked": "Somebody has to decide: replay, edit or discard its dead letter.",
    "no_handler": "Somebody has to act: start a worker that handles it.",
    "paused": "It goes on when it is resumed.",
    "retrying": "It is tried again by itself, until its last attempt.",
    "snoozed": "It goes on by itself at that time.",
    "limited": "It goes on by itself when the limit lets it.",
    "suspended": "It goes on by itself when that comes; its command page can send a signal.",
    "running": "It goes on by itself. Abort it if its handler hangs.",
    "waiting": "It goes on when a worker is free.",
}
"""The next thing that happens to what is stuck, by its state."""


def why(each: StandingEntity, stats: Stats, now_ms: int, error: str) -> str:
    """Return why an entity makes no progress.

    Args:
        each: The entity.
        stats: Figures of the same moment.
        now_ms: The server's time.
        error: What its dead letter says, or its last attempt failed with, masked.
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
            return f"{f'{error}; ' if error else ''}{done}; the next {ago(entity.retry_at_ms, now_ms) or 'is due'}"
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
    what = f"everything of type {hold.entity_type}" if hold.what == f"all {hold.entity_type}" else hold.what
    parts = [f"{what} was {done}", f": {hold.reason}" if hold.reason else ""]
    ends = f"; it ends {ago(hold.until_ms, now_ms)}, at {when(hold.until_ms)} UTC" if hold.until_ms else ""
    broken = "" if hold.everywhere else "; not on all shards: ask again"
    return "".join(parts) + ends + broken


def happened(event: CommandEvent) -> str:
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


_LIMIT = 100
_MOST_READ = 16 * 1024
"""Bytes of a dead letter whose payload is read for one line: a page has a hundred of them."""


@dataclass(slots=True)
class Trouble:
    """Entities that are stuck for the same reason: the same state and command, and the same cause but for numbers in it.

    Attributes:
        state: Why they are stuck.
        command: Wire name of the command at their heads.
        cause: The reason of the first of them.
        rows: The entities, the longest stuck first, each with its reason.
    """

    state: StandingState
    command: str
    cause: str
    rows: list[tuple[StandingEntity, str]] = field(default_factory=list)

    @property
    def queued(self) -> int:
        """Commands in all of them."""
        return sum(each.entity.depth for each, _ in self.rows)


_SHOWN_OF_ONE = 50


def grouped(rows: Sequence[tuple[StandingEntity, str, str]]) -> list[Trouble]:
    """Return rows of equal troubles as one, what needs somebody before the rest; each row is an entity, its cause, and its reason."""
    found: dict[tuple[str, str, str], Trouble] = {}
    for each, cause, reason in rows:
        key = (each.state, each.command, without_numbers(cause))
        found.setdefault(key, Trouble(each.state, each.command, cause)).rows.append((each, reason))
    return sorted(found.values(), key=lambda each: each.state not in ("parked", "no_handler"))


def _cause(each: StandingEntity, stats: Stats, error: str) -> str:
    """Return why an entity is stuck, without what differs between entities with the same trouble."""
    entity = each.entity
    match each.state:
        case "parked" | "retrying" if error:
            return error
        case "retrying":
            return "offered again: no worker took it yet" if not entity.attempt else "an attempt failed"
        case "snoozed":
            return "its handler has put it off"
        case "limited" if entity.limit is not None:
            return f"waits for limit {entity.limit.limit}"
        case "paused" if entity.hold is not None:
            return f"paused{': ' if entity.hold.reason else ''}{entity.hold.reason}"
        case "running":
            return "its handler runs for long"
        case _:
            return why(each, stats, 0, error)


async def standing_page(visit: Visit) -> Response:
    """Show what is stuck and why, equal troubles as one row; `?state=` only what is stuck for one reason."""
    wanted = visit.query["state"]
    states = (wanted,) if wanted in STANDING_STATES else ()
    still = await visit.shared("still", lambda: visit.bus.views.standing_still(limit=_LIMIT))
    found = [each for each in still.entities if not states or each.state in states]

    def reasons() -> list[Trouble]:
        rows: list[tuple[StandingEntity, str, str]] = []
        for each in found:
            error = letter_error(visit, each.letter) or failure_text(
                visit.state.masking, each.command, each.payload, each.entity.failure
            )
            rows.append((each, _cause(each, still.stats, error), why(each, still.stats, still.now_ms, error)))
        return grouped(rows)

    return visit.page(
        "standing.html",
        still=still,
        troubles=await visit.apart(reasons),
        shown=_SHOWN_OF_ONE,
        holds=[(hold, hold_text(hold, still.now_ms)) for hold in still.holds],
        tiles=_tiles(still),
        wanted=states[0] if states else "",
        labels=LABELS,
        following=NEXT,
    )


def letter_error(visit: Visit, letter: DeadLetter | None) -> str:
    """Return the error of a dead letter in one line, masked."""
    if letter is None:
        return ""
    kind = letter.error_type.rpartition(".")[2]
    message = letter.error_message
    if visit.state.masking.is_used:  # else its payload need not be read
        is_large = len(letter.raw) > _MOST_READ
        message = LARGE if is_large else visit.state.masking.text(letter.name, letter.payload, message)
    message = message.strip().partition("\n")[0]  # a masked value may have more than a line
    return f"{kind}: {message}" if kind else message or letter.reason


def _tiles(still: Standstill) -> list[tuple[str, str, int, bool]]:
    """Return state, label and number of the tiles, and whether there may be more, without those that are always empty."""
    shown = {each.state for each in still.entities}
    always = ("parked", "no_handler", "paused", "retrying", "limited", "suspended", "running", "waiting")
    counted = {state: sum(each.state == state for each in still.entities) for state in STANDING_STATES}
    counted |= {state: still.totals.get(state, 0) for state in ("parked", "limited", "suspended")}
    return [
        (state, LABELS[state], counted[state], state in still.at_least)
        for state in STANDING_STATES
        if state in always or state in shown
    ]


_IN_A_STATE = 500
"""Entities in a state that are shown."""


async def entities_page(visit: Visit) -> Response:
    """List entities: `?q=` those whose ids contain a text, `?type=` those of a type, `?state=` those in a state."""
    types, stats, found = await asyncio.gather(
        visit.types(),
        visit.stats(),
        _found(visit),
    )
    names = [each.name for each in types]
    return visit.page(
        "entities.html",
        entities=sorted(found.entities, key=lambda each: (-each.depth, each.name)),
        cursor=found.cursor,
        looked=found.looked,
        cut=found.cut,
        types=names,
        stats=stats,
        states=[(state, LABELS[state]) for state in STANDING_STATES],
        exact=_exact(visit.query["q"], types),
    )


class _Found(NamedTuple):
    """A page of entities: which, the cursor of the next one, how many were looked at (None: those in a state), whether there may be more."""

    entities: Sequence[EntityInfo]
    cursor: str | None
    looked: int | None
    cut: bool


async def _found(visit: Visit) -> _Found:
    wanted = visit.query["state"]
    if wanted in STANDING_STATES:
        still = await visit.shared(
            wanted, lambda: visit.bus.views.standing_still(states=[wanted], patience=0.0, limit=_IN_A_STATE)
        )
        return _Found([each.entity for each in still.entities], None, None, not still.complete)
    page = await visit.bus.views.find(
        visit.query["q"], entity_type=visit.query["type"] or None, limit=_LIMIT, cursor=visit.query["cursor"] or None
    )
    return _Found(page.entities, page.cursor, page.looked, page.cursor is not None)


def _exact(text: str, types: list[EntityTypeInfo]) -> list[tuple[str, str]]:
    """Return the entities that a text names as a whole: they have pages although they have no work."""
    kind, colon, rest = text.strip().partition(":")
    names = [each.name for each in types]
    if colon and rest and kind in names:
        return [(kind, rest)]
    return [(name, text.strip()) for name in names[:6]] if text.strip() else []


_WAITING = 50
_TOLD = 100
_SCAN_DELAYED = 1000
_SCAN_HISTORY = 300

Told = tuple[int, str, str, str, str, str]
"""A line of a story: when (ms), what, of which command (name, id), details, id of a dead letter."""


async def entity_page(visit: Visit) -> Response:
    """Show the entity that `?type=` and `?id=` name.

    Raises:
        HTTPException: The address names none.
    """
    kind, entity_id = visit.query["type"], visit.query["id"]
    if not kind or not entity_id:
        raise HTTPException(404, "the address names no entity: ?type=…&id=…")
    entity = visit.bus.entity(kind, entity_id)
    details, recent, ends, watched, acts, (held, changed) = await asyncio.gather(
        entity.show(waiting=_WAITING, scan=_SCAN_DELAYED),
        visit.bus.events.recent(kind, entity_id, limit=_TOLD, before=visit.query["before"]),
        visit.bus.history.search(entity=(kind, entity_id), limit=20, scan=_SCAN_HISTORY),
        visit.state.reads.get("watched", visit.bus.events.watched),
        visit.bus.audit.about((f"{kind}:{entity_id}",)),
        _state(visit, kind, entity_id),
    )
    is_watched = kind in watched or "*" in watched
    return visit.page(
        "entity.html",
        kind=kind,
        entity_id=entity_id,
        details=details,
        entity=details.entity,
        reason=_reason(details),
        **await visit.apart(lambda: _texts(visit, details)),
        told=story(recent.events, ends.entries, visit.state.masking),
        before=recent.before,
        is_watched=is_watched,
        acts=acts,
        held=held,
        changed=changed,
        types=len(watched),
    )


async def _state(visit: Visit, kind: str, entity_id: str) -> tuple[str, StateEntry[dict[str, Any]] | None]:
    """Return the state of an entity, masked, or why it cannot be read; empty if there is none."""
    try:
        entry = await visit.bus.states.find(kind, entity_id)
    except BadState as error:
        return error.message, None
    except (InvalidCommand, UnsuitableServer):  # lanes have none
        return "", None
    return ("", None) if entry is None else (visit.state.masking.shown(kind, entry.value), entry)


def _texts(visit: Visit, details: EntityDetails) -> dict[str, Any]:
    """Return what the page shows of payloads and errors, masked."""
    masking, head = visit.state.masking, details.head
    line = ([head] if head is not None else [WaitingCommand("", "", 0, None)]) + list(details.waiting)
    return {
        "error": letter_error(visit, details.letter),
        "shown": [masking.line(each.name, each.payload) for each in line],
        "failure": failure_text(masking, line[0].name, line[0].payload, details.entity.failure),
    }


def failure_text(masking: Masking, name: str, payload: Mapping[str, Any] | None, failure: Failure | None) -> str:
    """Return how the last attempt of a command failed in one line, masked; without its payload only the class of the error. Empty if none did."""
    if failure is None:
        return ""
    is_hidden = masking.is_used and payload is None
    text = failure.text.partition(":")[0] if is_hidden else masking.text(name, payload, failure.text)
    return text.strip().partition("\n")[0]


def story(events: tuple[CommandEvent, ...], ends: tuple[HistoryEntry, ...], masking: Masking) -> list[Told]:
    """Return what happened, newest first: events, and of the history what no event tells. Of errors the class alone where fields are masked."""
    told: list[Told] = []
    for each in events:
        more = happened(each.outward if masking.is_used else each)
        told.append((each.at_ms, each.kind, each.name, each.command_id, more, each.letter_id))
    known = {each.command_id for each in events if each.kind not in ("accepted", "started")}
    told += [
        (each.settled_ms, each.status, each.name, each.command_id, f"attempt {each.attempts}, worker {each.worker or 'none'}", "")
        for each in ends
        if each.command_id not in known
    ]
    return sorted(told, key=lambda each: each[0], reverse=True)


def _reason(details: EntityDetails) -> str:
    entity = details.entity
    if entity.state == "parked":
        return "Its dead letter waits for a decision: replay it, edit it, or discard it. What comes behind it waits."
    if entity.hold is not None:
        return hold_text(entity.hold)
    if details.handlers == 0 and details.head is not None:
        return f"No live worker handles {details.head.name}."
    if entity.limit is not None:
        return str(entity.limit)
    return str(entity.suspension) if entity.suspension is not None else ""
