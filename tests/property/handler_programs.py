"""Small programs that a handler runs, and what each sees of its task at every step.

Nothing in them depends on the exact turn of the event loop in which something happens: what goes on by itself does so in the next turn, or only
after very many.
"""

from __future__ import annotations

import asyncio
import contextlib
import decimal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import ContextVar, Token
from typing import Any

import anyio
from hypothesis import strategies as st

from command_bus import Reject
from tests.unit.short_way import turns

__all__ = ["Program", "Runner", "programs"]

Program = tuple[tuple[Any, ...], ...]
LONG = 40
"""Turns that nothing outlasts which happens by itself in the next turn."""
VARIABLE: ContextVar[int] = ContextVar("variable", default=0)
ERRORS = (ValueError, Reject, asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, TimeoutError)


class Nothing:
    """An awaitable that lets a turn pass, and is no coroutine."""

    def __await__(self) -> Any:
        yield


class Runner:
    """Runs one program, once.

    Attributes:
        saw: What it saw.
        kept: Tasks that somebody has kept, and may cancel when it is over.
    """

    def __init__(self) -> None:
        self.saw: list[Any] = []
        self.kept: list[asyncio.Task[Any]] = []
        self._tokens: list[Token[int]] = []
        self._task_id = 0

    async def run(self, program: Program) -> int:
        self._task_id = id(_task())
        self._look("begin")
        try:
            await self._all(program)
            return VARIABLE.get()
        finally:
            self._look("end")

    def _look(self, what: str) -> None:
        task = _task()
        name = task.get_name()
        self.saw.append(
            (
                what,
                name if name.startswith(("command_bus", "named")) else "",
                id(task) == self._task_id == anyio.get_current_task().id,
                task in asyncio.all_tasks(),
                task.done(),
                task.cancelling(),
                type(sys.exception()),
                VARIABLE.get(),
                decimal.getcontext().prec,
            )
        )

    async def _all(self, program: Program) -> None:
        for part, *arguments in program:
            await part(self, *arguments)
            self._look(part.__name__)

    # The parts of programs.

    async def pause(self) -> None:
        await asyncio.sleep(0)

    async def pass_a_turn(self) -> None:
        await Nothing()

    async def wait(self) -> None:
        with _later() as future:
            await future

    async def share(self) -> None:
        """Wait for what another task waits for as well."""
        with _later() as future:
            other = asyncio.create_task(_waiting(future))
            await future
            await other

    async def wait_for_child(self) -> None:
        await asyncio.create_task(turns(LONG))

    async def fail(self, kind: type[BaseException]) -> None:
        raise kind("raised")

    async def cancel(self) -> None:
        _task().cancel("cancelled")

    async def uncancel(self) -> None:
        self.saw.append(_task().uncancel())

    async def cancel_soon(self) -> None:
        asyncio.get_running_loop().call_soon(_task().cancel, "soon")
        await turns(LONG)

    async def set(self) -> None:
        self._tokens.append(VARIABLE.set(VARIABLE.get() + 1))

    async def reset(self) -> None:
        if self._tokens:
            VARIABLE.reset(self._tokens.pop())

    async def round(self) -> None:
        decimal.getcontext().prec += 1

    async def rename(self) -> None:
        _task().set_name(f"named {len(self.saw)}")

    async def keep(self) -> None:
        self.kept.append(_task())

    async def leave_a_callback(self) -> None:
        _task().add_done_callback(lambda _: None)

    async def leave_a_task(self) -> None:
        self.kept.append(asyncio.create_task(turns(LONG)))

    async def leave_a_generator(self) -> None:
        async for _ in _numbers():
            break

    # Those with others in them.

    async def catch(self, program: Program) -> None:
        try:
            await self._all(program)
        except BaseException as error:
            self.saw.append((type(error), type(error.__context__), type(error.__cause__)))
            self.saw.append(error.args if error.args in (("raised",), ("cancelled",), ("soon",)) else ())
            self._look("handling")

    async def wait_at_the_end(self, program: Program) -> None:
        try:
            await self._all(program)
        finally:
            await asyncio.sleep(0)
            self._look("finally")

    async def time_out(self, program: Program, seconds: float) -> None:
        scope = asyncio.timeout(seconds)
        try:
            async with scope:
                await self._all(program)
                await turns(LONG)
        finally:
            self.saw.append(scope.expired())

    async def move_on(self, program: Program) -> None:
        with anyio.move_on_after(0) as scope:
            await self._all(program)
            await turns(LONG)
        self.saw.append((scope.cancel_called, scope.cancelled_caught))

    async def group(self, program: Program) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(turns(LONG))
            await self._all(program)

    async def group_of_anyio(self, program: Program) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(turns, LONG)
            await self._all(program)

    async def shield(self, program: Program) -> None:
        inner = Runner()
        await asyncio.shield(inner._apart(program))
        self.saw.append(inner.saw)

    async def wait_for(self, program: Program) -> None:
        inner = Runner()
        await asyncio.wait_for(inner._apart(program), 5)
        self.saw.append(inner.saw)

    async def iterate(self, program: Program) -> None:
        async for _ in _numbers():
            await self._all(program)

    async def _apart(self, program: Program) -> None:
        with contextlib.suppress(BaseException):
            await self.run(program)


def _task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


@contextlib.contextmanager
def _later() -> Any:
    """Yield a future that has a result soon, but not in the next turns."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    handle = loop.call_later(0.002, lambda: None if future.done() else future.set_result(None))
    try:
        yield future
    finally:
        handle.cancel()
        if not future.done():
            future.set_result(None)


async def _waiting(future: asyncio.Future[None]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await future


async def _numbers() -> AsyncIterator[int]:
    async with asyncio.timeout(60):
        yield 1
        yield 2


Part = Callable[..., Coroutine[Any, Any, None]]
SIMPLE: tuple[Part, ...] = (
    Runner.pause,
    Runner.pass_a_turn,
    Runner.wait,
    Runner.share,
    Runner.wait_for_child,
    Runner.cancel,
    Runner.uncancel,
    Runner.set,
    Runner.reset,
    Runner.round,
    Runner.rename,
    Runner.keep,
    Runner.leave_a_callback,
    Runner.leave_a_task,
    Runner.leave_a_generator,
)
AROUND: tuple[Part, ...] = (
    Runner.catch,
    Runner.wait_at_the_end,
    Runner.group,
    Runner.group_of_anyio,
    Runner.shield,
    Runner.wait_for,
    Runner.iterate,
)
_fail = st.tuples(st.just(Runner.fail), st.sampled_from(ERRORS))


def _programs(soon: Part) -> st.SearchStrategy[Program]:
    """Return programs with one kind of what happens in the next turn: of two kinds at a time, which comes first is left open."""
    simple = st.one_of(
        _fail, st.tuples(st.sampled_from(SIMPLE)), *([st.tuples(st.just(soon))] if soon is Runner.cancel_soon else [])
    )

    def around(inner: st.SearchStrategy[Program]) -> st.SearchStrategy[Program]:
        parts = [simple, st.tuples(st.sampled_from(AROUND), inner)]
        if soon is Runner.time_out:
            parts.append(st.tuples(st.just(soon), inner, st.sampled_from([-1, 0])))
        if soon is Runner.move_on:
            parts.append(st.tuples(st.just(soon), inner))
        return st.lists(st.one_of(*parts), min_size=1, max_size=4).map(tuple)

    return st.recursive(st.lists(simple, max_size=4).map(tuple), around, max_leaves=8)


programs = st.one_of(_programs(Runner.cancel_soon), _programs(Runner.time_out), _programs(Runner.move_on))
