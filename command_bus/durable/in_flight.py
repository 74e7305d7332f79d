"""`InFlight`: the operations that one run of a handler awaits now, and the bar once it is over.

A handler may await several at a time, in tasks of its own. When it ends, those tasks are cancelled and waited for, as a `TaskGroup` does, before
anybody decides how the command ends: what undoes an effect must not overtake it, and nothing of this run may happen under the lease of the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import blake2b
from threading import get_ident
from typing import Any, NamedTuple

from command_bus.clock import mono
from command_bus.errors import BadStep
from command_bus.messages.durable import Suspended
from command_bus.serialization.limits import printable

_log = logging.getLogger("command_bus.worker")
_MOST_REFUSED = 100
"""Most operations that are refused, and not awaited for ever, once a run is over."""
LAST_WORDS = 1.0
"""Seconds that `finally` blocks have once a run is over."""
_LONGEST = 30.0
"""Seconds after which the function of a step that goes on although it was cancelled is left to itself, with the lease."""


class StepKey(NamedTuple):
    """The parts of the idempotency key of a step. They refer to no run: what a step starts may outlive that, and has a copy of its context."""

    command_id: str
    seed: str
    field: str

    def text(self) -> str:
        """Return the key: the same each time that the step is tried, and for no other step."""
        return blake2b(f"{self.command_id}\0{self.seed}\0{self.field}".encode(), digest_size=16).hexdigest()


current_step: ContextVar[StepKey | None] = ContextVar("command_bus_current_step", default=None)
"""The key of the step whose function runs here."""


class StepRuns(BaseException):
    """Internal: the function of a step goes on although it was cancelled, so the command may not be settled."""


@dataclass
class Leavable:
    """The handler that a run awaits: it is left where it is once it catches again and again that the run is over.

    Attributes:
        work: The handler.
        in_flight: What its run has in flight.
    """

    work: Awaitable[Any]
    in_flight: InFlight

    def __await__(self) -> Generator[Any, Any, Any]:
        inner: Any = self.work.__await__()
        in_flight = self.in_flight
        thrown: list[BaseException] = []  # no name for it: its traceback leads to this frame
        while True:
            try:
                waited = inner.throw(thrown.pop()) if thrown else inner.send(None)
            except StopIteration as end:
                return end.value
            if in_flight.caught_by is not None and in_flight.caught_by is asyncio.current_task():
                raise Suspended
            try:
                yield waited
            except BaseException as error:  # noqa: BLE001 - all of it is the handler's
                thrown.append(error)


class InFlight:
    """The operations of one run that are awaited now.

    Args:
        command_id: Id of the command.
        ended: Called when one has ended.
    """

    def __init__(self, command_id: str, ended: Callable[[], None]) -> None:
        self.count = 0
        self.is_over = False
        self.caught_by: asyncio.Task[Any] | None = None
        self._refused = 0
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._command_id = command_id
        self._ended = ended
        self._tasks: dict[asyncio.Task[Any] | None, int] = {}

    def check(self) -> None:
        """Check that the handler may go on.

        Raises:
            CancelledError: It is over. This ends a task that it has left behind.
            BadStep: As `check_place`.
        """
        self.check_place()
        if self.is_over:
            raise asyncio.CancelledError("the handler that this context belongs to is over")

    def check_place(self) -> None:
        """Check that the handler asks, or a task of it.

        Raises:
            BadStep: It is the function of a step that asks, or another thread.
        """
        if get_ident() != self._thread:  # the running loop would do, but asking for it is a system call before Python 3.12
            raise BadStep(
                "a thread uses the context of a durable handler: do that in the handler, and hand the thread what it needs"
            )
        if (key := current_step.get()) is not None and key.command_id == self._command_id:
            raise BadStep(
                f"the function of the step {key.field[2:]!r} uses the context of its handler: a later run gets the step's result and does not call "
                "it, so what it asked for would be missing. Do that in the handler, before the step or after it"
            )

    async def refuse(self) -> None:
        """Return before an operation raises that the run is over, unless code has caught that so often that it does so in a loop.

        Such code would hold up the event loop, and all that runs in it: it stays where it is.
        """
        self._refused += 1
        if self._refused <= _MOST_REFUSED:
            return
        if self.caught_by is None:
            _log.error(
                "%s: the handler catches that its run is over, in a loop, and is left. Catch Exception there, not all (`except:`, BaseException)",
                printable(self._command_id),
            )
        self.caught_by = asyncio.current_task()
        await self._loop.create_future()

    def begin(self) -> asyncio.Task[Any] | None:
        """Note that the current task awaits an operation, and return that task.

        Raises:
            CancelledError: As `check`.
            BadStep: As `check`.
        """
        self.check()
        task = asyncio.current_task(self._loop)
        self.count += 1
        self._tasks[task] = self._tasks.get(task, 0) + 1
        return task

    def end(self, task: asyncio.Task[Any] | None) -> None:
        """Note that an operation is over that a task has awaited."""
        self.count -= 1
        self._tasks[task] -= 1
        if not self._tasks[task]:
            del self._tasks[task]
        if self.count:
            self._ended()

    async def rest(self, may_last: Callable[[], bool]) -> None:
        """Refuse more, cancel the tasks that await something, and wait for them.

        A task whose operation has ended has a second for what else it does. The function of a step is waited for.

        Args:
            may_last: Whether it has to be waited for however long it takes: a thread cannot be stopped.

        Raises:
            CancelledError: This was cancelled meanwhile; they have ended all the same.
            StepRuns: The function of a step does not end.
        """
        self.is_over = True
        if not self._tasks:
            return
        began, is_cancelled, tells = mono(), False, True
        left = {task for task in self._tasks if task is not None and task is not asyncio.current_task()}
        while left := {task for task in left if not task.done()}:
            waited, is_in_flight = mono() - began, any(task in self._tasks for task in left)
            if not is_in_flight and waited >= LAST_WORDS:
                break
            if waited >= _LONGEST and not may_last():
                raise StepRuns
            for task in left if tells else ():
                task.cancel()
            tells = False
            try:
                await asyncio.wait(left, timeout=LAST_WORDS, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                is_cancelled = tells = True
        if is_cancelled:
            raise asyncio.CancelledError
