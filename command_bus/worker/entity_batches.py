"""`EntityBatches`: lets a handler take neighbours of one entity in one call, in their order.

The first is started as any command. What stands behind it and can run with it is read, then the run is extended over it, so that the server knows
what runs. Once the calls have ended, one step settles what has succeeded, and then the first command that has not: by its own policy, with an
attempt of its own. What is behind that follows it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from command_bus.middleware import Handling
from command_bus.serialization.envelope import AT_MOST_ONCE
from command_bus.serialization.envelope_options import CALLERS
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
from command_bus.worker.batches import Batches, Failed, InOrder, Member, WrongOutcomes
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
        around: Wraps each call, with its first command; None: nothing does.
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
        first, handler = members[0], head.handler

        async def proceed(*_: Any) -> Sequence[Any]:
            return await self.batches.call(handler, members)

        self.decisions.renew_state(head, lease)
        try:
            values = await (proceed if self.around is None else self.around(proceed))(first.run, first.context)
            if not isinstance(values, Sequence) or len(values) != len(members):
                raise WrongOutcomes(f"middleware around {handler.name} returned something else than its outcomes")
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
