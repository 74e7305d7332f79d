"""`ThreadRuns`: calls synchronous handlers in threads, and waits for them. A thread cannot be stopped."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections.abc import Callable
from typing import Any

from command_bus.clock import mono
from command_bus.handlers.handler import Invoke
from command_bus.messages.context import CommandContext
from command_bus.transport.steps import Cause
from command_bus.worker.runnable import Runnable
from command_bus.worker.threads import HandlerThreads, NeverStartedError, NoThreadError, ThreadJob

_log = logging.getLogger("command_bus.worker")
THREAD_PATIENCE = 1.0
"""Seconds for which a command waits for a thread while none comes free; then another worker may have it."""
_MOMENT = 0.001
_WARNING_PAUSE = 60.0


class ThreadRunsError(BaseException):
    """Internal: the wait for a thread has ended, the thread goes on."""


class ThreadRuns:
    """The synchronous handlers of one worker.

    Args:
        threads: Where they run.
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
            job: The job.
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
