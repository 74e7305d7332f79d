"""The page of commands that are not settled, with filters, and check boxes to cancel some of them."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from command_bus.admin.selection import SELECTABLE, SelectedCommand, Selection
from command_bus.clock import seconds_in
from command_bus.dashboard.visit import Fields, Visit, address
from command_bus.errors import InvalidSettings

FILTERS = ("state", "type", "name", "field", "value", "older")
"""The fields of an address that choose commands."""
_LIMIT = 50
_LOOK_AT = 20_000


async def commands_page(visit: Visit) -> Response:
    """List commands that are not settled, with filters."""
    selection = selection_of(visit, visit.query, _LOOK_AT)
    found, stats, types = await asyncio.gather(selection.first(_LIMIT), visit.stats(), visit.types())
    masking = visit.state.masking
    rows = await visit.apart(lambda: [(each, _box(each), masking.line(each.name, each.payload)) for each in found])
    chosen: dict[str, Any] = {name: visit.query[name] for name in FILTERS}
    return visit.page(
        "commands.html",
        rows=rows,
        looked=selection.looked,
        more=not selection.complete,
        unread=selection.unread,
        stats=stats,
        types=[each.name for each in types],
        states=SELECTABLE,
        chosen=chosen,
        is_filtered=any(chosen.values()),
    )


def selection_of(visit: Visit, fields: Fields, scan: int) -> Selection:
    """Return the commands that an address or a form chooses.

    Raises:
        InvalidSettings: A filter is none, or asks for the value of a field that is masked.
    """
    state: Any = fields["state"] or None
    name, older = fields["field"].strip(), fields["older"].strip()
    age = seconds_in(older) if older else None
    if older and age is None:
        raise InvalidSettings(f"accepted before={older!r}: a time as 90s, 30m, 2h or 7d")
    masking = visit.state.masking
    if masking.hides(name) or (name and masking.is_used and fields["value"].lstrip()[:1] in ("{", "[")):
        raise InvalidSettings(f"the field {name} is masked here, or something in it, so nothing is sought by its value")
    return visit.bus.commands.select(
        state=state,
        entity_type=fields["type"].strip() or None,
        name=fields["name"].strip() or None,
        where={name: fields["value"].strip()} if name else None,
        older_than=age,
        scan=scan,
    )


def _box(each: SelectedCommand) -> str:
    """Return what the check box of a command sends."""
    return address("", "", {"id": each.command_id, "type": each.entity_type, "entity": each.entity_id})[1:]
