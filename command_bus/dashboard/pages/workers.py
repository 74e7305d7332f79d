"""Workers, and what they handle: during a deploy some handle what others do not know yet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.responses import Response

from command_bus.dashboard.visit import Visit
from command_bus.serialization.announcements import CommandInfo, WorkerStatus


async def workers_page(visit: Visit) -> Response:
    """Show the workers by the code that they run, lost ones, and the commands that are announced."""
    workers, commands, stats = await asyncio.gather(
        visit.shared("workers", visit.bus.fleet.workers),
        visit.shared("commands", visit.bus.fleet.commands),
        visit.state.reads.get("stats", visit.bus.stats),
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
