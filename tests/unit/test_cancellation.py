"""Tasks are ended even if a cancellation is lost on the way, as it may be in `asyncio.wait_for` before Python 3.12."""

from __future__ import annotations

import asyncio

from command_bus.tasks import end_tasks


async def test_a_task_that_loses_a_cancellation_is_cancelled_again() -> None:
    lost = 0

    async def deaf() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1
                if lost == 2:
                    raise

    task = asyncio.create_task(deaf())
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await end_tasks([task])
    assert task.cancelled()
    assert lost == 2


async def test_what_tasks_raise_is_dropped_and_ended_ones_are_left_alone() -> None:
    async def failing() -> None:
        raise ConnectionError

    async def done() -> int:
        return 1

    tasks = [asyncio.create_task(failing()), asyncio.create_task(done()), asyncio.create_task(asyncio.sleep(60))]
    await asyncio.sleep(0)
    await end_tasks(tasks)
    assert all(task.done() for task in tasks)
    assert tasks[1].result() == 1
    await end_tasks([])
