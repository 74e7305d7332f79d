"""Entities that have work: by a part of their ids, or by their state."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from starlette.responses import Response

from command_bus.admin.info import EntityInfo, EntityTypeInfo
from command_bus.admin.views import STANDING_STATES
from command_bus.dashboard.visit import Visit
from command_bus.dashboard.whys import LABELS

_LIMIT = 100
_IN_A_STATE = 500
"""Entities in a state that are shown."""


async def entities_page(visit: Visit) -> Response:
    """List entities: `?q=` those whose ids contain a text, `?type=` those of a type, `?state=` those in a state."""
    types, stats, found = await asyncio.gather(
        visit.state.reads.get("types", visit.bus.entities.types),
        visit.state.reads.get("stats", visit.bus.stats),
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
