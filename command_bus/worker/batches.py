"""`Batches`: gathers commands of several entities for a handler that takes many, and finds the ones that make its call fail.

Each command is started as any other: with a lease, a fence and an attempt of its own. Then it waits here until there are enough of its class, or
the first has waited long enough, and lends its slot meanwhile. Each is settled by its own outcome.

A call that raises is repeated with its halves, the left one first, until the commands that fail alone are found. If nothing has succeeded down to
the first command, and the rest fails together, too, the cause is common, a database that is down say: then all have failed once, by log2(n) + 2
calls. A command of which the common error would be the end, on its last attempt say, is called alone first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar

from command_bus.clock import mono
from command_bus.errors import Reject
from command_bus.handlers.handler import Handler
from command_bus.messages.context import CommandContext, Running, running_command
from command_bus.messages.snooze import GiveUp
from command_bus.serialization.envelope import AT_MOST_ONCE
from command_bus.transport.steps import Cause
from command_bus.worker.runnable import CommandContexts, Runnable
from command_bus.worker.threads import HandlerThreads, NeverStartedError, ThreadJob, ThreadRunsError, timed_out

M = TypeVar("M")
_LOOK_AGAIN = 0.05
"""Seconds after the end of a call within which it has made room for others."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The outcome of a command whose call failed.

    Attributes:
        error: What it raised.
        trace: Its traceback at the end of that call.
    """

    error: BaseException
    trace: TracebackType | None = None

    def again(self) -> BaseException:
        """Return the error to be raised: with its own traceback, to which others that raised it, too, have added."""
        return self.error.with_traceback(self.trace)


class WrongOutcomes(GiveUp):
    """The error of a call that returned something else than an outcome for each command: it may have done its work, so none is called again."""


class Halving(Generic[M]):
    """The search for the members that make a call fail.

    Args:
        members: To be called with, at least one.
        call: Returns an outcome for each member, or raises.
        is_final: Returns whether an error would be the end of a member, so that it is called alone before it has failed.
    """

    def __init__(
        self,
        members: Sequence[M],
        call: Callable[[Sequence[M]], Awaitable[Sequence[Any]]],
        is_final: Callable[[M, BaseException], bool],
    ) -> None:
        self._members = members
        self._call = call
        self._is_final = is_final
        self._found: dict[int, Any] = {}

    async def outcomes(self) -> list[Any]:
        """Return the outcome of each member, `Failed` of those that make a call fail. A cancellation ends those that have none yet."""
        with suppress(asyncio.CancelledError):
            await self._part(0, len(self._members))
        return [self._found.get(at, CALL_CANCELLED) for at in range(len(self._members))]

    async def _error(self, low: int, high: int) -> BaseException | None:
        """Call with a part; return what it raised."""
        task = asyncio.current_task()
        try:
            values = await self._call(self._members[low:high])
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            if isinstance(error, WrongOutcomes) or high - low == 1:
                self._found.update((at, Failed(error, error.__traceback__)) for at in range(low, high))
            return error
        self._found.update(enumerate(values, low))
        return None

    async def _part(self, low: int, high: int) -> None:
        error = await self._error(low, high)
        if error is None or isinstance(error, WrongOutcomes):
            return
        if high - low > 1:
            middle = (low + high) // 2
            await self._part(low, middle)
            if middle not in self._found:
                await self._part(middle, high)
        elif low == 0 and len(self._found) == 1 < len(self._members):
            await self._rest()

    async def _rest(self) -> None:
        """Call with all but the first, which has failed alone, and in each call before."""
        error = await self._error(1, len(self._members))
        if error is None:
            return
        for at in range(1, len(self._members)):
            if at not in self._found and self._is_final(self._members[at], error):
                await self._error(at, at + 1)
            self._found.setdefault(at, Failed(error, error.__traceback__))


class InOrder(Generic[M]):
    """The search for the first member that makes a call fail, of members that are called in their order.

    Args:
        members: To be called with, at least one.
        call: Returns an outcome for each member, or raises.
        is_over: Returns whether its task was cancelled from outside. Then it ends, whatever a call makes of that.
        is_dropped: Returns whether an operator did that: then it counts for nothing that the call has returned.

    Attributes:
        found: The outcomes of the first members so far: `Failed` of the last one if that has failed, and of a `Reject`.
        is_void: Whether nothing of it counts.
    """

    def __init__(
        self,
        members: Sequence[M],
        call: Callable[[Sequence[M]], Awaitable[Sequence[Any]]],
        *,
        is_over: Callable[[], bool],
        is_dropped: Callable[[], bool],
    ) -> None:
        self._members = members
        self._call = call
        self._is_over = is_over
        self._is_dropped = is_dropped
        self.found: list[Any] = []
        self.is_void = False

    async def search(self) -> None:
        """Call with all; of a part that fails with its left half, then with the right one."""
        parts = [(0, len(self._members))]
        while parts:
            low, high = parts.pop()
            values = await self._values(low, high)
            if values is None and not self._is_over():
                middle = (low + high) // 2
                parts += [(middle, high), (low, middle)]
                continue
            if values is None or self._is_dropped():
                return
            for value in values:
                self.found.append(value)
                is_failed = isinstance(value, Failed) and not isinstance(value.error, Reject)
                if is_failed and not isinstance(value.error, WrongOutcomes):  # that ends all of a call
                    return
            if self._is_over() or (self.found and _is_wrong(self.found[-1])):
                return

    async def _values(self, low: int, high: int) -> Sequence[Any] | None:
        """Return the outcomes of a call; None if it failed, and has several members or was ended from outside."""
        task = asyncio.current_task()
        try:
            return await self._call(self._members[low:high])
        except BaseException as error:  # noqa: BLE001 - as what a handler raises
            is_cancelled = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
            while task is not None and task.cancelling():
                task.uncancel()
            is_wrong = isinstance(error, WrongOutcomes)
            if self._is_over() or (high - low > 1 and not is_wrong):
                return None
            return [CALL_CANCELLED if is_cancelled else Failed(error, error.__traceback__)] * (high - low)


def _is_wrong(outcome: Any) -> bool:
    return isinstance(outcome, Failed) and isinstance(outcome.error, WrongOutcomes)


CALL_CANCELLED = Failed(asyncio.CancelledError())
"""The outcome of a command whose call was cancelled by the application."""
_NEVER_STARTED = Failed(NeverStartedError())


@dataclass(slots=True, eq=False)
class Member:
    """A command that waits for its batch, or is in it.

    Attributes:
        run: The command.
        context: Its context, if the handler wants it.
        running: As a running command.
        done: Its outcome, if a task waits for that.
        batch: Those that are called together; None before the call.
        call: The task that calls.
        is_gone: Whether its outcome is wanted no more.
    """

    run: Runnable
    context: CommandContext | None
    running: Running | None
    done: asyncio.Future[Any] | None = None
    batch: list[Member] | None = None
    call: asyncio.Task[None] | None = None
    is_gone: bool = False

    def is_ended_by(self, error: BaseException) -> bool:
        """Return whether this error would be its end: it is not tried again."""
        policy = self.run.policy.retry
        return isinstance(error, Reject | GiveUp) or self.run.started.attempt >= policy.attempts or not policy.retries(error)


@dataclass(slots=True, eq=False)
class _Queue:
    """The commands that wait for the next batch of a handler."""

    members: list[Member] = field(default_factory=list["Member"])
    timer: asyncio.TimerHandle | None = None


class Batches:
    """The batches of one worker.

    Args:
        threads: The place where plain functions run.
        contexts: Makes the context of each call.
        grace: Seconds beyond its time limit after which others may take the entities of a call that does not end.
        is_full: Returns whether no more commands can wait: then what waits is called at once, unless the end of a call will make room.
    """

    def __init__(self, threads: HandlerThreads, contexts: CommandContexts, grace: float, is_full: Callable[[], bool]) -> None:
        self._threads = threads
        self._contexts = contexts
        self._grace = grace
        self._is_full = is_full
        self._queues: dict[Handler, _Queue] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._waits = True
        self._loop = asyncio.get_running_loop()

    async def add(self, run: Runnable, context: CommandContext | None) -> Any:
        """Wait for the batch that has this command, and return its reply or raise its error.

        A cancellation before the call takes it out. During the call it waits for its end; it is cancelled once no other command waits for it.
        """
        done: asyncio.Future[Any] = self._loop.create_future()
        member = Member(run, context, running_command(), done)
        self._put(member)
        is_cancelled = False
        while not done.done():
            try:
                await asyncio.wait({done})
            except asyncio.CancelledError:
                self._leave(member)
                is_cancelled = True
        if is_cancelled:
            raise asyncio.CancelledError
        outcome = done.result()
        if isinstance(outcome, Failed):
            raise outcome.again()
        return outcome

    def wait_no_more(self) -> None:
        """Call with what waits, and from now on with each command at once: the worker stops."""
        self._waits = False
        for handler in list(self._queues):
            self._begin_all(handler)

    def _put(self, member: Member) -> None:
        handler = member.run.handler
        batch = handler.batch
        if batch is None or member.run.envelope.flags & AT_MOST_ONCE:  # its call must not be repeated with another's
            self._begin(handler, [member])
            return
        queue = self._queues.setdefault(handler, _Queue())
        queue.members.append(member)
        if member.running is not None:
            member.running.gathers = True
        # Where none more can wait the end of a call makes room: called at once each time, a busy worker would call with single ones.
        if len(queue.members) >= batch.size or not self._waits or (not self._calls and self._is_full()):
            self._begin_all(handler)
        elif queue.timer is None:
            queue.timer = self._loop.call_later(batch.wait, self._begin_all, handler)

    def _leave(self, member: Member) -> None:
        """Take a member out whose task was cancelled.

        Raises:
            CancelledError: Its call has not begun.
            ThreadRunsError: A thread runs its call, which nothing can stop.
        """
        run = member.run
        member.is_gone = True
        if member.batch is None or member.call is None:
            raise asyncio.CancelledError  # it is left out
        cause = None if run.interrupted is None else run.interrupted.cause
        if cause is Cause.ABANDONED or (not run.handler.is_async and cause in (None, Cause.STOPPING)):
            raise ThreadRunsError if not run.handler.is_async else asyncio.CancelledError
        if run.handler.is_async and all(each.is_gone for each in member.batch):
            member.call.cancel()  # a thread ends by itself, and its entities wait for that

    def _begin_all(self, handler: Handler) -> None:
        queue = self._queues.pop(handler)
        if queue.timer is not None:
            queue.timer.cancel()
        if queue.members:
            self._begin(handler, queue.members)

    def _begin(self, handler: Handler, members: list[Member], work: Coroutine[Any, Any, None] | None = None) -> None:
        name, work = f"command_bus.batch {handler.spec.name}", work or self._call_all(handler, members)
        call = self._loop.create_task(work, name=name, context=self._contexts.new())
        self._calls.add(call)
        call.add_done_callback(self._on_end)
        beside = frozenset(each.running.mailbox for each in members if each.running is not None)
        for each in members:
            each.batch, each.call = members, call
            if each.running is not None:
                each.running.gathers, each.running.beside = False, beside

    def _on_end(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if not self._calls and self._queues:
            self._loop.call_later(_LOOK_AGAIN, self._on_idle)

    def _on_idle(self) -> None:
        """Call with what waits if that leaves no room for more, and no call is under way."""
        if self._queues and not self._calls and self._is_full():
            self._begin_all(max(self._queues, key=lambda handler: len(self._queues[handler].members)))

    async def _call_all(self, handler: Handler, members: list[Member]) -> None:
        try:
            outcomes = await Halving(members, partial(self.call, handler), Member.is_ended_by).outcomes()
        except Exception as error:  # noqa: BLE001 - none may wait for an outcome for ever
            outcomes = [Failed(error, error.__traceback__)] * len(members)
        for each, outcome in zip(members, outcomes, strict=True):
            if each.done is not None and not each.done.done():
                each.done.set_result(outcome)

    async def of_entity(self, handler: Handler, members: list[Member], work: Coroutine[Any, Any, None]) -> None:
        """Call with commands of one entity, as `work` does. A cancellation ends it, and is raised once the call has ended.

        Raises:
            CancelledError: The call was cancelled.
            ThreadRunsError: A thread runs it, which nothing can stop.
        """
        self._begin(handler, members, work)
        call, is_cancelled = members[0].call, False
        while call is not None and not call.done():
            try:
                await asyncio.wait({call})
            except asyncio.CancelledError:
                is_cancelled = True
                for each in members:
                    each.is_gone = True
                    if each.context is not None and each.run.interrupted is not None:
                        each.context.cancel(each.run.interrupted.text)
                self._leave(members[0])
        if is_cancelled:
            raise asyncio.CancelledError
        if call is not None:
            call.result()

    async def call(self, handler: Handler, members: Sequence[Member]) -> Sequence[Any]:
        """Call the handler with those commands whose outcome is still wanted, and whose lease is not over."""
        wanted = [each for each in members if not each.is_gone and each.run.may_start]
        outcomes: dict[Member, Any] = {}
        if wanted:
            sent = [0 if each.run.outbox is None else each.run.outbox.count for each in wanted]
            try:
                values = await self._invoke(handler, wanted)
                outcomes = dict(zip(wanted, checked(handler, values, len(wanted)), strict=True))
            except BaseException:
                for each, count in zip(wanted, sent, strict=True):
                    if each.run.outbox is not None:
                        each.run.outbox.rewind(count)
                raise
        return [outcomes.get(each, _NEVER_STARTED) for each in members]

    async def _invoke(self, handler: Handler, members: Sequence[Member]) -> Any:
        commands = [each.run.message for each in members]
        contexts = [each.context for each in members] if handler.wants_context else None
        limited = [each.run for each in members if each.run.policy.attempt_timeout is not None]
        first = min(limited, key=lambda run: run.policy.attempt_timeout or 0.0, default=None)
        timeout = None if first is None else first.policy.attempt_timeout
        invoke = members[0].run.bound(handler.invoke)
        if not handler.is_async:
            return await self._in_thread(partial(invoke, commands, contexts), members, first)
        scope = asyncio.timeout(timeout)
        if timeout is not None:
            for each in members[0].batch or members:  # of all: the others wait for their part
                if each.run.lease is not None:
                    each.run.lease.renew_until = mono() + timeout + self._grace
        try:
            async with scope:
                return await invoke(commands, contexts)
        except TimeoutError as error:
            if first is not None and scope.expired():
                raise timed_out(first) from error
            raise

    async def _in_thread(self, invoke: Callable[[], Any], members: Sequence[Member], limited: Runnable | None) -> Any:
        """Call a plain function. A thread cannot be stopped: past the timeout its contexts say so, and the call has failed when it ends."""
        job = ThreadJob(invoke, lambda: any(each.run.may_start for each in members))
        self._threads.submit(job)
        await asyncio.wait({job.done}, timeout=None if limited is None else limited.policy.attempt_timeout)
        is_late = not job.done.done()
        for each in members if is_late else ():
            if each.context is not None:
                each.context.cancel("timeout")
        value, error = await job.done
        if is_late and limited is not None:
            raise timed_out(limited) from error
        if error is not None:
            raise error
        return value


def checked(handler: Handler, values: Any, count: int) -> Sequence[Any]:
    """Return the outcomes of a call.

    Raises:
        WrongOutcomes: They are not one for each command.
    """
    if values is None:
        return [None] * count
    if not isinstance(values, Sequence) or isinstance(values, str | bytes) or len(values) != count:
        found = f"{len(values)}" if isinstance(values, Sequence) else f"a {type(values).__name__}"
        raise WrongOutcomes(
            f"{handler.name} was called with {count} commands, and returned {found}: an outcome for each, or None"
        )
    return [Failed(each, each.__traceback__) if isinstance(each, BaseException) else each for each in values]
