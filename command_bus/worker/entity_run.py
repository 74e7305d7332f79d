"""Runs the commands of one held entity, one after the other, until its lease is released."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import Any

from command_bus.clock import mono
from command_bus.serialization.limits import printable
from command_bus.settings import BusSettings
from command_bus.transport.mailboxes import mailbox_label
from command_bus.transport.ports.worker import Over, Run, Steps, WorkerSide
from command_bus.transport.steps import (
    GIVE_BACK_UNCOUNTED,
    TAKE,
    Answer,
    DeadLetterStep,
    Done,
    Follow,
    Lease,
    LeaseLost,
    LimitQuestion,
    Released,
    RunStep,
    Started,
    Step,
    StepFailed,
)
from command_bus.worker.lifecycle import Execute
from command_bus.worker.limits import LimitKeys
from command_bus.worker.runnable import Begun, Driven

_log = logging.getLogger("command_bus.worker")
_ENDS = (Released, LeaseLost)
_BROKEN_PAUSE = 1.0


@dataclass(slots=True)
class WorkerState:
    """The state of one worker.

    Attributes:
        paused: Whether it takes no work until it is resumed.
        stopping: Whether it is about to leave.
    """

    paused: bool = False
    stopping: bool = False

    @property
    def leaving(self) -> bool:
        """Whether it gives its entities up: it is about to leave, or paused."""
        return self.stopping or self.paused


@dataclass(eq=False)
class EntityRun:
    """The worker's side of one activation: take, then execute and settle until it is another entity's turn.

    Attributes:
        side: The transport's side of the worker, whose slots it uses, and whose limits it asks.
        steps: Moves the mailbox forward.
        execute: Runs a command.
        settings: Says for how many commands, and how long, an entity runs in a row while others wait for its slot.
        state: Whether an entity is given up after the command that runs.
        keys: Reads what limits are asked for.
    """

    side: WorkerSide
    steps: Steps
    execute: Execute
    settings: BusSettings
    state: WorkerState
    keys: LimitKeys

    def begin(self, lease: Lease, task: asyncio.Task[Any], over: Over) -> Run | asyncio.Future[Answer]:
        """Run a command that was started with its delivery, in the current task, as far as it gets without waiting.

        Returns:
            What does the rest; or the answer to its step if nothing is left to do in this task: then `over` is called.
        """
        if lease.begun is None or self.state.leaving:
            return self.run
        task.set_name(lease.task_name)
        step = self.execute(lease, lease.begun, task)
        lease.begun = None
        asked = None if step is None or isinstance(step, Driven) else self._asked_for(lease, step)
        if not isinstance(asked, asyncio.Future):
            return partial(self.run, begun=step, asked=asked)

        def answered(answer: asyncio.Future[Answer]) -> None:
            is_over = answer.cancelled() or (answer.exception() is None and type(answer.result()) in _ENDS)
            over(lease, answer, None if is_over else partial(self.run, begun=step, asked=answer))

        asked.add_done_callback(answered)
        return asked

    def _asked_for(self, lease: Lease, step: Step) -> Awaitable[Answer]:
        """Settle the first command."""
        self._set_follow(lease, step, 0, mono())
        return self.steps.advance(lease, step)

    def _set_follow(self, lease: Lease, step: Step, commands: int, began: float) -> int:
        """Say what follows a step; return how many commands the entity has had then."""
        commands += 1
        if type(step) is RunStep:
            commands, step = commands + len(step.before), step.step
        if type(step) is Done or type(step) is DeadLetterStep:
            step.follow = self._follow(lease.shard, commands, began)
        return commands

    async def _advance(self, lease: Lease, begun: Begun, asked: Awaitable[Answer] | None = None) -> Answer | None:
        """Return the answer to a step, or to that of a command that was begun; None if there is no step."""
        step = await begun if isinstance(begun, Driven) else begun
        if step is None:
            return None
        answer = await (asked or self._asked_for(lease, step))
        return await self._repaired(lease, step, answer) if type(answer) is StepFailed else answer

    async def run(self, lease: Lease, begun: Begun = TAKE, asked: Awaitable[Answer] | None = None) -> None:
        """Run the mailbox's commands in order.

        Args:
            lease: Under which they run.
            begun: The first, if it was begun.
            asked: The answer to its step, if that was asked for.
        """
        answer: Answer | None = None
        try:
            task: Any = asyncio.current_task()
            answer = await self._advance(lease, begun, asked)
            began, commands = mono(), 0
            while True:
                while type(answer) is Started:
                    if self.state.leaving:
                        lease.is_unused = not lease.is_limited
                        answer = await self._advance(lease, GIVE_BACK_UNCOUNTED)
                        return
                    task.set_name(lease.task_name)  # the handler before may have given it another
                    begun = self.execute(lease, answer, task)
                    step = await begun if isinstance(begun, Driven) else begun
                    if step is None:
                        return
                    commands = self._set_follow(lease, step, commands, began)
                    answer = await self.steps.advance(lease, step)
                    if type(answer) is StepFailed:
                        answer = await self._repaired(lease, step, answer)
                if type(answer) is not LimitQuestion:
                    return
                answer = await self._asked(lease, answer, must_yield=commands >= self.settings.quantum)
        finally:
            if lease.is_limited and answer is not None and type(answer) is not Started:  # else it is taken over, with its places
                self.side.over(lease)

    async def _asked(self, lease: Lease, asked: LimitQuestion, *, must_yield: bool) -> Answer | None:
        if self.state.leaving:
            return await self._advance(lease, GIVE_BACK_UNCOUNTED)
        return await self.side.admit(lease, asked, self.keys.keyed(asked), must_yield=must_yield)

    def _follow(self, shard: int, commands: int, began: float) -> Follow:
        """Return whether the entity keeps its slot: a hot one must not starve the others.

        The server knows who else waits in this shard, and the worker which other shards wait for a slot.
        """
        if self.state.leaving:
            return "leave"
        if commands < self.settings.quantum and mono() - began <= self.settings.quantum_time:
            return "stay"
        return "leave" if self.side.slots.another_waits(shard) else "yield"

    async def _repaired(self, lease: Lease, step: Step, answer: Answer) -> Answer:
        """Repeat a step that fails because a key of the entity has another type, until an operator has repaired it. Nothing is lost."""
        self.side.over(lease, stuck=True)
        while isinstance(answer, StepFailed) and not self.state.stopping:
            entity = mailbox_label(lease.mailbox)
            _log.error(
                "%s is stuck: %s. Repair the key; its work goes on then",
                entity,
                printable(answer.reason),
                extra={"entity": entity},
            )
            await asyncio.sleep(_BROKEN_PAUSE)
            answer = await self.steps.advance(lease, step)
        return answer
