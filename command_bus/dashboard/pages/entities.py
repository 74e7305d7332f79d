"""Entities that have work: by a part of their ids, or by their state."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from command_bus.admin.info import EntityInfo, EntityTypeInfo
from command_bus.admin.views import STANDING_STATES
from command_bus.dashboard.visit import Visit
from command_bus.dashboard.whys import LABELS

__all__ = ["entities_page"]

_LIMIT = 100
_LOOKED = 500
"""Entities in a state that are looked at."""


async def entities_page(visit: Visit) -> Response:
    """List entities: `?q=` those whose ids contain a text, `?type=` those of a type, `?state=` those in a state."""
    types, stats, (found, cursor, looked) = await asyncio.gather(
        visit.state.reads.get("types", visit.bus.entities.types),
        visit.state.reads.get("stats", visit.bus.stats),
        _found(visit),
    )
    names = [each.name for each in types]
    return visit.page(
        "entities.html",
        entities=sorted(found, key=lambda each: (-each.depth, each.name)),
        cursor=cursor,
        looked=looked,
        types=names,
        stats=stats,
        states=[(state, LABELS[state]) for state in STANDING_STATES],
        exact=_exact(visit.query["q"], types),
    )


async def _found(visit: Visit) -> tuple[list[EntityInfo], str | None, int]:
    """Return a page of entities, the cursor of the next one, and how many were looked at."""
    wanted = visit.query["state"]
    if wanted in STANDING_STATES:
        still = await visit.shared(wanted, lambda: visit.bus.views.standing_still(states=[wanted], patience=0.0, limit=_LOOKED))
        return [each.entity for each in still.entities], None, _LOOKED
    page = await visit.bus.views.find(
        visit.query["q"], entity_type=visit.query["type"] or None, limit=_LIMIT, cursor=visit.query["cursor"] or None
    )
    return list(page.entities), page.cursor, page.looked


def _exact(text: str, types: list[EntityTypeInfo]) -> list[tuple[str, str]]:
    """Return the entities that a text names as a whole: they have pages although they have no work."""
    kind, colon, rest = text.strip().partition(":")
    names = [each.name for each in types]
    if colon and rest and kind in names:
        return [(kind, rest)]
    return [(name, text.strip()) for name in names[:6]] if text.strip() else []
