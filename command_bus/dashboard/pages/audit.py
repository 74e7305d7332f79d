"""The audit log: who did what, when and why."""

from __future__ import annotations

from starlette.responses import Response

from command_bus.dashboard.visit import Visit

__all__ = ["audit_page"]

_LIMIT = 100


async def audit_page(visit: Visit) -> Response:
    """List what operators did, newest first. What has ended stands there once, with its outcome."""
    page = await visit.bus.audit.page(limit=_LIMIT, cursor=visit.query["cursor"] or None)
    ended = {each.ref for each in page.entries if each.ref}
    return visit.page("audit.html", entries=[each for each in page.entries if each.id not in ended], cursor=page.cursor)
