"""Limits and what they hold up, and the shares of tenants."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from command_bus.admin.info import ShareInfo, Stats
from command_bus.admin.limits import LimitInfo
from command_bus.dashboard.visit import Visit

_MOST = 200


async def limits_page(visit: Visit) -> Response:
    """Show limits; `?name=` the buckets of one. Shares are read once tenants or priorities are used."""
    limits, buckets, (stats, shares) = await asyncio.gather(
        visit.shared("limits", visit.bus.limits.list), _buckets(visit), _shares(visit)
    )
    return visit.page(
        "limits.html",
        limits=limits,
        buckets=sorted(buckets, key=lambda each: -each.waiting)[:_MOST],
        chosen=visit.query["name"],
        shares=shares[:_MOST],
        stats=stats,
    )


async def _buckets(visit: Visit) -> list[LimitInfo]:
    return await visit.bus.limits.list(visit.query["name"]) if visit.query["name"] else []


async def _shares(visit: Visit) -> tuple[Stats, list[ShareInfo]]:
    """Return the shares, if there are any: while none are used, looking for them would mean to look at all that waits."""
    stats = await visit.state.reads.get("stats", visit.bus.stats)
    return stats, await visit.shared("shares", visit.bus.fairness.list) if stats.priorities else []
