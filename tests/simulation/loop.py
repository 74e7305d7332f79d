"""An event loop in virtual time with several processes in it.

Time moves only when nothing can run, and then to the next timer: an hour of waiting costs nothing, and the same seed gives the same
order of everything. A *lane* is what a process's callbacks run in, found by a context variable that every callback inherits. A lane can
be held (the callbacks gather and run later: a process that is stopped, or a loop that a handler blocks) or dropped (a process that was
killed: none of its code runs any more, no clean-up either). A process has two lanes, because its thread that renews leases goes on while
its loop is blocked.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

__all__ = ["LANE", "Lane", "Livelock", "Process", "SimLoop"]

RUNS, HELD, DROPPED = 0, 1, 2


class Livelock(Exception):
    """The callbacks of a scenario do not end."""


class Lane:
    """A lane: callbacks of a process that are held or dropped together."""

    __slots__ = ("held", "process", "state")

    def __init__(self, process: Process) -> None:
        self.process = process
        self.state = RUNS
        self.held: list[asyncio.Handle] = []


LANE: ContextVar[Lane | None] = ContextVar("lane", default=None)


class SimTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address."""

    __slots__ = ("number",)
    numbers = itertools.count()

    def __init__(self, *args: Any, **options: Any) -> None:
        self.number = next(self.numbers)
        super().__init__(*args, **options)
        self._log_destroy_pending = False  # a killed process leaves its tasks as they are

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


_Loop: Any = asyncio.AbstractEventLoop  # of which a task needs little: the rest stays unimplemented


class SimLoop(_Loop):  # type: ignore[misc]
    """Runs callbacks in the order of their times, and of their making where times are equal."""

    def __init__(self, most_callbacks: int = 300_000) -> None:
        self.now = 1000.0
        self._ready: deque[Any] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self._left = most_callbacks
        self.ran = 0
        self.errors: list[dict[str, Any]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> SimTask:
        task = SimTask(coro, loop=self, name=name, context=context)
        lane = LANE.get() if context is None else context.get(LANE)
        if lane is not None:
            lane.process.tasks.append(task)
        return task

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run until the main task ends."""
        events._set_running_loop(self)
        try:
            task = self.create_task(main)
            while not task.done():
                self._turn()
            return task.result()
        finally:
            events._set_running_loop(None)

    def _turn(self) -> None:
        ready, timers = self._ready, self._timers
        if not ready:
            if not timers:
                raise Livelock("nothing is left that could happen")
            when = timers[0][0]
            self.now = max(self.now, when)
            while timers and timers[0][0] <= self.now:
                timer = heapq.heappop(timers)[2]
                if not timer.cancelled():
                    ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle.cancelled():
                continue
            lane = handle._context.get(LANE)
            if lane is not None and lane.state:
                if lane.state == HELD:
                    lane.held.append(handle)
                continue
            self.ran += 1
            handle._run()
        if self.ran > self._left:
            raise Livelock(f"{self.ran} callbacks, and no end")

    def release(self, handles: list[asyncio.Handle]) -> None:
        """Let held callbacks run, in their order."""
        self._ready.extend(handles)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: its entry is dropped when it is due."""

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not context["message"].startswith("Future exception was never"):  # the waiting process was killed
            self.errors.append(context)

    default_exception_handler = call_exception_handler


class Process:
    """A process of the simulation."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.name = name
        self.loop = loop
        self.main, self.thread = Lane(self), Lane(self)
        self.context = copy_context()
        self.context.run(LANE.set, self.main)
        self.thread_context = copy_context()
        self.thread_context.run(LANE.set, self.thread)
        self.tasks: list[SimTask] = []
        """All, so that those of a killed process are not cleaned up while the run goes on."""
        self.troubles: list[tuple[str, float, float]] = []
        """What kept it from its work: kind, from, until."""

    def __repr__(self) -> str:
        return self.name

    @property
    def dead(self) -> bool:
        """Return whether it was killed."""
        return self.main.state == DROPPED

    def spawn(self, work: Coroutine[Any, Any, Any], name: str | None = None) -> SimTask:
        """Start a task in its main lane."""
        return self.loop.create_task(work, name=name or self.name, context=self.context.copy())

    def call(self, callback: Callable[..., Any], *args: Any) -> None:
        """Call in its main lane."""
        self.loop.call_soon(callback, *args, context=self.context)

    def hold(self, *lanes: Lane) -> None:
        """Run nothing of these lanes for now."""
        for lane in lanes:
            if lane.state == RUNS:
                lane.state = HELD

    def go_on(self, *lanes: Lane) -> None:
        """Run held callbacks, and all later ones."""
        for lane in lanes:
            if lane.state == HELD:
                lane.state = RUNS
                self.loop.release(lane.held)
                lane.held = []

    def bury(self) -> None:
        """Close coroutines that never ended, after the run. Effects and errors of their clean-up are ignored."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            for task in self.tasks:
                if not task.done():
                    try:
                        task.get_coro().close()
                    except BaseException:
                        continue
        self.tasks.clear()

    def strip(self) -> None:
        """Keep only what a report needs, so that it can be sent to another process."""
        for name in ("loop", "context", "thread_context", "main", "thread", "tasks"):
            delattr(self, name)

    def kill(self) -> None:
        """Run nothing of it any more."""
        for lane in (self.main, self.thread):
            lane.state = DROPPED
            lane.held = []
