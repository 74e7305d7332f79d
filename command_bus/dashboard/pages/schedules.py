"""Schedules with their next ticks."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from command_bus.dashboard.visit import Visit
from command_bus.scheduling.info import ScheduleInfo

_MOST = 300
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
        if len(found) == _MOST:
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
