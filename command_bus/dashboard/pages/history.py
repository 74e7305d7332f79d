"""Search over the history: how commands ended."""

from __future__ import annotations

import asyncio
from typing import cast, get_args

from starlette.responses import Response

from command_bus.admin.history import HistoryEntry
from command_bus.dashboard.pages.letters import filters_of
from command_bus.dashboard.visit import Visit
from command_bus.serialization.outcome import Status

STATUSES: tuple[str, ...] = get_args(Status)
_LIMIT = 50
_SCAN = 600


async def history_page(visit: Visit) -> Response:
    """List ends of commands, newest first, with filters."""
    query = visit.query
    wanted = query["status"]
    status = cast("Status", wanted) if wanted in STATUSES else None
    kind, entity_id = query["type"].strip(), query["id"].strip()
    times = filters_of(query)
    page, stats = await asyncio.gather(
        visit.shared(
            "history",
            lambda: visit.bus.history.search(
                name=query["name"].strip() or None,
                entity=(kind, entity_id) if kind and entity_id else None,
                entity_type=kind if kind and not entity_id else None,
                status=status,
                since=times.get("since"),
                until=times.get("until"),
                limit=_LIMIT,
                scan=_SCAN,
                cursor=query["cursor"] or None,
            ),
        ),
        visit.state.reads.get("stats", visit.bus.stats),
    )
    chosen = {name: query[name] for name in ("name", "type", "id", "status", "since", "until")}
    errors = await visit.apart(lambda: [history_error(visit, each) for each in page.entries])
    return visit.page("history.html", page=page, errors=errors, statuses=STATUSES, chosen=chosen, stats=stats, scan=_SCAN)


def history_error(visit: Visit, end: HistoryEntry) -> str:
    """Return the error with which a command ended, masked; empty if it ended well."""
    if end.error is None:
        return ""
    masking = visit.state.masking
    return end.error.code if masking.is_used and end.payload is None else masking.text(end.name, end.payload, end.error.message)


_AUDIT_LIMIT = 100
_MOST_UNANNOUNCED = 50
"""Ids in an address; each is of an act of whose end the page before tells."""


async def audit_page(visit: Visit) -> Response:
    """List what operators did, newest first. What has ended stands there once, with its outcome."""
    page = await visit.bus.audit.page(limit=_AUDIT_LIMIT, cursor=visit.query["cursor"] or None)
    before = visit.query["ended"].split(",")[:_MOST_UNANNOUNCED]
    ended = sorted(each for each in page.unannounced(before) if each)[:_MOST_UNANNOUNCED]
    return visit.page("audit.html", entries=page.acts(before), cursor=page.cursor, ended=",".join(ended))
