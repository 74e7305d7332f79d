"""One entity: its line, what runs, its story, and what may be done with it."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.responses import Response

from command_bus.admin.events import Event
from command_bus.admin.history import HistoryEntry
from command_bus.admin.info import EntityDetails
from command_bus.dashboard.pages.standing import letter_error
from command_bus.dashboard.visit import Visit
from command_bus.dashboard.whys import happened, hold_text

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
    details, recent, ends, watched = await asyncio.gather(
        entity.show(waiting=_WAITING, scan=_SCAN_DELAYED),
        visit.bus.events.recent(kind, entity_id, limit=_TOLD, before=visit.query["before"]),
        visit.bus.history.search(entity=(kind, entity_id), limit=20, scan=_SCAN_HISTORY),
        visit.state.reads.get("watched", visit.bus.events.watched),
    )
    is_watched = kind in watched or "*" in watched
    return visit.page(
        "entity.html",
        kind=kind,
        entity_id=entity_id,
        details=details,
        entity=details.entity,
        reason=_reason(details),
        error=await visit.apart(lambda: letter_error(visit, details.letter)),
        told=story(recent.events, ends.entries),
        before=recent.before,
        is_watched=is_watched,
        types=len(watched),
    )


def story(events: tuple[Event, ...], ends: tuple[HistoryEntry, ...]) -> list[Told]:
    """Return what happened, newest first: events, and of the history what no event tells."""
    told: list[Told] = [(each.at_ms, each.kind, each.name, each.command_id, happened(each), each.letter_id) for each in events]
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
