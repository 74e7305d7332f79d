"""Runs one command: a delivery in, the step that settles it out.

    read → run the handler → decide

Returns None if this worker may no longer settle the command: its lease is lost, or a thread still runs what cannot be stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from operator import call
from typing import TYPE_CHECKING, Any

from command_bus.clock import mono
from command_bus.durable.compensation import is_compensating
from command_bus.durable.handler_operations import HandlerOperations
from command_bus.durable.names import CANCEL
from command_bus.errors import BadState, CommandBusError, CommandCancelled, Reject
from command_bus.messages.context import CommandContext, Running, current_command, running_command, while_lent
from command_bus.messages.durable import DurableContext
from command_bus.messages.snooze import Snooze
from command_bus.middleware import Handling, around_handle
from command_bus.sending.call_progress import hops_in
from command_bus.sending.follow_ups import FollowUps
from command_bus.sending.kept_run import KeptRun
from command_bus.serialization.envelope_options import CALLERS, CHAIN
from command_bus.serialization.limits import reading_limits
from command_bus.serialization.reply import Cancelled
from command_bus.serialization.tallies import FAILED, HANDLED, RETRIED, Tallies
from command_bus.transport.mailboxes import mailbox_label, type_of
from command_bus.transport.ports.worker import WorkerSide
from command_bus.transport.slots import Slots
from command_bus.transport.steps import (
    GIVE_BACK_UNCOUNTED,
    Cancellation,
    Cause,
    DeadLetterStep,
    Done,
    GiveBack,
    Lease,
    Park,
    Retry,
    Started,
    Step,
    Suspend,
)
from command_bus.worker.batches import CALL_CANCELLED, Batches, Failed, Member
from command_bus.worker.decisions import Decisions
from command_bus.worker.durable_runs import DurableRuns
from command_bus.worker.entity_batches import EntityBatches
from command_bus.worker.lending import Lending
from command_bus.worker.limits import hold_limit
from command_bus.worker.offers import Behind, Offer, Offers
from command_bus.worker.run_ends import FailureLog, Interruption, Raised, explained, text_of
from command_bus.worker.runnable import Begun, CommandContexts, Driven, Runnable, without_reports
from command_bus.worker.threads import HandlerThreads, NeverStartedError, StepThreads, ThreadRuns, timed_out
from command_bus.worker.worker_bus import WorkerBus

if TYPE_CHECKING:
    from command_bus.worker.processes import Children

CANCELLED = Cancellation(Cause.APPLICATION, "its task was cancelled by the application")
"""The end of a handler that something other than the worker cancelled."""
_ENDS: dict[type, int] = {Done: HANDLED, DeadLetterStep: FAILED, Park: FAILED, Retry: RETRIED}

_log = logging.getLogger("command_bus.worker")


@dataclass(eq=False)
class Executor:
    """Executes deliveries under their leases.

    Attributes:
        bus: What handlers send with, by its middleware.
        decisions: The rules.
        threads: The place where synchronous handlers run.
        slots: Those of the worker, lent by handlers that wait for the bus.
        worker: This worker's name.
        grace: Seconds past its timeout after which an asynchronous handler's lease is no longer renewed.
        works: Whether the worker goes on: false once it stops, or its event loop shuts down.
        offers: Leaves commands to other workers.
        durable: Begins and ends the runs of durable handlers.
        contexts: Makes the context of each command.
        side: Reads the state of the entity that a lease holds, and moves mailboxes forward.
        tallies: Counts what became of the runs.
        children: The place where handlers run in processes; None: those run here.
    """

    bus: WorkerBus
    decisions: Decisions
    threads: HandlerThreads
    slots: Slots
    worker: str
    grace: float
    works: Callable[[], bool]
    offers: Offers
    durable: DurableRuns
    contexts: CommandContexts
    side: WorkerSide
    tallies: Tallies = field(default_factory=Tallies)
    children: Children | None = None

    def __post_init__(self) -> None:
        around, self._transport, protection = (
            around_handle(self.bus.middleware),
            self.bus.session.transport,
            self.bus.session.protection,
        )
        self._call: Handling = around(self._invoke) if around is not None else self._invoke
        self._needs_context = around is not None
        self._verifies = protection is not None and protection.signatures is not None
        self._callers: set[str] = set()
        self._failures = FailureLog(self.worker)
        self._in_threads = ThreadRuns(self.threads, worker=self.worker, works=self.works)
        self._loop, self._home = asyncio.get_running_loop(), self.bus.settings.home
        self.batches = Batches(self.threads, self.contexts, self.grace, is_full=lambda: not self.slots.admits_caller())
        self._of_entity = EntityBatches(self.decisions, self.batches, self.side, around, self._member_ended, self.bus.middleware)

    def begin(self, lease: Lease, started: Started, task: asyncio.Task[Any]) -> Begun:
        """Run what was delivered, in a context of its own and in the current task, as far as it gets without waiting."""
        context = self.contexts.new()
        return context.run(self._begin, lease, started, task, context)

    def _begin(self, lease: Lease, started: Started, task: asyncio.Task[Any], context: Context) -> Begun:
        lease.is_unused = not lease.is_limited  # who asked limits has given the tokens of what does not run back itself
        if self._verifies:
            return Driven(context.run, self._verified(lease, started, task))
        read = self._read(lease, started)
        if isinstance(read, Runnable) and read.handler.state is not None and lease.state is not None:
            read = self.decisions.hold_state(read, lease) or read
        if not isinstance(read, Runnable) or not self._is_plain(read):
            return Driven(context.run, self._execute(lease, started, read, task))
        read.lease, lease.is_unused, lease.in_thread = lease, False, False
        running = self._running(lease, read)
        current_command.set(running)
        try:
            work: Any = read.bound(read.handler.invoke)(read.message, None)
            awaited = work.send(None)
        except StopIteration as end:
            _over(running, task)
            return self._decided(lease, read, end.value)
        except BaseException as error:  # noqa: BLE001 - it goes the long way
            read.begun = running, _raising(error)
        else:
            read.begun = running, Driven(call, work, awaited)
        return Driven(context.run, self._execute(lease, started, read, task))

    def _is_plain(self, run: Runnable) -> bool:
        """Return whether a handler can be begun with nothing around it. Nearly all can."""
        handler = run.handler
        if (handler.state is None) is not (run.state is None):  # it has to be read
            return False
        if handler.wants_context or not handler.is_async or handler.spec.durable or run.policy.attempt_timeout is not None:
            return False
        return not self._needs_context and handler.batch is None and run.envelope.name not in self._callers

    async def _verified(self, lease: Lease, started: Started, task: asyncio.Task[Any]) -> Step | None:
        unknown = await self._policy_unknown(lease, started)
        return unknown or await self._execute(lease, started, self._read(lease, started), task)

    def _read(self, lease: Lease, started: Started) -> Runnable | Step | Offer | Behind:
        if mono() >= lease.deadline:
            return GIVE_BACK_UNCOUNTED
        try:
            return self.decisions.read(started, lease.mailbox)
        except (Exception, SystemExit):  # noqa: BLE001 - the entity must not wait for the end of its lease
            return self._undecided(lease, started)

    async def _execute(
        self, lease: Lease, started: Started, read: Runnable | Step | Offer | Behind, task: asyncio.Task[Any]
    ) -> Step | None:
        """Run what was read, in this task, and return the step that settles it."""
        try:
            if isinstance(read, Runnable) and read.handler.state is not None and read.state is None:
                read = await self._hold_state(lease, read) or read
            if not isinstance(read, Runnable):
                read = await self._unrun(lease, started, read)
                if not isinstance(read, Runnable):
                    return read
            if self._callers and read.begun is None and read.envelope.name in self._callers and not read.serves_handler:
                if not self.slots.admits_caller() and read.handler.batch is None:  # which keeps its slot then
                    return self.offers.again(started.now_ms)
                read.lends_beyond = self.slots.all_lent
            read.lease, lease.is_unused = lease, False
            if read.handler.batch is not None and read.handler.batch.of_entity:
                return await self._execute_run(lease, read, task)
            if read.handler.spec.durable:
                return await self._execute_durable(lease, read, task)
            result = await self._ran(lease, read, task)
            if type(result) is Raised and isinstance(result.error, Snooze) and result.error.hold is not None:
                result = Raised(fault) if (fault := await hold_limit(self._transport, read, result.error)) is not None else result
            return self._decided(lease, read, result)
        except (Exception, SystemExit):  # noqa: BLE001 - the entity must not wait for the end of its lease
            return self._undecided(lease, started)
        finally:
            result = None  # an error refers to its frames, and they to those that called them: this one

    async def _hold_state(self, lease: Lease, run: Runnable) -> Step | Offer | None:
        """Give a command the state of its entity; return what to do if it cannot have it here."""
        if lease.state is None:
            lease.state = await self.side.read_state(lease)
            if mono() >= lease.deadline:  # that took too long
                return GIVE_BACK_UNCOUNTED
        return self.decisions.hold_state(run, lease)

    def _decided(self, lease: Lease, run: Runnable, result: Any) -> Step | None:
        try:
            return without_reports(run, self._decide(lease, run, result))
        except (Exception, SystemExit):  # noqa: BLE001 - as above
            return self._undecided(lease, run.started)

    def _undecided(self, lease: Lease, started: Started) -> Step:
        _log.exception("%s: a command could not be settled as its handler ended it", mailbox_label(lease.mailbox))
        return self.decisions.interrupted(started, "its worker failed while it ran")

    async def _execute_run(self, lease: Lease, head: Runnable, task: asyncio.Task[Any]) -> Step | None:
        """Run a command and those behind it that run with it."""
        runs, extended = await self._of_entity.gather(lease, head)
        if not runs:
            return None
        members = [self._member(lease, each, head) for each in runs]
        outboxes = [each.run.outbox for each in members if each.run.outbox is not None]
        for outbox in outboxes:
            outbox.together = outboxes
        search = self._of_entity.search(lease, members)
        head.begun = members[0].running or self._running(lease, head), self._of_entity.outcomes(members, search)
        result = await self._ran(lease, head, task)
        return await self._of_entity.settled(lease, members, extended, search, result)

    def _member(self, lease: Lease, run: Runnable, head: Runnable) -> Member:
        """Return a command of a run, with what its handler knows of it."""
        run.lease, run.state, context = lease, head.state, None
        running = self._running(lease, run) if run is head or run.handler.wants_context or self._needs_context else None
        if run.handler.wants_context or self._needs_context:
            context, run.outbox = self._context(run), self.bus.sender.outbox(run.envelope.command_id)
            context.sends_by(run.outbox, None, run.state, partial(self._memory, run, run.outbox), running, shares_state=True)
        return Member(run, context, running)

    async def _member_ended(self, lease: Lease, run: Runnable, outcome: Any) -> Step:
        """Return the step that follows from the outcome of a command of a run."""
        if not isinstance(outcome, Failed):
            step = self.decisions.completed(run, outcome)
        else:
            error: BaseException = outcome.again()
            if isinstance(error, NeverStartedError):
                return GIVE_BACK_UNCOUNTED
            if outcome is CALL_CANCELLED:
                return self.decisions.interrupted(run.started, CANCELLED.text)
            if isinstance(error, Snooze) and error.hold is not None:
                error = await hold_limit(self._transport, run, error) or error
            step = self._decide_on_error(lease, run, error)
        self._count(run, step)
        return step

    async def _execute_durable(self, lease: Lease, run: Runnable, task: asyncio.Task[Any]) -> Step | None:
        """Run a durable command: its handler, or what compensates for it."""
        durable = await self.durable.begin(lease, run, task, StepThreads(self._in_threads, run, self._lend_place_and_thread))
        try:
            if mono() >= lease.deadline:  # reading what is stored took too long
                return GIVE_BACK_UNCOUNTED
            if is_compensating(durable):
                return await self.durable.end(run, durable, None)
            step = self.decisions.exhausted(run)
            if step is None:
                result = await self._ran(lease, run, task)
                if type(result) is Interruption and result.thread_runs:
                    return None
                if durable.suspension is not None and (run.interrupted is None or not run.interrupted.by_operator):
                    is_lost = run.interrupted is not None and run.interrupted.cause is Cause.LOST
                    return None if is_lost else self._left(run, durable.suspension)
                step = self._decide(lease, run, result)
            return await self.durable.end(run, durable, step)
        finally:
            durable.errors.clear()
            result = None  # as above
            run.durable = None  # which holds what refers to this, so that both are freed now

    async def _unrun(self, lease: Lease, started: Started, read: Step | Offer | Behind) -> Step | Runnable:
        """Return the end of a command that cannot run here. One that has something to undo is not settled by that; what undoes can run here."""
        step = await self.offers.left(started, read) if isinstance(read, Offer | Behind) else read
        if started.is_first or not isinstance(step, DeadLetterStep | Park):
            return step
        return await self.durable.unsettled(lease, started, step)

    def _left(self, run: Runnable, why: Suspend | GiveBack) -> Step:
        """Return the step of a run that has ended before its handler did: its command waits, or another worker goes on with it."""
        return self.decisions.suspended(run, why) if isinstance(why, Suspend) else self.offers.again(run.started.now_ms)

    async def _policy_unknown(self, lease: Lease, started: Started) -> Step | None:
        """Look up what mailboxes the entities of this type have; return what to do until that is known, or None: it is.

        A type may be agreed on long after this worker began. A type that was never agreed on has the mailboxes of this worker's settings.
        """
        entity_type, policies = type_of(lease.mailbox), self._transport.agreements
        if entity_type is None or policies.recorded(entity_type) is not None:
            return None
        try:
            await policies.learn(entity_type)
        except CommandBusError as error:
            _log.warning("%s waits: its signatures cannot be verified yet: %s", mailbox_label(lease.mailbox), error)
            return self.offers.again(started.now_ms)
        return None

    def _decide(self, lease: Lease, run: Runnable, result: Any) -> Step | None:
        step = self._following(lease, run, result)
        self._count(run, step)
        return step

    def _count(self, run: Runnable, step: Step | None) -> None:
        if (end := _ENDS.get(type(step))) is not None and getattr(step, "counts", True):
            tally = self.tallies[run.handler.spec.name]
            tally[end] = number = tally[end] + 1
            if number & 7 == 1:  # the time of one in eight: a clock and a step of durations take longer than the rest
                micros = int((mono() - run.began) * 1_000_000)
                tally[(micros * micros).bit_length()] += 1

    def _following(self, lease: Lease, run: Runnable, result: Any) -> Step | None:
        """Return the step that follows from a handler's result."""
        kind = type(result)
        if kind is Interruption:
            lease.is_unused = (result.no_thread or result.never_started) and not lease.is_limited
            if result.no_thread:
                return self.offers.again(run.started.now_ms)
            if result.never_started:
                return GIVE_BACK_UNCOUNTED
            if result.thread_runs:
                return None
        if run.interrupted is not None and run.interrupted.by_operator:  # however its handler ended
            return self.decisions.ended(run, run.interrupted)
        if kind is Raised:
            return self._decide_on_error(lease, run, result.error)
        if kind is not Interruption:
            try:
                self.decisions.change_state(run, lease)
            except BadState as error:
                return self._decide_on_error(lease, run, error)
            return self.decisions.completed(run, result)
        if result.why.cause is Cause.LOST:
            return None
        return self.decisions.interrupted(run.started, result.why.text)

    def _decide_on_error(self, lease: Lease, run: Runnable, error: BaseException) -> Step:
        if isinstance(error, Reject):
            return self.decisions.rejected(run, error)
        wish = None if run.durable is None else run.durable.wish
        if wish is not None:  # whatever it fails with, it is not tried again
            text = text_of(error) if isinstance(error, CommandCancelled) else wish.decode(errors="replace")
            return self.decisions.cancelled(run, Cancelled(text))
        if isinstance(error, Snooze):
            return self.decisions.snoozed(run, error)
        self._failures.log(mailbox_label(lease.mailbox), run, error)
        return self.decisions.failed(run, error)

    async def _ran(self, lease: Lease, run: Runnable, task: asyncio.Task[Any]) -> Any:
        """Run the handler as `_run` does; all that it reports is stored then."""
        try:
            ended = [await self._run(lease, run, task)]
        except BaseException:
            if run.reports is not None:
                run.reports.close()
            raise
        if run.reports is not None:
            await run.reports.end()
        return ended.pop()  # this frame keeps no error

    async def _run(self, lease: Lease, run: Runnable, task: asyncio.Task[Any]) -> Any:
        """Return the handler's result, or `Raised`, or `Interruption`."""
        context = self._context(run) if run.handler.wants_context or self._needs_context or run.durable is not None else None
        running, begun = run.begun or (self._running(lease, run), None)
        current_command.set(running)
        if run.policy.attempt_timeout is not None and run.handler.is_async and run.handler.batch is None:
            lease.renew_until = mono() + run.policy.attempt_timeout + self.grace
        lease.in_thread = not run.handler.is_async
        lease.cancel = partial(_interrupt, run, context, task)
        try:
            return await (begun or self._calling(run, context))
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and run.interrupted is None and task.cancelling():
                if not self.works():
                    raise
                run.interrupted = CANCELLED
            return explained(error, run.interrupted)
        finally:
            lease.cancel = None
            lease.renew_until = None
            _over(running, task)

    def _calling(self, run: Runnable, context: CommandContext | None) -> Awaitable[Any]:
        """Return the call of the handler. One without a context sends nothing with its end, and has no coroutine for that."""
        if context is None:
            return self._call(run, context)
        return self._sent(self.bus.sender.outbox(run.envelope.command_id), run, context)

    async def _sent(self, outbox: FollowUps, run: Runnable, context: CommandContext) -> Any:
        """Call the handler; whatever it sends with this end is ready then."""
        if run.lease is not None:
            run.reports = self.durable.reports(run.lease, run)
        run.outbox = outbox
        running = running_command() if run.handler.batch is not None else None
        context.sends_by(outbox, run.reports, run.state, partial(self._memory, run, outbox), running)
        try:
            try:
                result = await self._call(run, context)
            finally:
                context.sends_by(None)
        except Exception:
            run.follow_ups = await outbox.settled(completed=False)
            raise
        run.follow_ups = await outbox.settled(completed=True)
        return result

    def _memory(self, run: Runnable, outbox: FollowUps) -> KeptRun:
        session, mailbox = self.bus.session, "" if run.lease is None else run.lease.mailbox
        return KeptRun(
            run.envelope, run.handler.spec.reply, reading_limits(session.settings),
            namespace=session.settings.namespace, mailbox=mailbox, outbox=outbox, protection=session.protection,
        )  # fmt: skip

    async def _invoke(self, run: Runnable, context: CommandContext | None) -> Any:
        """Call the handler. Where it raises, the state that it has changed is void, and is read again if middleware calls again."""
        if run.state is None:
            return await self._invoke_handler(run, context)
        if run.lease is not None:
            self.decisions.renew_state(run, run.lease)
        try:
            return await self._invoke_handler(run, context)
        except BaseException:
            run.state.is_void = True
            raise

    async def _invoke_handler(self, run: Runnable, context: CommandContext | None) -> Any:
        handler = run.handler
        if handler.batch is not None:
            return await while_lent(self.batches.add(run, context))
        if not handler.is_async:
            if handler.scope is None:
                return await self._in_threads.call(run, run.bound(handler.invoke), context)
            async with handler.scope() as invoke:
                return await self._in_threads.call(run, run.bound(invoke), context)
        if self._needs_context and not run.may_start:  # middleware may have taken its time
            raise NeverStartedError
        if handler.process is not None and self.children is not None:
            async with self.children.one(handler) as child:
                return await self._in_time(run, child.run(handler, run.message, context))
        work: Awaitable[Any] = run.bound(handler.invoke)(run.message, context)
        return await self._in_time(run, work if run.durable is None else run.durable.running(work))

    async def _in_time(self, run: Runnable, work: Awaitable[Any]) -> Any:
        """Return the result of a handler; end it when its time is over."""
        timeout = run.policy.attempt_timeout
        if timeout is None:
            return await work
        scope = asyncio.timeout(timeout)
        try:
            async with scope:
                return await work
        except TimeoutError as error:
            if scope.expired():
                raise timed_out(run) from error
            raise

    # Handlers that wait for the bus.

    def _running(self, lease: Lease, run: Runnable) -> Running:
        envelope, handler = run.envelope, run.handler
        running = Running(
            lease.mailbox,
            envelope.command_id,
            envelope.correlation_id or envelope.command_id,
            envelope.name,
            run.started.attempt,
            self.worker,
            run.callers if envelope.options or lease.has_place or lease.is_limited else CALLERS.default,
            (*CHAIN.of(envelope.options), *run.started.others),
            run.lends_beyond or run.serves_handler,
            self._lend_place if handler.is_async else self._lend_place_and_thread,
            hops=hops_in(envelope.headers),
            home=self._home,
        )
        if run.durable is not None:
            run.durable.on_suspended = running.suspend
        return running

    def _lend_place(self, running: Running) -> Lending:
        self._callers.add(running.name)
        return Lending(self.slots, None, beyond=running.lends_beyond, loop=self._loop)

    def _lend_place_and_thread(self, running: Running) -> Lending:
        self._callers.add(running.name)
        return Lending(self.slots, self.threads, beyond=running.lends_beyond, loop=self._loop)

    def _context(self, run: Runnable) -> CommandContext:
        envelope, remaining, (entity_type, entity_id) = run.envelope, run.remaining, run.envelope.first_entity
        kind = CommandContext if run.durable is None else partial(DurableContext, _operations=HandlerOperations(run.durable))
        return kind(
            command_id=envelope.dispatched_id,
            name=envelope.name,
            entity_type=entity_type,
            entity_id=entity_id,
            attempt=run.started.attempt,
            fence=int(run.started.fence),
            deadline=None if remaining is None else mono() + remaining,
            headers=envelope.headers or {},
            correlation_id=envelope.correlation_id or envelope.command_id,
            causation_id=envelope.causation_id,
            accepted_ms=run.accepted_ms,
            worker=self.worker,
            bus=self.bus,
            resumed=run.durable is not None and run.durable.is_resumed,
            loop=self._loop,
        )


def _over(running: Running, task: asyncio.Task[Any]) -> None:
    """Note that a handler is over."""
    running.ended = True
    if running.lending is not None:
        running.lending.end()
    while task.cancelling():
        task.uncancel()  # also where the handler swallowed it; what it has not met yet ends the next step (see `StepBatcher`)


async def _raising(error: BaseException) -> None:
    try:
        raise error
    finally:
        del error  # it refers to this frame


def _interrupt(run: Runnable, context: CommandContext | None, task: asyncio.Task[Any], why: Cancellation) -> None:
    """End a handler from outside: once, and again to abandon it. A durable one that is cancelled ends where it awaits what has not ended."""
    before, is_wish = run.interrupted, why.cause is Cause.CANCELLED and run.durable is not None
    again = why.cause is Cause.ABANDONED and before is not None and before.cause is not Cause.ABANDONED
    if context is not None and (is_wish or (before is None or again)):
        context.cancel(why.text)
    if run.durable is not None and is_wish:
        run.durable.arrive(CANCEL, why.text.encode())
    elif before is None or again:
        run.interrupted = why
        task.cancel()
