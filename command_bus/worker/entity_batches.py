"""`EntityBatches`: lets a handler take neighbours of one entity in one call, in their order.

The first is started as any command. What stands behind it and can run with it is read, then the run is extended over it, so that the server knows
what runs. Once the calls have ended, one step settles what has succeeded, and then the first command that has not: by its own policy, with an
attempt of its own. What is behind that follows it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from command_bus.errors import Reject
from command_bus.messages.context import current_command
from command_bus.middleware import Handling, Middleware, around_many, takes_many
from command_bus.serialization.envelope import AT_MOST_ONCE
from command_bus.serialization.envelope_options import CALLERS
from command_bus.transport.mailboxes import message_order
from command_bus.transport.ports.worker import WorkerSide
from command_bus.transport.steps import (
    GIVE_BACK_UNCOUNTED,
    Cause,
    DeadLetterStep,
    Done,
    Extend,
    Extended,
    GiveBack,
    Lease,
    RunStep,
    Started,
    Step,
)
from command_bus.worker.batches import Batches, Failed, InOrder, Member, checked
from command_bus.worker.decisions import Decisions
from command_bus.worker.run_ends import Interruption
from command_bus.worker.runnable import Runnable

_MOST_BYTES = 64 * 1024
"""Bytes of the commands that are read for one run, about."""


@dataclass(eq=False)
class EntityBatches:
    """The batches of single entities that one worker calls handlers with.

    Attributes:
        decisions: The rules.
        batches: Calls handlers.
        side: Reads what stands behind a command, and extends runs.
        around: Wraps each command; None: nothing does.
        decide: Returns the step that follows from the outcome of a command.
        middleware: Wraps calls with several commands, if all of it does.
    """

    decisions: Decisions
    batches: Batches
    side: WorkerSide
    around: Callable[[Handling], Handling] | None
    decide: Callable[[Lease, Runnable, Any], Awaitable[Step]]
    middleware: Sequence[Middleware] = ()

    def __post_init__(self) -> None:
        self.takes_many = takes_many(self.middleware)

    async def gather(self, lease: Lease, head: Runnable) -> tuple[list[Runnable], Extend | None]:
        """Return the commands of a run, and the run as the server has it, None of a single command; no commands if the lease is lost."""
        runs = [head, *await self._beside(lease, head)]
        if len(runs) == 1:
            return runs, None
        run, state = Extend(runs[-1].started.message, len(runs)), lease.state
        answer = await self.side.steps.advance(lease, run)
        if type(answer) is Extended:
            lease.ahead, lease.record = None, ""
            return runs, run
        lease.state = state  # its command is the same
        is_alone = type(answer) is Started and (answer.fence, answer.message) == (head.started.fence, head.started.message)
        return [head] if is_alone else [], None

    async def _beside(self, lease: Lease, head: Runnable) -> list[Runnable]:
        """Return the commands that stand behind the first one and can run with it."""
        spec, started, envelope = head.handler.batch, head.started, head.envelope
        if spec is None or not self.takes_many or envelope.flags & AT_MOST_ONCE or CALLERS.of(envelope.options):
            return []
        most, size = min(spec.size, started.run.cap or spec.size), len(started.envelope or b"")
        behind = list(reversed(lease.ahead or ()))[: most - 1]
        if len(behind) < most - 1:
            known = size + sum(len(each) for _, each in behind)
            fitting = (_MOST_BYTES - known) * (1 + len(behind)) // max(known, 1)
            last = behind[-1][0] if behind else started.message
            if (count := min(most - 1 - len(behind), fitting)) > 0:
                behind += await self.side.steps.behind(lease, last, count)
        found: list[Runnable] = []
        for message, packed in behind:
            size += len(packed)
            may_have_run = started.run.begun and message_order(message) <= message_order(started.run.begun)
            first_ms = -started.now_ms if may_have_run else started.now_ms
            each = Started(
                started.fence,
                message,
                1,
                first_ms,
                started.now_ms,
                packed,
                confirmed=started.confirmed,
                is_first=not may_have_run,
            )
            run = self.decisions.beside(each, head, lease.mailbox) if size <= _MOST_BYTES else None
            if run is None:
                break
            found.append(run)
        return found

    def search(self, lease: Lease, members: list[Member]) -> InOrder[Member]:
        """Return the search for the first command of a run that fails."""
        head = members[0]
        return InOrder(
            members,
            partial(self._call, lease, head.run),
            is_over=lambda: head.is_gone,
            is_dropped=lambda: head.run.interrupted is not None and head.run.interrupted.by_operator,
        )

    async def outcomes(self, members: list[Member], search: InOrder[Member]) -> Sequence[Any]:
        """Call the handler; return the outcomes of the first commands, which `search` has also if this is cancelled."""
        try:
            await self.batches.of_entity(members[0].run.handler, members, search.search())
        finally:
            for each in members:
                if each.context is not None:
                    each.context.sends_by(None)
            await self._prepare(members, search)
        return search.found

    async def _prepare(self, members: list[Member], search: InOrder[Member]) -> None:
        """Make ready what is sent with the ends. Where that fails its command has failed; what is behind it runs again."""
        for at, (each, outcome) in enumerate(zip(members, [*search.found], strict=False)):
            if each.run.outbox is None:
                continue
            try:
                each.run.follow_ups = await each.run.outbox.settled(completed=not isinstance(outcome, Failed))
            except BaseException as error:
                is_ended = not isinstance(error, Exception)  # from outside: without what it sends its command has not ended
                if each.run.state is not None and len(members) > 1:  # the state has what the others of the call have changed
                    search.found.clear()
                    search.is_void = True
                elif is_ended:
                    del search.found[at:]
                else:
                    search.found[at] = Failed(error, error.__traceback__)
                    if isinstance(error, Reject):
                        continue
                    del search.found[at + 1 :]
                if is_ended:
                    raise
                return

    async def _call(self, lease: Lease, head: Runnable, members: Sequence[Member]) -> Sequence[Any]:
        """Call the handler with a part of a run. What a call has changed of the state counts once it has returned."""
        current_command.set(head.begun[0] if head.begun is not None else None)
        commands, contexts = [each.run.message for each in members], [each.context for each in members]

        async def proceed() -> list[Any]:
            self.decisions.renew_state(head, lease)
            try:
                with _unsent(members):
                    values = await self.batches.call(head.handler, members)
                    for each in values:
                        if isinstance(each, Failed) and head.state is not None:
                            raise each.again()  # it may have changed the state
            except BaseException:
                if head.state is not None:
                    head.state.is_void = True
                raise
            return [each.again() if isinstance(each, Failed) else each for each in values]

        values: Sequence[Any]
        try:
            with _unsent(members):
                if self.around is not None and not self.takes_many:
                    values = [await self.around(partial(_alone, proceed))(members[0].run, members[0].context)]
                else:
                    made: Any = contexts  # a worker with middleware makes one for each
                    values = checked(head.handler, await around_many(self.middleware, commands, made, proceed)(), len(members))
                self.decisions.change_state(head, lease)
        finally:
            if head.state is not None:
                head.state.is_void = True
        return values

    async def settled(
        self, lease: Lease, members: Sequence[Member], run: Extend | None, search: InOrder[Member], result: Any
    ) -> Step | None:
        """Return the step that settles what has ended of a run; None if this worker may no longer.

        Args:
            lease: Under which it ran.
            members: Its commands.
            run: What the server knows of it.
            search: It has the outcomes of its first commands.
            result: The end of the calls.
        """
        ends: list[tuple[Started, Done | DeadLetterStep]] = []
        last: tuple[Started, Step] | None = None
        if search.is_void and run is not None:
            return GiveBack(counts=True)  # of the run: the next one is a single command
        for each, outcome in zip(members, search.found, strict=False):
            step = await self.decide(lease, each.run, outcome)
            if not isinstance(step, Done | DeadLetterStep):
                last = each.run.started, step
                break
            ends.append((each.run.started, step))
        if last is None and len(ends) < len(members):
            interrupted = self._interrupted(members[0].run, result, is_run=run is not None, has_ends=bool(ends))
            if interrupted is None and type(result) is Interruption:
                return None
            if interrupted is not None:
                last = members[len(ends)].run.started, interrupted
        started, step = last or ends.pop()
        if run is None or not ends:
            return step
        if isinstance(step, Done):
            step.state = None
        return RunStep(run, ends, started, step, members[0].run.changed_state)  # type: ignore[arg-type]

    def _interrupted(self, head: Runnable, result: Any, *, is_run: bool, has_ends: bool) -> Step | None:
        """Return the step of the first command that was left without an outcome by calls which were ended from outside.

        None if this worker may not settle it, or a command that has failed ended the calls.
        """
        why, ended = head.interrupted, result if type(result) is Interruption else None
        if (
            (ended is None and why is None)
            or (ended is not None and ended.thread_runs)
            or (why is not None and why.cause is Cause.LOST)
        ):
            return None
        if why is None or (ended is not None and (ended.never_started or ended.no_thread)):
            return GIVE_BACK_UNCOUNTED
        if why.cause is Cause.CANCELLED and has_ends:
            return GIVE_BACK_UNCOUNTED
        if is_run and why.cause is not Cause.CANCELLED:
            return GiveBack(counts=True)  # of the run: the next one is a single command
        return self.decisions.ended(head, why) if why.by_operator else self.decisions.interrupted(head.started, why.text)


async def _alone(proceed: Callable[[], Awaitable[list[Any]]], *_: Any) -> Any:
    """Call with one command; return its reply or raise its error."""
    (value,) = await proceed()
    if isinstance(value, BaseException):
        raise value
    return value


@contextmanager
def _unsent(members: Sequence[Member]) -> Generator[None]:
    """Take back what was sent within a block that raises."""
    sent = [(each.run.outbox, each.run.outbox.count) for each in members if each.run.outbox is not None]
    try:
        yield
    except BaseException:
        for outbox, count in sent:
            outbox.rewind(count)
        raise
