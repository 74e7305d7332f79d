"""Tasks: the end of those that wait for the server, and one in which goes on what was begun without a task.

One `task.cancel()` is not enough: redis-py sends within `asyncio.wait_for`, which before Python 3.12 loses a cancellation that arrives
in the same turn as the end of what it waits for (python/cpython#86296). The task would then wait for its next reply, and a task that waits
for the task with it: for ever, where reading is all it does.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.tasks import _enter_task, _leave_task  # pyright: ignore[reportPrivateUsage]  # for tasks of other kinds, as the docs have it
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar
from weakref import getweakrefcount

T = TypeVar("T")
_AGAIN = 0.1  # seconds
_references = getattr(sys, "getrefcount", id)


def _known(task: object) -> Any:
    """Return a number that grows with those who know a task, or keep something by it: that is forgotten with the task."""
    return _references(task) + getweakrefcount(task)


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


class _Place(asyncio.Future[None]):
    """The wait of a parked task. A cancellation ends it, and meets what runs in the task then, as one of a task that runs does."""

    def cancel(self, msg: Any | None = None) -> bool:
        del msg
        if not self.done():
            self.set_result(None)
        return False


class ParkedTask:
    """A task that waits for the rest of what was begun under its name."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._place = _Place(loop=self._loop)
        self._rest: Coroutine[Any, Any, None] | None = None
        self._waits = False
        self._known = 0
        self.task = self._loop.create_task(self._run(), name="command_bus.parked")

    def may_begin(self) -> bool:
        """Return whether something may be begun under its name, within `begin`: it has started and has nothing to do.

        A task that was cancelled, or that somebody has kept, or whose end somebody wants to be told, is used for nothing else: it ends.
        """
        if self.task._callbacks or _known(self.task) > self._known:  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            self._place.cancel()
        return self._waits and not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether it waits no more."""
        return self._place.done()

    def begin(self, work: Callable[[], T]) -> T:
        """Do some work as if in this task; the task that runs is the current one again after it."""
        loop, current = self._loop, asyncio.current_task()
        if current is not None:
            _leave_task(loop, current)
        _enter_task(loop, self.task)
        self._known = _known(self.task)
        try:
            return work()
        finally:
            _leave_task(loop, self.task)
            if current is not None:
                _enter_task(loop, current)

    def go_on(self, rest: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run the rest of what was begun. The task ends with it."""
        self._rest = rest
        self._place.cancel()
        return self.task

    async def _run(self) -> None:
        self._waits = True
        try:
            await self._place
        except asyncio.CancelledError as error:
            if self._rest is None:
                raise
            self.task.cancel(*error.args)  # it meets what the rest waits for
            self.task.uncancel()
        if self._rest is not None:
            await self._rest
