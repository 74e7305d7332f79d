"""All holders of a limit's places are killed at once, again and again: their places come back with their leases, and never one too many."""

from __future__ import annotations

import asyncio
import time

import pytest

from command_bus import CommandBus
from tests.integration.conftest import Fleet
from tests.integration.fault_app import Apply
from tests.integration.history import History, Pause

pytestmark = pytest.mark.timeout(120)

PLACES, WORKERS, LINES, TOTAL, KILLS = 3, 3, 40, 400, 3


def most_at_a_time(history: History) -> int:
    """Return how many handlers ran at a time at most. One whose process was killed ran until then."""
    killed = {pause.pid: pause.start for pause in history.pauses}
    running: dict[tuple[str, int], int] = {}
    most = 0
    for event in history.events:
        running = {run: pid for run, pid in running.items() if killed.get(pid, event.at) >= event.at}
        run = (event.line, event.fence)
        if event.what == "start":
            running[run] = event.pid
        else:
            running.pop(run, None)
        most = max(most, len(running))
    return most


def starts_in(history: History, began: float, ended: float) -> list[float]:
    return [event.at for event in history.events if event.what == "start" and began < event.at <= ended]


async def _until_all_places_are_taken(bus: CommandBus) -> None:
    async with asyncio.timeout(20):
        while (await bus.limits.list("type:line"))[0].used < PLACES:
            await asyncio.sleep(0.005)


@pytest.mark.promise("Places come back")
@pytest.mark.slow
async def test_the_places_of_killed_workers_come_back_with_their_leases(fleet: Fleet) -> None:
    kills: list[tuple[float, int]] = []
    async with CommandBus(fleet.url, namespace=fleet.namespace, lease=fleet.lease) as bus:
        await bus.limits.put("type:line", concurrency=PLACES)
        await bus.dispatch_batch(Apply(line=f"l{number % LINES}", number=number, busy=0.06) for number in range(TOTAL))
        for _ in range(KILLS):
            fleet.start(WORKERS)
            seen = len(starts_in(fleet.history(), 0, time.monotonic()))
            async with asyncio.timeout(30):
                while len(starts_in(fleet.history(), 0, time.monotonic())) < seen + 20:
                    await asyncio.sleep(0.05)
            await _until_all_places_are_taken(bus)
            for process in fleet.processes:  # all are hit before one is waited for
                fleet.pauses.append(Pause(process.pid, time.monotonic()))
                process.kill()
            for process in fleet.processes:
                process.wait()
            fleet.processes.clear()
            kills.append((time.monotonic(), (await bus.limits.list("type:line"))[0].used))
        fleet.start(WORKERS)
        await bus.wait_idle(60)
        stats = await bus.stats()
        (line,) = await bus.limits.list("type:line")
        assert set(fleet.stop()) == {0}
    assert (line.used, line.waiting, stats.completed, stats.dead_letters) == (0, 0, TOTAL, 0)
    history = fleet.history()
    assert history.inversions() == []
    assert history.overlaps() == []
    assert most_at_a_time(history) == PLACES
    for at, still_taken in kills:
        assert still_taken > 0, "nobody who had a place was killed"
        early = starts_in(history, at, at + fleet.lease / 3)
        assert len(early) <= (PLACES - still_taken) * LINES, "a place was given on before its lease was over"
        first = min(starts_in(history, at, time.monotonic()))
        assert first - at < fleet.lease * 2 + 5, "a new process has to start as well"
