"""The audit log: who did what, when and why."""

from __future__ import annotations

from starlette.responses import Response

from command_bus.dashboard.visit import Visit

_LIMIT = 100
_MOST_UNANNOUNCED = 50
"""Ids in an address; each is of an act of whose end the page before tells."""


async def audit_page(visit: Visit) -> Response:
    """List what operators did, newest first. What has ended stands there once, with its outcome."""
    page = await visit.bus.audit.page(limit=_LIMIT, cursor=visit.query["cursor"] or None)
    before = visit.query["ended"].split(",")[:_MOST_UNANNOUNCED]
    ended = sorted(each for each in page.unannounced(before) if each)[:_MOST_UNANNOUNCED]
    return visit.page("audit.html", entries=page.acts(before), cursor=page.cursor, ended=",".join(ended))
