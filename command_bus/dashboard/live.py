"""Events for the open page, sent by the server. A page asks again for itself when they say that something changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from command_bus.clock import mono
from command_bus.dashboard.visit import Visit
from command_bus.integrations.web import counted

MOST_LISTENERS = 1000
_MOST_EACH = 250
"""Open pages of one user: with all there may be, one would keep others' from following."""
_LASTS = 300.0
"""Seconds after which a browser has to ask again: then its session is looked at again."""
_QUIET = 15.0


async def live(visit: Visit) -> Response:
    """Answer with the beats of the pulse, until the page is closed."""
    if visit.state.pulse.listeners >= MOST_LISTENERS:
        return PlainTextResponse("too many pages are open", 503, headers={"Retry-After": "30"})
    if visit.state.pages_of[visit.user.name] >= _MOST_EACH:
        return PlainTextResponse("you have too many pages open", 429, headers={"Retry-After": "30"})
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_beats(visit), media_type="text/event-stream", headers=headers)


async def _beats(visit: Visit) -> AsyncGenerator[str]:
    until, last = mono() + _LASTS, 0
    yield "retry: 3000\n\n"
    async with visit.state.pulse.listening():
        with counted(visit.state.pages_of, visit.user.name):
            while mono() < until:
                if await visit.state.users.user(visit.request) is None:
                    yield "event: ended\ndata: {}\n\n"
                    return
                beat = await visit.state.pulse.beat(last, _QUIET)
                if beat is None:
                    yield ": quiet\n\n"
                else:
                    last = beat.number
                    yield f"data: {json.dumps(beat.facts())}\n\n"
                if await _is_gone(visit.request):
                    return


async def _is_gone(request: Request) -> bool:
    await asyncio.sleep(0)
    return await request.is_disconnected()
