"""One command: where it is, how far, its steps and log, and how it ended."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from command_bus.admin.command_status import CommandStatus
from command_bus.admin.events import EventPage
from command_bus.admin.history import HistoryEntry
from command_bus.admin.records import CommandRecord
from command_bus.dashboard.pages.attempts import attempts_of
from command_bus.dashboard.pages.history import history_error
from command_bus.dashboard.visit import Visit
from command_bus.errors import CommandBusError, UnknownCommand


async def command_page(visit: Visit) -> Response:
    """Show the command that `?id=` names.

    Raises:
        HTTPException: The address names none.
        UnknownCommand: Nothing is known of it.
    """
    command_id = visit.query["id"]
    if not command_id:
        raise HTTPException(404, "the address names no command: ?id=…")
    (status, end, recent), record = await asyncio.gather(_known(visit, command_id), _record(visit, command_id))
    if status is None and end is None:
        raise UnknownCommand(
            f"nothing is known of a command {command_id!r}: it was settled and its id is not remembered, or it has an id that was generated"
        )
    kind, entity_id = _entity_of(visit, status, end)
    return visit.page(
        "command.html",
        command_id=command_id,
        status=status,
        record=record,
        end=end,
        log=[(each.at_ms, each.text, visit.state.masking.headers(each.facts)) for each in reversed(record.log)]
        if record is not None
        else [],
        kind=kind,
        entity_id=entity_id,
        name=(status.name if status is not None else "") or (end.name if end is not None else ""),
        trace=visit.trace(status.trace_id if status is not None else ""),
        attempts=attempts_of(recent.events, command_id) if recent is not None else [],
        **await visit.apart(lambda: _texts(visit, end)),
    )


def _texts(visit: Visit, end: HistoryEntry | None) -> dict[str, Any]:
    """Return what a page shows of payload and reply, masked."""
    if end is None:
        return {"reply": None, "error": "", "payload": ""}
    return {
        "reply": None if end.error is not None else _shown(visit, end),
        "error": history_error(visit, end),
        "payload": visit.state.masking.shown(end.name, end.payload),
    }


async def _known(visit: Visit, command_id: str) -> tuple[CommandStatus | None, HistoryEntry | None, EventPage | None]:
    """Return where a command is, how it ended, and the events of its entity."""
    status, end = await asyncio.gather(_status(visit, command_id), visit.bus.history.get(command_id))
    return status, end, await _recent(visit, *_entity_of(visit, status, end))


async def _status(visit: Visit, command_id: str) -> CommandStatus | None:
    try:
        return await visit.bus.commands.status(command_id)
    except UnknownCommand:
        return None


async def _record(visit: Visit, command_id: str) -> CommandRecord | None:
    try:
        return await visit.bus.commands.record(command_id)
    except CommandBusError:
        return None


async def _recent(visit: Visit, kind: str, entity_id: str) -> EventPage | None:
    try:
        return await visit.bus.events.recent(kind, entity_id, limit=200) if kind and entity_id else None
    except CommandBusError:
        return None


def _entity_of(visit: Visit, status: CommandStatus | None, end: HistoryEntry | None) -> tuple[str, str]:
    """Return type and id of the command's entity, as far as they are known."""
    if end is not None and end.entity_type is not None and end.entity_id is not None:
        return end.entity_type, end.entity_id
    kind, colon, entity_id = (status.entity if status is not None else "").partition(":")
    if not colon or " " in kind:
        return visit.query["type"], visit.query["entity"]
    return kind, entity_id


def _shown(visit: Visit, end: HistoryEntry) -> str:
    """Return a reply as JSON, masked."""
    if isinstance(end.reply, dict):
        return visit.state.masking.shown(end.name, end.reply)
    text: str = json.loads(visit.state.masking.shown(end.name, {"reply": end.reply}))["reply"]
    return json.dumps(text, ensure_ascii=False, indent=2)
