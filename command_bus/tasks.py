"""Ends tasks that wait for the server.

One `task.cancel()` is not enough: redis-py sends within `asyncio.wait_for`, which before Python 3.12 loses a cancellation that arrives
in the same turn as the end of what it waits for (python/cpython#86296). The task would then wait for its next reply, and a task that waits
for the task with it: for ever, where reading is all it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any

_AGAIN = 0.1  # seconds


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until all have ended; what they raise is dropped."""
    everyone = list(tasks)
    running = {task for task in everyone if not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=_AGAIN)
    await asyncio.gather(*everyone, return_exceptions=True)


async def all_of(*endings: Awaitable[object]) -> None:
    """Wait for all of these, also if one fails; then raise the first error."""
    for answer in await asyncio.gather(*endings, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer
