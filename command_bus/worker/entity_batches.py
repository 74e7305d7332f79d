"""`EntityBatches`: lets a handler take neighbours of one entity in one call, in their order.

The first is started as any command. What stands behind it and can run with it is read, then the run is extended over it, so that the server knows
what runs. Once the calls have ended, one step settles what has succeeded, and then the first command that has not: by its own policy, with an
attempt of its own. What is behind that follows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from command_bus.messages.context import current_command
from command_bus.middleware import Handling
from command_bus.serialization.envelope import AT_MOST_ONCE
from command_bus.serialization.envelope_options import CALLERS
from command_bus.tasks import end_tasks
from command_bus.transport.mailboxes import message_order
from command_bus.transport.ports.worker import Steps
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
from command_bus.worker.batches import Batches, Failed, InOrder, Member
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
        steps: Reads what stands behind a command, and extends runs.
        around: Wraps each command; None: nothing does.
        decide: Returns the step that follows from the outcome of a command.
    """

    decisions: Decisions
    batches: Batches
    steps: Steps
    around: Callable[[Handling], Handling] | None
    decide: Callable[[Lease, Runnable, Any], Awaitable[Step]]

    async def gather(self, lease: Lease, head: Runnable) -> tuple[list[Runnable], Extend | None]:
        """Return the commands of a run, and the run as the server has it, None of a single command; no commands if the lease is lost."""
        runs = [head, *await self._beside(lease, head)]
        if len(runs) == 1:
            return runs, None
        run, state = Extend(runs[-1].started.message, len(runs)), lease.state
        answer = await self.steps.advance(lease, run)
        if type(answer) is Extended:
            lease.ahead, lease.record = None, ""
            return runs, run
        lease.state = state  # its command is the same
        is_alone = type(answer) is Started and (answer.fence, answer.message) == (head.started.fence, head.started.message)
        return [head] if is_alone else [], None

    async def _beside(self, lease: Lease, head: Runnable) -> list[Runnable]:
        """Return the commands that stand behind the first one and can run with it."""
        spec, started, envelope = head.handler.batch, head.started, head.envelope
        if spec is None or envelope.flags & AT_MOST_ONCE or CALLERS.of(envelope.options):
            return []
        most, size = min(spec.size, started.run.cap or spec.size), len(started.envelope or b"")
        behind = list(reversed(lease.ahead or ()))[: most - 1]
        if len(behind) < most - 1:
            known = size + sum(len(each) for _, each in behind)
            fitting = (_MOST_BYTES - known) * (1 + len(behind)) // max(known, 1)
            last = behind[-1][0] if behind else started.message
            if (count := min(most - 1 - len(behind), fitting)) > 0:
                behind += await self.steps.behind(lease, last, count)
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
        return InOrder(members, partial(self._call, lease, members[0].run), lambda: members[0].is_gone)

    async def outcomes(self, members: list[Member], search: InOrder[Member]) -> Sequence[Any]:
        """Call the handler; return the outcomes of the first commands, which `search` has also if this is cancelled."""
        try:
            await self.batches.of_entity(members[0].run.handler, members, search.search())
        finally:
            for each in members:
                if each.context is not None:
                    each.context.sends_by(None)
            for each, outcome in zip(members, search.found, strict=False):
                if each.run.outbox is not None:
                    each.run.follow_ups = await each.run.outbox.settled(completed=not isinstance(outcome, Failed))
        return search.found

    async def _call(self, lease: Lease, head: Runnable, members: Sequence[Member]) -> Sequence[Any]:
        """Call the handler with a part of a run. What a call has changed of the state counts once it has returned."""
        self.decisions.renew_state(head, lease)
        current_command.set(head.begun[0] if head.begun is not None else None)
        try:
            if self.around is None:
                values = await self.batches.call(head.handler, members)
            else:
                values = await _Wrapped(self.batches, self.around, members).outcomes()
            if head.state is not None:
                for each in values:
                    if isinstance(each, Failed):
                        raise each.again()  # it may have changed the state
                self.decisions.change_state(head, lease)
        finally:
            if head.state is not None:
                head.state.is_void = True
        return values

    async def settled(
        self, lease: Lease, members: Sequence[Member], run: Extend | None, found: Sequence[Any], result: Any
    ) -> Step | None:
        """Return the step that settles what has ended of a run; None if this worker may no longer.

        Args:
            lease: Under which it ran.
            members: Its commands.
            run: What the server knows of it.
            found: The outcomes of its first commands.
            result: The end of the calls.
        """
        ends: list[tuple[Started, Done | DeadLetterStep]] = []
        last: tuple[Started, Step] | None = None
        for each, outcome in zip(members, found, strict=False):
            step = await self.decide(lease, each.run, outcome)
            if not isinstance(step, Done | DeadLetterStep):
                last = each.run.started, step
                break
            ends.append((each.run.started, step))
        if last is None and type(result) is Interruption:
            rest = members[len(ends) :]
            interrupted = self._interrupted(members[0].run, result, is_run=run is not None, has_ends=bool(ends))
            if interrupted is None:
                return None
            if rest:
                last = rest[0].run.started, interrupted
        started, step = last or ends.pop()
        if run is None or not ends:
            return step
        if isinstance(step, Done):
            step.state = None
        return RunStep(run, ends, started, step, members[0].run.changed_state)  # type: ignore[arg-type]

    def _interrupted(self, head: Runnable, result: Interruption, *, is_run: bool, has_ends: bool) -> Step | None:
        """Return the step of the first command that a call left without an outcome which was ended from outside."""
        why = head.interrupted
        if result.thread_runs or (why is not None and why.cause is Cause.LOST):
            return None
        if why is None or result.never_started or result.no_thread:
            return GIVE_BACK_UNCOUNTED
        if why.cause is Cause.CANCELLED and has_ends:
            return GIVE_BACK_UNCOUNTED
        if is_run and why.cause is not Cause.CANCELLED:
            return GiveBack(counts=True)  # of the run: the next one is a single command
        return self.decisions.ended(head, why) if why.by_operator else self.decisions.interrupted(head.started, why.text)


