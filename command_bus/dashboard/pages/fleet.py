"""Pages of the fleet: workers, schedules, subscriptions, limits; and the beats that every open page follows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from command_bus.admin.info import ShareInfo, Stats
from command_bus.admin.limits import LimitInfo
from command_bus.clock import mono
from command_bus.dashboard.visit import Visit
from command_bus.integrations.web import counted
from command_bus.messages.policies import parts_of_delivery
from command_bus.scheduling.info import ScheduleInfo
from command_bus.serialization.announcements import CommandInfo, WorkerStatus

_MOST_LIMITS = 200


async def limits_page(visit: Visit) -> Response:
    """Show limits; `?name=` the buckets of one. Shares are read once tenants or priorities are used."""
    limits, buckets, (stats, shares) = await asyncio.gather(
        visit.shared("limits", visit.bus.limits.list), _buckets(visit), _shares(visit)
    )
    return visit.page(
        "limits.html",
        limits=limits,
        buckets=sorted(buckets, key=lambda each: -each.waiting)[:_MOST_LIMITS],
        chosen=visit.query["name"],
        shares=shares[:_MOST_LIMITS],
        stats=stats,
    )


async def _buckets(visit: Visit) -> list[LimitInfo]:
    return await visit.bus.limits.list(visit.query["name"]) if visit.query["name"] else []


async def _shares(visit: Visit) -> tuple[Stats, list[ShareInfo]]:
    """Return the shares, if there are any: while none are used, looking for them would mean to look at all that waits."""
    stats = await visit.stats()
    return stats, await visit.shared("shares", visit.bus.fairness.list) if stats.priorities else []


_MOST_SCHEDULES = 300
_TICKS = 5


async def schedules_page(visit: Visit) -> Response:
    """List schedules, what is due next first; `?name=` shows one of them with its next ticks."""
    chosen = visit.query["name"]
    found, shown = await asyncio.gather(visit.shared("schedules", lambda: _listed(visit)), _chosen(visit, chosen))
    schedules, complete = found
    text = visit.query["q"].casefold()
    return visit.page(
        "schedules.html",
        schedules=[each for each in schedules if text in f"{each.name} {each.command}".casefold()],
        complete=complete,
        read=len(schedules),
        chosen=shown[0] if shown is not None else None,
        ticks=shown[1] if shown is not None else (),
    )


async def _listed(visit: Visit) -> tuple[list[ScheduleInfo], bool]:
    found: list[ScheduleInfo] = []
    async for each in visit.bus.schedules.list():
        if len(found) == _MOST_SCHEDULES:
            return _by_tick(found), False
        found.append(each)
    return _by_tick(found), True


def _by_tick(found: list[ScheduleInfo]) -> list[ScheduleInfo]:
    return sorted(found, key=lambda each: (each.next_at_ms or 2**60, each.name))


async def _chosen(visit: Visit, name: str) -> tuple[ScheduleInfo, tuple[int, ...]] | None:
    if not name:
        return None
    info, ticks = await asyncio.gather(visit.bus.schedules.get(name), visit.bus.schedules.next(name, _TICKS))
    return info, tuple(int(each.timestamp() * 1000) for each in ticks)


async def subscriptions_page(visit: Visit) -> Response:
    """List subscriptions with what waits for them. It does not follow by itself: to count that, all entities with work are looked at."""
    found, types = await asyncio.gather(visit.shared("subscriptions", visit.bus.subscriptions.list), visit.types())
    lines: dict[str, list[str]] = {}
    for each in types:
        lines.setdefault(parts_of_delivery(each.name)[1], []).append(each.name)
    return visit.page("subscriptions.html", subscriptions=found, lines=lines)


async def workers_page(visit: Visit) -> Response:
    """Show the workers by the code that they run, lost ones, and the commands that are announced."""
    workers, commands, stats = await asyncio.gather(
        visit.shared("workers", visit.bus.fleet.workers),
        visit.shared("commands", visit.bus.fleet.commands),
        visit.stats(),
    )
    live = [each for each in workers if each.alive]
    return visit.page(
        "workers.html",
        live=live,
        lost=[each for each in workers if not each.alive],
        builds=_builds(live),
        commands=[(each, _coverage(each, live)) for each in commands],
        stats=stats,
    )


def _builds(live: Sequence[WorkerStatus]) -> list[tuple[int, str, int, list[str]]]:
    """Return the kinds of workers, by what they handle: how many, the first name, since when the newest, and what only they lack."""
    kinds: dict[frozenset[str], list[WorkerStatus]] = {}
    for worker in live:
        kinds.setdefault(frozenset(worker.commands), []).append(worker)
    known = frozenset[str]().union(*kinds)
    found = [
        (len(each), each[0].name, max(worker.started_ms for worker in each), sorted(known - handled))
        for handled, each in kinds.items()
    ]
    return sorted(found, key=lambda each: -each[2])


def _coverage(info: CommandInfo, live: Sequence[WorkerStatus]) -> str:
    """Return `all`, `some` or `none`: of the live workers, who handles a command."""
    return "none" if not info.workers else "all" if len(info.workers) >= len(live) else "some"


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
