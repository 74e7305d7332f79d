"""The threads of a worker, in which synchronous handlers run.

All bookkeeping is done on the event loop; a thread only runs what it is handed, one job at a time. The threads are daemons: one that
hangs does not keep the program from ending. A thread cannot be stopped, but a job can be kept from starting: until it is handed to a
thread by `abandon`, and after that by its own deadline, which the thread compares first. A process that was stopped in between
therefore starts nothing that another worker may have taken over.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from command_bus.clock import mono

_log = logging.getLogger("command_bus.worker")
_TURNS_AWAY = 5.0  # seconds

Outcome = tuple[Any, BaseException | None]
"""A job's result or error, as values: a future cannot carry a StopIteration."""


class NeverStartedError(BaseException):
    """Internal: the call was abandoned before it began."""


class NoThreadError(BaseException):
    """Internal: all threads are taken, and none comes free."""


class ThreadJob:
    """One call of a synchronous handler.

    Args:
        call: The call.
        may_start: Asked in the thread, right before the call; if it says no, the call never starts.

    Attributes:
        begun: Whether a thread has it.
        handed_over: Set once a thread has it, or none will, for a job that waits for one.
        done: Its outcome.
    """

    __slots__ = ("_call", "_may_start", "begun", "done", "handed_over")

    def __init__(self, call: Callable[[], Any], may_start: Callable[[], bool]) -> None:
        self._call = call
        self._may_start = may_start
        self.begun = False
        self.handed_over: asyncio.Future[None] | None = None
        self.done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def run(self) -> Outcome:
        """Run it, in its thread."""
        may_start, call = self._may_start, self._call
        del self  # an error refers to this frame, and `done` to the error: only the garbage collector would free them
        if not may_start():
            return None, NeverStartedError()
        try:
            return call(), None
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            return None, error


class HandlerThreads:
    """Runs jobs in threads, at most `limit` at a time besides those whose handlers wait for the bus.

    Args:
        limit: How many jobs may run at a time. Threads are started as they are needed, and kept.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.busy = 0
        self._moved_at = mono()
        self._lent = 0
        self._turned_away_at = -math.inf
        self._idle: list[SimpleQueue[ThreadJob | None]] = []
        self._waiting: dict[ThreadJob, None] = {}
        self._closed = False
        weakref.finalize(self, _end_all, self._idle).atexit = False

    @property
    def stuck_for(self) -> float:
        """Seconds for which all threads have been taken and none has come free, if jobs wait."""
        return mono() - self._moved_at

    @property
    def turns_away(self) -> bool:
        """Whether jobs were turned away a moment ago, as all threads were taken, and they still are."""
        return self.busy >= self.limit + self._lent and mono() - self._turned_away_at < _TURNS_AWAY

    @property
    def waiting(self) -> int:
        """Jobs that wait for a thread."""
        return len(self._waiting)

    def submit(self, job: ThreadJob) -> None:
        """Run a job in a thread that is free, or as soon as one is; `job.begun` and `job.done` say how far it is."""
        if not self._waiting and self.busy < self.limit + self._lent and not self._closed and self._start(job):
            return
        job.handed_over = job.done.get_loop().create_future()
        self._waiting[job] = None

    def abandon(self, job: ThreadJob) -> bool:
        """Keep a job from starting; return False if a thread has it. All that wait for it learn that it never starts."""
        if job not in self._waiting:
            return False
        del self._waiting[job]
        job.done.set_result((None, NeverStartedError()))
        if job.handed_over is not None:
            job.handed_over.set_result(None)
        return True

    def turn_away(self, job: ThreadJob) -> bool:
        """Keep a job from starting, as no thread comes free; return False if a thread has it."""
        if not self.abandon(job):
            return False
        self._turned_away_at = mono()
        return True

    def lend(self) -> None:
        """Let one job more run: the handler of one that runs waits for the bus."""
        self._lent += 1
        self._start_waiting()

    def take_back(self) -> None:
        """End what `lend` began. The handler goes on at once; until as many jobs as it exceeds the limit by have ended, none starts."""
        self._lent -= 1

    def replace(self, job: ThreadJob) -> None:
        """Let one job more run until this one has ended: it hangs, and its caller has given up."""
        self.lend()
        job.done.add_done_callback(lambda _: self.take_back())

    def close(self) -> None:
        """End the threads that are idle, the others as soon as they are."""
        self._closed = True
        _end_all(self._idle)

    def _start_waiting(self) -> None:
        while self._waiting and self.busy < self.limit + self._lent and not self._closed:
            job = next(iter(self._waiting))
            if not self._start(job):
                return
            del self._waiting[job]
            if job.handed_over is not None:
                job.handed_over.set_result(None)

    def _start(self, job: ThreadJob) -> bool:
        """Hand a job to a thread; return False if the system has no more threads: one that comes free serves it, or another worker."""
        try:
            inbox = self._idle.pop() if self._idle else self._new_thread()
        except RuntimeError as error:
            _log.warning("no thread can be started for a handler: %s", error)
            return False
        self.busy += 1
        if self.busy >= self.limit + self._lent:
            self._moved_at = mono()
        job.begun = True
        inbox.put(job)
        return True

    def _new_thread(self) -> SimpleQueue[ThreadJob | None]:
        inbox: SimpleQueue[ThreadJob | None] = SimpleQueue()
        given = (weakref.ref(self), inbox, asyncio.get_running_loop())
        threading.Thread(target=_work, args=given, name="command_bus.handler", daemon=True).start()
        return inbox

    def finished(self, inbox: SimpleQueue[ThreadJob | None], job: ThreadJob, outcome: Outcome) -> None:
        """Take a thread back from a job that has ended, and let it have the next."""
        self.busy -= 1
        self._moved_at = mono()
        if self._closed or len(self._idle) >= self.limit:
            inbox.put(None)
        else:
            self._idle.append(inbox)
        if not job.done.done():
            job.done.set_result(outcome)
        self._start_waiting()


def _work(threads: weakref.ref[HandlerThreads], inbox: SimpleQueue[ThreadJob | None], loop: asyncio.AbstractEventLoop) -> None:
    """Run jobs, in a thread, until there are no more, or their source is gone."""
    while (job := inbox.get()) is not None:
        outcome, owner = job.run(), threads()
        if owner is None:
            return
        try:
            loop.call_soon_threadsafe(owner.finished, inbox, job, outcome)
        except RuntimeError:  # the loop is closed
            return
        del job, outcome, owner  # not to be kept until the next


def _end_all(idle: list[SimpleQueue[ThreadJob | None]]) -> None:
    """End threads that are idle."""
    while idle:
        idle.pop().put(None)
