"""`StepThreads`: the threads of one durable run, in which the functions of its steps run that are no coroutines.

A thread cannot be stopped. So a run that is cancelled meanwhile, by its timeout say, waits for it: else the next run would call the function
beside it. A function waits for a thread. If none comes free for so long that they seem to hang, the run ends as if it were suspended, and
its command is offered to all workers: what is stored stays, and it takes no attempt.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

from command_bus.messages.context import LentSlot, Running, current_command
from command_bus.transport.steps import Cause
from command_bus.worker.runnable import Runnable
from command_bus.worker.thread_runs import THREAD_PATIENCE, ThreadRuns, ThreadRunsError
from command_bus.worker.threads import NeverStartedError, NoThreadError, ThreadJob

_PATIENCE_BESIDE = 10.0
"""Seconds for which a function waits for a thread while none comes free, and other functions of the run are under way."""


class StepThreads:
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
        """See `Threads`."""
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
        """See `Threads`."""
        return any(job.begun and not job.done.done() for job in self._jobs)

    async def rest(self) -> None:
        """See `Threads`."""
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
