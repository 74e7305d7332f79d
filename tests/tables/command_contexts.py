"""Things that a handler can leave behind in its task, and the ways in which handlers run."""

from __future__ import annotations

import asyncio
import decimal
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from command_bus import (
    Command,
    CommandContext,
    DurableContext,
    EntityId,
    EntityState,
    HandlerRegistry,
    Middleware,
    Query,
    Reject,
    RetryPolicy,
)

__all__ = ["GIVEN", "THINGS", "WAYS", "Left", "Spoiling", "Thing", "registry_of"]

GIVEN: ContextVar[str] = ContextVar("given")
UNSET: ContextVar[str] = ContextVar("unset")


@dataclass(frozen=True, slots=True)
class Thing:
    """Something that belongs to a context or a task.

    Attributes:
        look: Returns what is there.
        spoil: Changes it, as a handler may.
    """

    look: Callable[[], Any]
    spoil: Callable[[], Any]


def _name_of_task() -> str | None:
    if threading.current_thread() is not threading.main_thread():
        return None
    task = asyncio.current_task()
    return None if task is None else task.get_name().partition(" ")[0]


def _rename_task() -> None:
    if threading.current_thread() is threading.main_thread() and (task := asyncio.current_task()) is not None:
        task.set_name("mine")


THINGS = {
    "a variable that was unset": Thing(lambda: UNSET.get("nothing"), lambda: UNSET.set("left")),
    "a variable that the worker was started with": Thing(lambda: GIVEN.get("nothing"), lambda: GIVEN.set("left")),
    "decimal's precision": Thing(lambda: decimal.getcontext().prec, lambda: setattr(decimal.getcontext(), "prec", 3)),
    "decimal's traps": Thing(
        lambda: decimal.getcontext().traps[decimal.Inexact],
        lambda: decimal.getcontext().traps.__setitem__(decimal.Inexact, True),
    ),
    "decimal's context": Thing(
        lambda: decimal.getcontext().rounding, lambda: decimal.setcontext(decimal.Context(rounding="ROUND_UP"))
    ),
    "the task's name": Thing(_name_of_task, _rename_task),
}


@dataclass(slots=True)
class Left:
    """The cell that runs: what its handlers saw, and how they spoil it."""

    thing: Thing
    saw: list[Any]

    def meet(self, commands: int = 1) -> None:
        """Look, then spoil, for so many commands that are called together."""
        self.saw += [self.thing.look()] * commands
        self.thing.spoil()


class Plain(Command[None], entity="box"):
    box: EntityId


class InThread(Command[None], entity="box"):
    box: EntityId


class Awaiting(Command[None], entity="box"):
    box: EntityId


class Refused(Command[None], entity="box"):
    box: EntityId


class Failing(Command[None], entity="box", retry=RetryPolicy(attempts=2, delay=0.0)):
    box: EntityId


class Late(Command[None], entity="box", retry=RetryPolicy(attempts=1), attempt_timeout=0.02):
    box: EntityId


class Scoped(Command[None], entity="box"):
    box: EntityId


class Asked(Query[None], entity="box"):
    box: EntityId


class Lasting(Command[None], entity="parcel", durable=True):
    box: EntityId


class Stepping(Command[None], entity="parcel", durable=True):
    box: EntityId


class SteppingInThread(Command[None], entity="parcel", durable=True):
    box: EntityId


class Layered(Command[None], entity="box"):
    box: EntityId


class Together(Command[None], entity="box"):
    box: EntityId


class InRun(Command[None], entity="crate"):
    box: EntityId


class Stateful(Command[None], entity="crate"):
    box: EntityId


class Crate(EntityState, entity="crate"):
    count: int = 0


WAYS: tuple[type[Command[None] | Query[None]], ...] = (
    Plain,
    InThread,
    Awaiting,
    Refused,
    Failing,
    Late,
    Scoped,
    Asked,
    Lasting,
    Stepping,
    SteppingInThread,
    Layered,
    Together,
    InRun,
    Stateful,
)


class Spoiling(Middleware):
    """Middleware that leaves something behind itself."""

    def __init__(self, left: Left) -> None:
        self._left = left

    async def handle(self, command: Any, context: CommandContext, proceed: Callable[[], Awaitable[Any]]) -> Any:
        """Spoil, and go on."""
        if isinstance(command, Layered):
            self._left.meet()
        return await proceed()


def registry_of(left: Left) -> HandlerRegistry:  # noqa: C901 - a handler for each way
    """Return handlers that leave something behind, each in its way."""
    registry = HandlerRegistry()

    @registry.handles(Plain)
    async def plain(command: Plain) -> None:
        left.meet()

    @registry.handles(InThread)
    def in_thread(command: InThread) -> None:
        left.meet()

    @registry.handles(Awaiting)
    async def awaiting(command: Awaiting) -> None:
        await asyncio.sleep(0.001)
        left.meet()
        await asyncio.sleep(0.001)

    @registry.handles(Refused)
    async def refused(command: Refused) -> None:
        left.meet()
        raise Reject("no")

    @registry.handles(Failing)
    async def failing(command: Failing) -> None:
        left.meet()
        raise ValueError("no")

    @registry.handles(Late)
    async def late(command: Late) -> None:
        left.meet()
        await asyncio.sleep(10)

    @registry.handles(Scoped)
    async def scoped(command: Scoped, context: CommandContext) -> None:
        await asyncio.create_task(asyncio.sleep(0))
        left.meet()

    @registry.handles(Asked)
    async def asked(query: Asked) -> None:
        left.meet()

    @registry.handles(Lasting)
    async def lasting(command: Lasting, context: DurableContext) -> None:
        left.meet()
        await context.sleep(0.001)
        await context.sleep(0.06)  # longer than a worker waits itself: it is suspended

    async def step() -> None:
        left.meet()

    @registry.handles(Stepping)
    async def stepping(command: Stepping, context: DurableContext) -> None:
        await context.step("one", step)

    @registry.handles(SteppingInThread)
    async def stepping_in_thread(command: SteppingInThread, context: DurableContext) -> None:
        await context.step("one", left.meet)

    @registry.handles_many(Together, wait=0.01)
    async def together(commands: Sequence[Together]) -> None:
        left.meet(len(commands))

    @registry.handles_many(InRun, of="entity")
    async def in_run(commands: Sequence[InRun]) -> None:
        left.meet(len(commands))

    @registry.handles(Stateful)
    async def stateful(command: Stateful, crate: Crate) -> None:
        crate.count += 1
        left.meet()

    @registry.handles(Layered)
    async def layered(command: Layered) -> None:
        return None

    return registry
