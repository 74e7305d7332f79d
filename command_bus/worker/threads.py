"""The threads of a worker, in which synchronous handlers run.

All bookkeeping is done on the event loop; a thread only runs what it is handed, one job at a time. The threads are daemons: one that
hangs does not keep the program from ending. A thread cannot be stopped, but a job can be kept from starting: until it is handed to a
thread by `abandon`, and after that by its own deadline, which the thread compares first. A process that was stopped in between
therefore starts nothing that another worker may have taken over.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, NoReturn

from command_bus.clock import mono
from command_bus.durable.run_tools import Threads
from command_bus.handlers.handler import Invoke
from command_bus.messages.context import CommandContext, LentSlot, Running, current_command
from command_bus.transport.steps import Cause
from command_bus.worker.runnable import Runnable

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
        call: What the thread runs.
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

    def turns_away(self) -> bool:
        """Return whether jobs were turned away a moment ago, as all threads were taken, and they still are."""
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


THREAD_PATIENCE = 1.0
"""Seconds for which a command waits for a thread while none comes free; then another worker may have it."""
_MOMENT = 0.001
_WARNING_PAUSE = 60.0


class ThreadRunsError(BaseException):
    """Internal: the wait for a thread has ended, the thread goes on."""


class ThreadRuns:
    """The synchronous handlers of one worker.

    Args:
        threads: The place where they run.
        worker: This worker's name.
        works: Whether the worker goes on: false once it stops, or its event loop shuts down.
    """

    def __init__(self, threads: HandlerThreads, *, worker: str, works: Callable[[], bool]) -> None:
        self._threads = threads
        self._worker = worker
        self._works = works
        self._warned_at = -math.inf

    async def call(self, run: Runnable, invoke: Invoke, context: CommandContext | None) -> Any:
        """Run a synchronous handler.

        A thread cannot be stopped: past its timeout its context says so, its entity is held until it ends, and the attempt fails then.
        """
        in_context = contextvars.copy_context()
        job = ThreadJob(lambda: in_context.run(invoke, run.message, context), lambda: run.may_start)
        self.submit(job)
        is_late = await self._until_done(job, run, context)
        value, error = job.done.result()
        if is_late:
            raise timed_out(run) from error
        if error is not None:
            raise error
        return value

    def submit(self, job: ThreadJob) -> None:
        """Run a job in a thread, as soon as one is free."""
        self._threads.submit(job)

    def abandon(self, job: ThreadJob) -> bool:
        """Keep a job from starting; return False if a thread has it."""
        return self._threads.abandon(job)

    async def _until_done(self, job: ThreadJob, run: Runnable, context: CommandContext | None) -> bool:
        """Wait until a thread is done with a job; return whether that took longer than the handler's timeout."""
        timeout = run.policy.attempt_timeout
        ends_at: float | None = None
        is_late = lost = False
        while not job.done.done():
            try:
                if job.handed_over is not None and not job.begun:
                    await self.handed_over(job, job.handed_over)
                if timeout is not None and ends_at is None:
                    ends_at = mono() + timeout
                left = None if ends_at is None or is_late else max(0.0, ends_at - mono())
                await asyncio.wait({job.done}, timeout=left)
            except asyncio.CancelledError:
                self.go_on(job, run, lost)
                lost = run.interrupted is not None
                continue
            if left is not None and not job.done.done():
                is_late = True
                if context is not None:
                    context.cancel("timeout")
        return is_late

    def go_on(self, job: ThreadJob, run: Runnable, lost: bool) -> None:
        """Decide whether to go on waiting for a job after a cancellation, which a thread does not notice.

        If something other than the worker cancelled it: yes. If the lease is lost: yes, until the thread ends, to hold the entity here, and
        to offer its result then.

        Raises:
            NeverStartedError: No thread had it yet, and none will.
            ThreadRunsError: The worker stops, or its event loop does, or an operator wants the entity to go on without the thread.
        """
        if self._threads.abandon(job):
            raise NeverStartedError from None
        if run.interrupted is None and self._works():
            return
        cause = None if run.interrupted is None else run.interrupted.cause
        if cause is Cause.ABANDONED:
            self._threads.replace(job)
        if cause is None or cause is Cause.STOPPING or lost:
            raise ThreadRunsError from None

    async def handed_over(
        self, job: ThreadJob, handed_over: asyncio.Future[None], patience: Callable[[], float] = lambda: THREAD_PATIENCE
    ) -> None:
        """Wait until a thread has a job, or it was abandoned.

        Args:
            job: What a thread is to take.
            handed_over: Set once a thread has it, or it was abandoned.
            patience: Returns for how many seconds no thread may come free while it waits. It may change meanwhile.

        Raises:
            NoThreadError: None has come free for so long that another worker may have the command.
        """
        while not job.begun and not job.done.done():
            left = patience() - self._threads.stuck_for
            if left > _MOMENT:
                left = min(left, THREAD_PATIENCE)
                await asyncio.wait({handed_over}, timeout=left)
            elif self._threads.turn_away(job):
                self._warn_of_threads()
                raise NoThreadError

    def _warn_of_threads(self) -> None:
        if mono() - self._warned_at < _WARNING_PAUSE:
            return
        self._warned_at = mono()
        _log.warning(
            "all %d threads are taken, and none came free for %.0f s: other workers may have the commands that wait for one. "
            "Give handlers that hang a timeout of their own, or raise COMMAND_BUS_THREADS",
            self._threads.limit,
            self._threads.stuck_for,
            extra={"worker": self._worker},
        )


