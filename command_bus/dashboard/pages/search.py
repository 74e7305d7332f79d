"""The search field of every page: a command's id, an entity, a dead letter."""

from __future__ import annotations

import asyncio
import re

from starlette.responses import RedirectResponse, Response

from command_bus.dashboard.visit import Visit
from command_bus.errors import CommandBusError

_LETTER = re.compile(r"\d{1,4}-\d{13,}-\d+")


async def search_page(visit: Visit) -> Response:
    """Lead to what `?q=` names as a whole, else to the entities whose ids contain it."""
    text = visit.query["q"].strip()
    if not text:
        return _to(visit.url("/entities"))
    if _LETTER.fullmatch(text) and await visit.bus.dead_letters.several([text]):
        return _to(visit.url("/letter", id=text))
    known, end, types = await asyncio.gather(
        _is_known(visit, text), visit.bus.history.get(text), visit.state.reads.get("types", visit.bus.entities.types)
    )
    if known or end is not None:
        return _to(visit.url("/command", id=text))
    kind, colon, rest = text.partition(":")
    if colon and rest and kind in {each.name for each in types}:
        return _to(visit.url("/entity", type=kind, id=rest))
    return _to(visit.url("/entities", q=text))


async def _is_known(visit: Visit, text: str) -> bool:
    try:
        await visit.bus.commands.status(text)
    except CommandBusError:
        return False
    return True


def _to(url: str) -> Response:
    return RedirectResponse(url, status_code=303)
