"""Steps whose functions are no coroutines: they run in the worker's threads, and none overlaps itself, since a thread cannot be stopped."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from command_bus import Command, CommandFailed, DurableContext, EntityId, RetryPolicy
from tests.conformance.conftest import Sandbox
from tests.conformance.durable_shop import Flow, Shop
from tests.conformance.put_service import until

SLOW = 0.5


class Timed(Command[Any], entity="timed", durable=True, attempt_timeout=0.1, retry=RetryPolicy(attempts=3, delay=0.01)):
    key: EntityId


class Plain(Command[int], entity="plain"):
    key: EntityId


class Work:
    """The function of a step that takes its time.

    Attributes:
        runs: How often it began.
        most: How many ran at a time.
    """

    def __init__(self) -> None:
        self.runs = self.most = self._now = 0
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            self.runs += 1
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(SLOW)
        with self._lock:
            self._now -= 1
        return self.runs


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


async def test_a_run_beyond_its_timeout_waits_for_the_thread_and_keeps_what_it_did(sandbox: Sandbox) -> None:
    work, attempts = Work(), []

    @sandbox.registry.handles(Timed)
    async def timed(command: Timed, context: DurableContext) -> Any:
        attempts.append(context.attempt)
        return await context.step("charge", work)

    async with sandbox.bus() as bus, bus.worker():
        assert await bus.call(Timed(key="a"), timeout=20) == 1
    assert (len(attempts), work.runs) == (2, 1)


async def test_a_step_that_fails_beyond_the_timeout_is_tried_again_behind_itself(sandbox: Sandbox) -> None:
    work = Work()

    def fail() -> int:
        work()
        raise ValueError("no cover")

    @sandbox.registry.handles(Timed)
    async def timed(command: Timed, context: DurableContext) -> Any:
        return await context.step("charge", fail)

    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed, match="attempt_timeout"):
            await bus.call(Timed(key="a"), timeout=20)
    assert (work.runs, work.most) == (3, 1)


async def test_a_thread_that_the_handler_leaves_behind_is_waited_for(sandbox: Sandbox, shop: Shop) -> None:
    work = Work()

    @shop.script
    async def order(context: DurableContext) -> Any:
        step = asyncio.create_task(context.step("charge", work))
        await until(lambda: work.runs)
        if not shop.count("failed"):
            shop.log.append("failed")
            raise ValueError("the light went out")
        return await step

    async with sandbox.bus() as bus, bus.worker():
        assert await bus.call(Flow(order="o-1"), timeout=20) == work.runs
    assert work.most == 1


async def test_steps_take_the_threads_of_the_worker(sandbox: Sandbox, shop: Shop) -> None:
    work = Work()

    @shop.script
    async def order(context: DurableContext) -> Any:
        return await context.step("charge", work)

    async with sandbox.bus(threads=1) as bus, bus.worker():
        await asyncio.gather(*(bus.call(Flow(order=f"o-{n}"), timeout=20) for n in range(2)))
    assert (work.runs, work.most) == (2, 1)


async def test_a_step_lends_its_thread_while_it_waits_for_the_bus(sandbox: Sandbox, shop: Shop) -> None:
    @sandbox.registry.handles(Plain)
    def plain(command: Plain) -> int:
        return 1

    @shop.script
    async def order(context: DurableContext) -> Any:
        return await context.step("charge", lambda: context.blocking.call(Plain(key="a"), timeout=10))

    async with sandbox.bus(threads=1) as bus, bus.worker():
        assert await bus.call(Flow(order="o-1"), timeout=20) == 1


async def test_a_worker_that_stops_does_not_give_back_what_a_thread_runs(sandbox: Sandbox, shop: Shop) -> None:
    begun, gate = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def wait() -> bool:
        loop.call_soon_threadsafe(begun.set)
        return gate.wait(30)

    @shop.script
    async def order(context: DurableContext) -> Any:
        return await context.step("charge", wait)

    async with sandbox.bus(grace=0.1) as bus:
        try:
            async with bus.worker():
                await bus.dispatch(Flow(order="o-1"), command_id="o-1")
                await asyncio.wait_for(begun.wait(), 10)
            assert (await bus.commands.status("o-1")).state == "running"
        finally:
            gate.set()
