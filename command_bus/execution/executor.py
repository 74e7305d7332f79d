"""Runs one command: one delivery goes in, the step that settles it comes out.

    read → run the handler → decide

`None` comes out where nothing may be said any more: the lease is lost, or a thread still runs what cannot be stopped.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from command_bus.clock import mono
from command_bus.context import CommandContext, Running, current_command
from command_bus.errors import Reject
from command_bus.execution.decisions import Decisions, Runnable
from command_bus.execution.faults import text_of
from command_bus.execution.threads import NeverStartedError, ThreadJob
from command_bus.handlers import Invoke
from command_bus.middleware import Handling
from command_bus.transport.interfaces import GiveBack, Lease, Started, Step
from command_bus.transport.redis.keys import mailbox_label

__all__ = ["STOPPING", "Executor"]

STOPPING = "the worker is stopping"
"""The reason that a worker gives when it cancels what outlived the grace time."""

_log = logging.getLogger("command_bus.worker")
_NOT_STARTED = GiveBack(counts=False)


@dataclass(frozen=True, slots=True)
class _Interrupted:
    """The handler was cancelled from outside."""

    why: str
    thread_runs: bool = False
    never_started: bool = False


@dataclass(frozen=True, slots=True)
class _Raised:
    """The handler failed."""

    error: BaseException


class _ThreadRunsError(BaseException):
    """Internal: the wait for a thread was given up, the thread goes on."""


class Executor:
    """Executes deliveries under their leases.

    Args:
        decisions: The rules.
        threads: Where synchronous handlers run.
        worker: This worker's name.
        grace: Seconds past its timeout after which an asynchronous handler's lease is no longer renewed.
        around: Wraps the call of a handler in the bus's middleware, or None.
    """

    def __init__(
        self,
        decisions: Decisions,
        threads: ThreadPoolExecutor,
        *,
        worker: str,
        grace: float,
        around: Callable[[Handling], Handling] | None = None,
    ) -> None:
        self._decisions = decisions
        self._threads = threads
        self._worker = worker
        self._grace = grace
        self._call: Handling = around(self._invoke) if around is not None else self._invoke
        self._needs_context = around is not None

    async def execute(self, lease: Lease, started: Started, task: asyncio.Task[Any] | None) -> Step | None:
        """Run what was delivered, in this task, and say what becomes of it."""
        if mono() >= lease.deadline:
            return _NOT_STARTED
        read = self._decisions.read(started, lease.mailbox)
        if not isinstance(read, Runnable):
            return read
        result = await self._run(lease, read, task)
        kind = type(result)
        if kind is not _Interrupted and kind is not _Raised:
            return self._decisions.completed(read, result)
        if kind is _Raised:
            error = result.error
            if isinstance(error, Reject):
                return self._decisions.rejected(read, error)
            name, attempt = read.envelope.name, started.attempt
            _log.info(
                "%s %s failed (attempt %d): %s: %s",
                name,
                read.envelope.command_id,
                attempt,
                type(error).__name__,
                text_of(error),
                extra={
                    "command": name,
                    "command_id": read.envelope.command_id,
                    "entity": mailbox_label(lease.mailbox),
                    "attempt": attempt,
                    "worker": self._worker,
                },
            )
            return self._decisions.failed(read, error)
        if result.why is not STOPPING or result.thread_runs:
            return None
        return _NOT_STARTED if result.never_started else self._decisions.interrupted(started, STOPPING)

    async def _run(self, lease: Lease, run: Runnable, task: asyncio.Task[Any] | None) -> Any:
        """The handler's result, or `_Raised`, or `_Interrupted`."""
        context = self._context(run) if run.handler.wants_context or self._needs_context else None

        def interrupt(reason: str) -> None:
            if run.interrupted is None and task is not None:
                run.interrupted = reason
                if context is not None:
                    context.cancel(reason)
                task.cancel()

        envelope = run.envelope
        current_command.set(
            Running(
                lease.mailbox,
                envelope.command_id,
                envelope.correlation_id or envelope.command_id,
                envelope.name,
                run.started.attempt,
                self._worker,
            )
        )
        if run.handler.spec.timeout is not None and run.handler.is_async:
            lease.renew_until = mono() + run.handler.spec.timeout + self._grace
        lease.cancel = interrupt
        try:
            return await self._call(run, context)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and run.interrupted is None and task is not None and task.cancelling():
                raise  # the loop is shutting down
            return _explained(error, run.interrupted)
        finally:
            lease.cancel = None
            lease.renew_until = None
            if run.interrupted is not None and task is not None:
                task.uncancel()  # also where the handler swallowed it

    async def _invoke(self, run: Runnable, context: CommandContext | None) -> Any:
        handler = run.handler
        timeout = handler.spec.timeout
        if not handler.is_async:
            if handler.scope is None:
                return await self._in_thread(run, handler.invoke, context)
            async with handler.scope() as invoke:
                return await self._in_thread(run, invoke, context)
        if timeout is None:
            return await handler.invoke(run.message, context)
        scope = asyncio.timeout(timeout)
        try:
            async with scope:
                return await handler.invoke(run.message, context)
        except TimeoutError as error:
            if scope.expired():
                raise TimeoutError(f"the handler of {run.envelope.name} took longer than its timeout of {timeout} s") from error
            raise

    async def _in_thread(self, run: Runnable, invoke: Invoke, context: CommandContext | None) -> Any:
        """Run a synchronous handler. A thread cannot be stopped: past its timeout it is told, held until it ends, and failed then."""
        timeout = run.handler.spec.timeout
        in_context = contextvars.copy_context()
        job = ThreadJob(lambda: in_context.run(invoke, run.message, context), announce=timeout is not None)
        future = asyncio.get_running_loop().run_in_executor(self._threads, job.run)
        timed_out = lost = False
        while not future.done():
            try:
                if timeout is None or timed_out:
                    await asyncio.wait({future})
                    continue
                # Waiting for a thread is not running: the timeout counts from there.
                either: set[asyncio.Future[Any]] = {future, job.begun}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                _, running = await asyncio.wait({future}, timeout=timeout)
                if running:
                    timed_out = True
                    if context is not None:
                        context.cancel("timeout")
            except asyncio.CancelledError:
                if job.abandon():
                    raise NeverStartedError from None
                if run.interrupted is STOPPING or lost:
                    raise _ThreadRunsError from None
                lost = True
                # The lease is lost, the thread is not: hold the entity until it ends, and offer its result then.
        value, error = future.result()
        if timed_out:
            raise TimeoutError(f"the handler of {run.envelope.name} took longer than its timeout of {timeout} s") from error
        if error is not None:
            raise error
        return value

    def _context(self, run: Runnable) -> CommandContext:
        envelope, remaining = run.envelope, run.remaining
        return CommandContext(
            command_id=envelope.command_id,
            name=envelope.name,
            entity_type=envelope.entity_type,
            entity_id=envelope.entity_id,
            attempt=run.started.attempt,
            fence=int(run.started.fence),
            deadline=None if remaining is None else mono() + remaining,
            headers=envelope.headers or {},
            correlation_id=envelope.correlation_id or envelope.command_id,
            causation_id=envelope.causation_id,
            accepted_ms=run.accepted_ms,
            worker=self._worker,
        )


def _explained(error: BaseException, interrupted: str | None) -> _Interrupted | _Raised:
    """What the end of a handler by an exception means."""
    match error:
        case _ThreadRunsError():
            return _Interrupted(STOPPING, thread_runs=True)
        case NeverStartedError():
            return _Interrupted(interrupted or STOPPING, never_started=True)
        case asyncio.CancelledError() if interrupted is not None:
            return _Interrupted(interrupted)
        case _:
            return _Raised(error)
