"""Runs the commands of one held entity, one after the other, until its lease is released."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from types import coroutine
from typing import Any, TypeVar

from command_bus.clock import mono
from command_bus.serialization.limits import printable
from command_bus.settings import BusSettings
from command_bus.transport.mailboxes import mailbox_label
from command_bus.transport.ports.worker import Steps, WorkerSide
from command_bus.transport.steps import (
    GIVE_BACK_UNCOUNTED,
    Answer,
    DeadLetterStep,
    Done,
    Follow,
    Lease,
    LimitQuestion,
    Started,
    Step,
    StepFailed,
    Take,
)
from command_bus.worker.lifecycle import Execute
from command_bus.worker.limits import LimitKeys

T = TypeVar("T")


class CommandContexts:
    """The source of contexts: copies of the one in which it was made.

    What a variable refers to is shared, as among tasks. Of decimal's own context, which every program changes in place, each command has a copy.
    """

    def __init__(self) -> None:
        self._base = contextvars.copy_context()
        decimal = sys.modules.get("decimal")
        found = [] if decimal is None else [each for each in self._base.items() if isinstance(each[1], decimal.Context)]
        self._copied: list[tuple[contextvars.ContextVar[Any], Callable[[], Any]]] = [
            (each, value.copy().copy) for each, value in found
        ]

    def run(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Return what runs a coroutine in a context of its own, within the task that awaits this."""
        context = self._base.copy()
        for variable, copied in self._copied:
            context.run(variable.set, copied())
        return _driven(context, work)


@coroutine
def _driven(context: contextvars.Context, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Drive a coroutine as `await` does, each time inside of a context."""
    try:
        awaited = context.run(work.send, None)
        while True:
            try:
                value = yield awaited
            except GeneratorExit:
                context.run(work.close)
                raise
            except BaseException as error:  # noqa: BLE001 - a cancellation mostly
                awaited = context.run(work.throw, error)
            else:
                awaited = context.run(work.send, value)
    except StopIteration as end:
        result: T = end.value
        return result


_log = logging.getLogger("command_bus.worker")
_TAKE = Take()
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
        contexts: Makes the context of each command.
    """

    side: WorkerSide
    steps: Steps
    execute: Execute
    settings: BusSettings
    state: WorkerState
    keys: LimitKeys
    contexts: CommandContexts

    async def run(self, lease: Lease) -> None:
        """Run the mailbox's commands in order."""
        answer: Answer | None = None
        try:
            task = asyncio.current_task()
            name = "" if task is None else task.get_name()
            answer = await self._advance(lease, _TAKE)
            began, commands = mono(), 0
            while True:
                while type(answer) is Started:
                    if self.state.leaving:
                        lease.is_unused = not lease.is_limited
                        answer = await self._advance(lease, GIVE_BACK_UNCOUNTED)
                        return
                    step = await self.contexts.run(self.execute(lease, answer, task))
                    if task is not None:
                        task.set_name(name)  # a handler may have given it another
                    if step is None:
                        return
                    commands += 1
                    if type(step) is Done or type(step) is DeadLetterStep:
                        step.follow = self._follow(lease.shard, commands, began)
                    answer = await self.steps.advance(lease, step)
                    if type(answer) is StepFailed:
                        answer = await self._repaired(lease, step, answer)
                if type(answer) is not LimitQuestion:
                    return
                answer = await self._asked(lease, answer, must_yield=commands >= self.settings.quantum)
        finally:
            if lease.is_limited and answer is not None and type(answer) is not Started:  # else it is taken over, with its places
                self.side.over(lease)

    async def _asked(self, lease: Lease, asked: LimitQuestion, *, must_yield: bool) -> Answer:
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

    async def _advance(self, lease: Lease, step: Step) -> Answer:
        answer = await self.steps.advance(lease, step)
        return await self._repaired(lease, step, answer) if type(answer) is StepFailed else answer

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
