"""`TimeLimit` and `CutOffs`: the blocks of `context.timeout`, and the operations that were cut off.

A block ends as one of `asyncio.timeout` does: what it awaits is cancelled, and `TimeoutError` is raised where the block ends. A later run has to
come to the same place, though by then more may have arrived: so what was cut off is stored, before the handler stores or waits for anything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

from command_bus.clock import mono
from command_bus.messages.context import while_lent
from command_bus.transport.ports.durable import Note

_FIELD = "z:"
_MARGIN = 1.0
"""Seconds by which one that was cut off may be cut off later in a later run; also the time after which a block ends that was over before this run,
if it awaits nothing of the context."""


class TimeLimit:
    """One block with a time limit, in one run.

    Args:
        of: Tells its run from others. It refers to no run: a task that was started in the block may outlive that, and has a copy of its context.
        name: What it is known by in all runs.
        until_ms: The server's time when it is over.
    """

    def __init__(self, of: object, name: str, until_ms: int) -> None:
        self.of = of
        self.name = name
        self.until_ms = until_ms
        self.has_ended = False  # the block, or its time
        self._is_late = False
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._timer: asyncio.TimerHandle | None = None
        self._outer: tuple[TimeLimit, ...] = ()

    def enter(self, now_ms: int) -> None:
        """Begin the block, in the current task."""
        self._task = task = asyncio.current_task()
        self._cancelling = 0 if task is None else task.cancelling()
        left = (self.until_ms - now_ms) / 1000
        self._timer = asyncio.get_running_loop().call_later(left if left > 0 else _MARGIN, self.cut_off)
        self._outer = current_limits.get()
        current_limits.set((*self._outer, self))

    def cut_off(self) -> None:
        """Cancel what is awaited in the block."""
        if not self.has_ended and self._task is not None:
            self.has_ended = self._is_late = True
            self._task.cancel()

    def leave(self) -> bool:
        """End the block; return whether a cancellation that leaves it is that of its time limit."""
        self.has_ended = True
        if self._timer is not None:
            self._timer.cancel()
        current_limits.set(self._outer)
        return self._is_late and self._task is not None and self._task.uncancel() <= self._cancelling


current_limits: ContextVar[tuple[TimeLimit, ...]] = ContextVar("command_bus_time_limits", default=())
"""The blocks that this code is inside of, the innermost last."""


class CutOffs:
    """The operations of one run that were cut off while they were awaited.

    Args:
        of: Tells this run from others.
        fields: The side record.
        awaited: Returns what waits for something: where a test has virtual time, that passes meanwhile.
    """

    def __init__(self, of: object, fields: Mapping[str, bytes], awaited: Callable[[Awaitable[Any]], Awaitable[Any]]) -> None:
        self._of = of
        self._fields = fields
        self._awaited = awaited
        self.are_stored = any(name.startswith(_FIELD) for name in fields)  # by earlier runs
        self.unstored: list[Note] = []

    @property
    def limits(self) -> list[TimeLimit]:
        """The blocks that this code is inside of, and whose time has not ended them."""
        return [each for each in current_limits.get() if each.of is self._of and not each.has_ended]

    @property
    def until_ms(self) -> int | None:
        """The server's time at which what is awaited here is over."""
        return min((each.until_ms for each in self.limits), default=None) if current_limits.get() else None

    async def check(self, now_ms: int) -> None:
        """Do not return if the time of a block is over: then what is awaited here is cancelled. Called before anything that is not stored yet."""
        if current_limits.get() and (late := [each for each in self.limits if each.until_ms <= now_ms]):
            await _cut_off(min(late, key=lambda each: each.until_ms))

    def note(self, which: str, began: float) -> None:
        """Note that one was cut off, by a time limit or by something that lives in the event loop only.

        Args:
            which: Its name and which of its awaits that was; empty: its parts are noted.
            began: When that began.
        """
        if which:
            late = [each.name for each in current_limits.get() if each.of is self._of and each.has_ended]
            by = late[0].encode() if late else str(int((mono() - began) * 1000)).encode()
            self.unstored.append(Note(f"{_FIELD}{which}", by))

    def taken(self) -> list[Note]:
        """Return what is to be stored with whatever comes next."""
        notes, self.unstored = self.unstored, []
        return notes

    async def again(self, which: str) -> None:
        """Cut off what an earlier run did not wait for.

        What an `asyncio.timeout` or another task has cancelled waits for being cancelled again, as long as it had; then it goes on.
        """
        by = self._fields.get(f"{_FIELD}{which}")
        if by is None:
            return
        for limit in self.limits:
            if limit.name.encode() == by:
                await _cut_off(limit)
        if by.isdigit():
            await while_lent(self._awaited(asyncio.sleep(int(by) / 1000 + _MARGIN)))


async def _cut_off(limit: TimeLimit) -> None:
    limit.cut_off()
    await asyncio.get_running_loop().create_future()  # until that reaches this task