class _Wrapped:
    """A call with middleware around each of its commands: the handler is called once all have got there."""

    def __init__(self, batches: Batches, around: Callable[[Handling], Handling], members: Sequence[Member]) -> None:
        self._batches = batches
        self._around = around
        self._members = members
        self._there: dict[Member, asyncio.Future[Any]] = {}
        self._changed = asyncio.Event()
        self._is_called = False

    async def outcomes(self) -> Sequence[Any]:
        """Return the outcome of each command as middleware has left it; raise what the call raised."""
        loop = asyncio.get_running_loop()
        tasks = {each: loop.create_task(self._wrap(each)) for each in self._members}
        for task in tasks.values():
            task.add_done_callback(lambda _: self._changed.set())
        try:
            while any(each not in self._there and not task.done() for each, task in tasks.items()):
                await self._changed.wait()
                self._changed.clear()
            raised = await self._call([each for each, task in tasks.items() if not task.done()])
            found = await asyncio.gather(*tasks.values(), return_exceptions=True)
        finally:
            await end_tasks(list(tasks.values()))
        if raised is not None and len(found) > 1:
            raise raised
        return [Failed(each, each.__traceback__) if isinstance(each, BaseException) else each for each in found]

    async def _wrap(self, member: Member) -> Any:
        current_command.set(member.running)
        return await self._around(partial(self._arrive, member))(member.run, member.context)

    async def _arrive(self, member: Member, *_: Any) -> Any:
        if self._is_called:  # middleware tries again
            (outcome,) = await self._batches.call(member.run.handler, [member])
            if isinstance(outcome, Failed):
                raise outcome.again()
            return outcome
        there = self._there[member] = asyncio.get_running_loop().create_future()
        self._changed.set()
        return await there

    async def _call(self, members: Sequence[Member]) -> BaseException | None:
        """Call the handler, and hand its outcomes out; return what it raised."""
        self._is_called = True
        if not members:
            return None
        try:
            outcomes = await self._batches.call(members[0].run.handler, members)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - it goes through middleware
            for each in members:
                self._there[each].set_exception(error)
            return error
        for each, outcome in zip(members, outcomes, strict=True):
            if isinstance(outcome, Failed):
                self._there[each].set_exception(outcome.again())
            else:
                self._there[each].set_result(outcome)
        return None
