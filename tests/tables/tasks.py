"""Python's ways to run several things, what a durable handler may run in them, and how its run ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from command_bus import BadStep, Command, DurableContext, EntityId, HandlerRegistry, RetryPolicy
from command_bus.transport.steps import WORKER_LOST

__all__ = ["ENDS", "OPERATIONS", "WAYS", "Cell", "Job", "registry_of"]

MOMENT = 0.1
ONCE = RetryPolicy(attempts=1)
VARIABLE: ContextVar[str] = ContextVar("variable", default="unset")


class Job(Command[str], entity="job", durable=True, retry=RetryPolicy(attempts=3, delay=0.01, jitter=0)):
    job: EntityId


class Effect(Command[str], entity="effect", retry=ONCE):
    job: EntityId


class Undo(Command[None], entity="effect", retry=ONCE):
    job: EntityId


class Sent(Command[None], entity="sent", retry=ONCE):
    job: EntityId


@dataclass(slots=True)
class Cell:
    """One command, and what happened in it.

    Attributes:
        way: How it runs what it runs.
        operation: What it runs.
        end: How its run ends.
        log: What happened, in its order.
        results: What each run got.
        tasks: In which its operation was awaited.
        runs: How often its handler has begun.
        is_deployed: Whether its first worker has gone; it may not have begun there.
    """

    way: str
    operation: str
    end: str
    log: list[str] = field(default_factory=list[str])
    results: list[Any] = field(default_factory=list[Any])
    tasks: set[Any] = field(default_factory=set[Any])
    runs: int = 0
    is_deployed: bool = False

    @property
    def name(self) -> str:
        return f"{self.way}.{self.operation}".replace(" ", "_")

    async def effect(self) -> str:
        """Do something that takes a while; the function of a step."""
        self.log.append("begun")
        try:
            await asyncio.sleep(2 * MOMENT)
        except asyncio.CancelledError:
            self.log.append("cut off")
            raise
        self.log.append("effect")
        return "effect"


# What is run. Each begins a moment later than its task, so that the handler may be over by then.


async def _step(cell: Cell, context: DurableContext) -> Any:
    return await context.step("work", cell.effect)


async def _call(cell: Cell, context: DurableContext) -> Any:
    return await context.call(Effect(job=cell.name), undo=Undo(job=cell.name))


async def _sleep(cell: Cell, context: DurableContext) -> Any:
    return await context.sleep(2 * MOMENT)


async def _signal(cell: Cell, context: DurableContext) -> Any:
    return await context.signal("given")


async def _first(cell: Cell, context: DurableContext) -> Any:
    answer = context.signal("given")
    return await context.first(context.sleep(2 * MOMENT), answer) is answer


async def _all(cell: Cell, context: DurableContext) -> Any:
    return await context.all(context.step("work", cell.effect), context.sleep(MOMENT))


async def _timeout(cell: Cell, context: DurableContext) -> Any:
    try:
        async with context.timeout(2 * MOMENT):
            await context.signal("never")
    except TimeoutError:
        return "late"


async def _compensate(cell: Cell, context: DurableContext) -> Any:
    context.compensate(Undo(job=cell.name))


async def _send(cell: Cell, context: DurableContext) -> Any:
    context.send(Sent(job=cell.name))


async def _dispatch(cell: Cell, context: DurableContext) -> Any:
    await context.dispatch(Sent(job=cell.name), command_id=f"sent-{cell.name}")


async def _progress(cell: Cell, context: DurableContext) -> Any:
    context.progress(0.5)


async def _log(cell: Cell, context: DurableContext) -> Any:
    context.log("half")


OPERATIONS: dict[str, Callable[[Cell, DurableContext], Awaitable[Any]]] = {
    "step": _step,
    "call": _call,
    "sleep": _sleep,
    "signal": _signal,
    "first": _first,
    "all": _all,
    "timeout": _timeout,
    "compensate": _compensate,
    "send": _send,
    "dispatch": _dispatch,
    "progress": _progress,
    "log": _log,
}
Operation = Callable[[], Any]

# How it is run.


async def direct(run: Operation) -> Any:
    return await run()


async def gather(run: Operation) -> Any:
    return (await asyncio.gather(run(), asyncio.sleep(0)))[0]


async def task_group(run: Operation) -> Any:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(run())
    return task.result()


async def left_behind(run: Operation) -> Any:
    asyncio.create_task(run())  # noqa: RUF006 - that is what is tested


async def left_in_flight(run: Operation) -> Any:
    asyncio.create_task(run())  # noqa: RUF006 - as above
    await asyncio.sleep(1.5 * MOMENT)


async def first_completed(run: Operation) -> Any:
    tasks = {asyncio.create_task(run()), asyncio.create_task(asyncio.sleep(1.5 * MOMENT))}
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def as_completed(run: Operation) -> Any:
    (only,) = asyncio.as_completed([run()])
    return await only


async def wait_for(run: Operation) -> Any:
    return await asyncio.wait_for(run(), 30)


async def wait_for_less(run: Operation) -> Any:
    try:
        return await asyncio.wait_for(run(), 1.5 * MOMENT)
    except TimeoutError:
        return "cut off"


async def timeout(run: Operation) -> Any:
    async with asyncio.timeout(30):
        return await run()


async def less_timeout(run: Operation) -> Any:
    try:
        async with asyncio.timeout(1.5 * MOMENT):
            return await run()
    except TimeoutError:
        return "cut off"


async def shield(run: Operation) -> Any:
    try:
        return await asyncio.wait_for(asyncio.shield(run()), 1.5 * MOMENT)
    except TimeoutError:
        return "cut off"


async def thread(run: Operation) -> Any:
    return await asyncio.to_thread(lambda: asyncio.run(run()))


async def generator(run: Operation) -> Any:
    async def results() -> AsyncIterator[Any]:
        yield await run()

    return await anext(results())


async def context_manager(run: Operation) -> Any:
    @contextlib.asynccontextmanager
    async def held() -> AsyncIterator[Any]:
        yield await run()

    async with held() as result:
        return result


async def variable(run: Operation) -> Any:
    VARIABLE.set("mine")
    result = await run()
    assert VARIABLE.get() == "mine"
    return result


async def group_with_ours(run: Operation) -> Any:
    async def wrong() -> None:
        raise BadStep("not as before")

    async with asyncio.TaskGroup() as group:
        group.create_task(run())
        await asyncio.sleep(1.5 * MOMENT)
        group.create_task(wrong())


WAYS: dict[str, Callable[[Operation], Awaitable[Any]]] = {
    "direct": direct,
    "gather": gather,
    "TaskGroup": task_group,
    "left behind": left_behind,
    "left in flight": left_in_flight,
    "FIRST_COMPLETED": first_completed,
    "as_completed": as_completed,
    "wait_for": wait_for,
    "wait_for less": wait_for_less,
    "asyncio.timeout": timeout,
    "asyncio.timeout less": less_timeout,
    "shield": shield,
    "to_thread": thread,
    "async generator": generator,
    "context manager": context_manager,
    "context variable": variable,
    "group with ours": group_with_ours,
}

# How the run ends, once what it runs is over or left.


async def _well(cell: Cell, context: DurableContext) -> None:
    """It returns."""


async def _fails(cell: Cell, context: DurableContext) -> None:
    cell.log.append("fails")
    raise ValueError("no luck")


async def _waits(cell: Cell, context: DurableContext) -> None:
    await context.signal("go")


async def _is_lost(cell: Cell, context: DurableContext) -> None:
    if cell.runs == 1:
        run: Any = context._operations  # as the keeper of leases would
        run._run.lease.cancel(WORKER_LOST)
        await asyncio.sleep(60)


async def _is_deployed(cell: Cell, context: DurableContext) -> None:
    if not cell.is_deployed:
        await asyncio.sleep(60)


ENDS: dict[str, Callable[[Cell, DurableContext], Awaitable[None]]] = {
    "returns": _well,
    "fails": _fails,
    "is cancelled": _waits,
    "is suspended": _waits,
    "loses its lease": _is_lost,
    "is deployed away": _is_deployed,
}


def registry_of(cells: dict[str, Cell]) -> HandlerRegistry:
    """Return handlers that run the cell that a command names."""
    registry = HandlerRegistry()

    @registry.handles(Job)
    async def job(command: Job, context: DurableContext) -> str:
        cell = cells[str(command.job)]
        cell.runs += 1

        async def run() -> Any:
            cell.tasks.add(asyncio.current_task())
            await asyncio.sleep(MOMENT)
            return await OPERATIONS[cell.operation](cell, context)

        result = await WAYS[cell.way](run)
        cell.results.append(result)
        await ENDS[cell.end](cell, context)
        return str(result)

    @registry.handles(Effect)
    async def effect(command: Effect) -> str:
        return await cells[str(command.job)].effect()

    @registry.handles(Undo)
    async def undo(command: Undo) -> None:
        cells[str(command.job)].log.append("undo")

    @registry.handles(Sent)
    async def sent(command: Sent) -> None:
        cells[str(command.job)].log.append("sent")

    return registry