def timed_out(run: Runnable) -> TimeoutError:
    """Return the error of an attempt that took too long."""
    return TimeoutError(
        f"the handler of {run.envelope.name} took longer than its attempt_timeout of {run.policy.attempt_timeout} s"
    )


_PATIENCE_BESIDE = 10.0
"""Seconds for which a function waits for a thread while none comes free, and other functions of the run are under way."""


class StepThreads(Threads):
    """Implements `Threads` of a run.

    Args:
        runs: The threads of the worker.
        run: The command.
        lend: Makes what lends the slot and the thread of a function that waits for the bus.
    """

    def __init__(self, runs: ThreadRuns, run: Runnable, lend: Callable[[Running], LentSlot]) -> None:
        self._runs = runs
        self._run = run
        self._lend = lend
        self._jobs: set[ThreadJob] = set()
        self._is_left = self._is_over = False

    async def call(self, function: Callable[[], Any]) -> tuple[Any, bool]:
        run, in_context, running = self._run, contextvars.copy_context(), self._running()
        if running is not None:
            in_context.run(current_command.set, running)
        job = ThreadJob(lambda: in_context.run(function), lambda: run.may_start)
        self._jobs.add(job)
        self._runs.submit(job)
        try:
            is_cancelled = await self._until_done(job)
        except NeverStartedError:
            raise asyncio.CancelledError from None
        except NoThreadError:
            self._hand_back()
        finally:
            _end(running)
        self._jobs.discard(job)
        value, error = job.done.result()
        if isinstance(error, NeverStartedError):
            self._hand_back()
        if is_cancelled and (error is not None or (run.interrupted is not None and run.interrupted.cause is Cause.LOST)):
            raise asyncio.CancelledError from error
        if error is not None:
            try:
                raise error
            finally:
                del error, job  # its traceback has this frame, which would keep the run until the garbage collector comes
        return value, is_cancelled

    @property
    def are_busy(self) -> bool:
        return any(job.begun and not job.done.done() for job in self._jobs)

    async def rest(self) -> None:
        is_cancelled = False
        if self._is_left:
            raise ThreadRunsError
        self._is_over = True
        begun = [job for job in self._jobs if not self._runs.abandon(job)]
        if begun:
            self._hold()
        for job in begun:
            try:
                is_cancelled = await self._until_done(job) or is_cancelled
            except NeverStartedError:
                is_cancelled = True
        if is_cancelled:
            raise asyncio.CancelledError

    async def _until_done(self, job: ThreadJob) -> bool:
        """Wait until a thread is done with a job; return whether this was cancelled meanwhile.

        Raises:
            NeverStartedError: No thread had it yet, and none will.
            NoThreadError: None comes free.
            ThreadRunsError: The thread goes on by itself.
        """
        is_cancelled = lost = False
        try:
            while not job.done.done():
                try:
                    if job.handed_over is not None and not job.begun:
                        await self._runs.handed_over(job, job.handed_over, self._patience)
                    await asyncio.wait({job.done})
                except asyncio.CancelledError:
                    self._runs.go_on(job, self._run, lost)
                    is_cancelled, lost = True, self._run.interrupted is not None
                    self._hold()
        except (NeverStartedError, NoThreadError):
            self._jobs.discard(job)
            raise
        except ThreadRunsError:
            self._is_left = True
            raise
        return is_cancelled

    def _patience(self) -> float:
        """Return for how long no thread may come free: longer while other functions of the run are under way, which would run again."""
        waiting = sum(not job.begun for job in self._jobs)
        is_alone = self._run.durable is None or self._run.durable.working <= waiting
        return THREAD_PATIENCE if is_alone else _PATIENCE_BESIDE

    def _hand_back(self) -> NoReturn:
        """End the run, for its command to be offered again."""
        if self._is_over or self._run.durable is None:
            raise asyncio.CancelledError
        self._run.durable.hand_back()

    def _hold(self) -> None:
        """Hold the entity for as long as the thread runs, also beyond the timeout of the handler."""
        if self._run.lease is not None:
            self._run.lease.renew_until = None

    def _running(self) -> Running | None:
        running = current_command.get()
        return None if running is None else replace(running, make_lending=self._lend, lending=None)


def _end(running: Running | None) -> None:
    """End what a function had of its command."""
    if running is None:
        return
    running.ended = True
    if running.lending is not None:
        running.lending.end()
