"""Other code than the worker cancels a handler's task, at any moment: no command of its entity waits for a lease to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from command_bus import Command, CommandFailed, EntityId, RetryPolicy
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import side_of
from tests.conformance.put_service import until


class Once(Command[int], entity="line", delivery="at_most_once"):
    line: EntityId
    number: int


class Again(Command[int], entity="line"):
    line: EntityId


class Impatient(Command[None], entity="order", attempt_timeout=0.2, retry=RetryPolicy(attempts=1)):
    order: EntityId


def at_its_end(task: asyncio.Task[Any]) -> None:
    task.cancel()


def while_it_is_settled(task: asyncio.Task[Any]) -> None:
    asyncio.get_running_loop().call_soon(task.cancel)


@pytest.mark.parametrize("cancel", [at_its_end, while_it_is_settled])
async def test_a_task_that_is_cancelled_behind_its_handler_loses_no_follower(
    sandbox: Sandbox, cancel: Callable[[asyncio.Task[Any]], None]
) -> None:
    """The step that settles it starts the next command, whose task is gone: it is handed back untouched, and runs once."""
    ran: list[int] = []
    follows = asyncio.Event()

    @sandbox.registry.handles(Once)
    async def once(command: Once) -> int:
        ran.append(command.number)
        if command.number == 1:
            await follows.wait()
            task = asyncio.current_task()
            assert task is not None
            cancel(task)
        return command.number

    async with sandbox.bus(lease=20.0) as bus, bus.worker():
        calls = [asyncio.create_task(bus.call(Once(line="a", number=number), timeout=15)) for number in (1, 2)]
        await until(lambda: ran)
        await until(lambda: bus.entity("line", "a").depth())
        async with asyncio.timeout(10):
            while await bus.entity("line", "a").depth() < 2:
                await asyncio.sleep(0.01)
        began = time.monotonic()
        follows.set()
        assert await asyncio.gather(*calls) == [1, 2]
        assert time.monotonic() - began < 8
        assert ran == [1, 2]


async def test_a_task_that_is_cancelled_while_its_worker_stops_is_interrupted_at_once(sandbox: Sandbox) -> None:
    tasks: list[asyncio.Task[Any] | None] = []

    @sandbox.registry.handles(Again)
    async def again(command: Again) -> int:
        tasks.append(asyncio.current_task())
        if len(tasks) == 1:
            await asyncio.sleep(60)
        return len(tasks)

    async with sandbox.bus(lease=20.0, grace=15.0) as bus, bus.worker() as first:
        call = asyncio.create_task(bus.call(Again(line="a"), timeout=30))
        await until(lambda: tasks)
        async with bus.worker():
            stopping = asyncio.create_task(first.stop())
            await until(lambda: not side_of(first).consumer.reads)
            assert tasks[0] is not None
            began = time.monotonic()
            tasks[0].cancel()
            assert await call == 2
            await stopping
            assert time.monotonic() - began < 8


async def test_a_handler_past_its_timeout_does_not_wait_for_a_slot(sandbox: Sandbox) -> None:
    """It waits in a call; the only slot is taken by what it waits for."""
    may_end = asyncio.Event()

    @sandbox.registry.handles(Again)
    async def slow(command: Again) -> int:
        await may_end.wait()
        return 1

    async with sandbox.bus() as bus, bus.worker(concurrency=1):

        @sandbox.registry.handles(Impatient)
        async def impatient(command: Impatient) -> None:
            await bus.call(Again(line="a"), timeout=20)

        try:
            with pytest.raises(CommandFailed, match="longer than its attempt_timeout"):
                await bus.call(Impatient(order="o"), timeout=8)
        finally:
            may_end.set()
        await bus.wait_idle(10)
