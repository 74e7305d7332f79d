"""Steps whose functions are no coroutines: they run in the worker's threads, and none overlaps itself, since a thread cannot be stopped."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from command_bus import Command, CommandBus, CommandFailed, DurableContext, EntityId, HandlerRegistry, RetryPolicy
from command_bus.messages.durable import Suspended
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Flow, Shop
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


class Stuck:
    """A worker whose threads hang, and another one that is idle."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.gate, self.hanging, self.log = threading.Event(), 0, list[Any]()
        self.registry = HandlerRegistry()
        self._sandbox = sandbox

        @self.registry.handles(Plain)
        def hang(command: Plain) -> int:
            self.hanging += 1
            return self.gate.wait(60)

        @self.registry.handles(Flow)
        async def busy(command: Flow, context: DurableContext) -> Any:
            return await self._flow("stuck", command, context)

        @sandbox.registry.handles(Flow)
        async def idle(command: Flow, context: DurableContext) -> Any:
            return await self._flow("idle", command, context)

    async def _flow(self, worker: str, command: Flow, context: DurableContext) -> Any:
        self.log.append((worker, str(command.script), context.attempt))
        await context.step("first", self._noted, "first")
        try:
            return await context.step("charge", lambda: worker)
        except BaseException as error:
            self.log.append((type(error), context.suspending))
            raise

    async def _noted(self, text: str) -> None:
        self.log.append(text)

    @asynccontextmanager
    async def worker(self, bus: CommandBus) -> AsyncIterator[None]:
        """Run the worker whose threads hang."""
        async with bus.worker(registry=self.registry):
            try:
                await bus.dispatch(Plain(key="a"))
                await until(lambda: self.hanging)
                yield
            finally:
                self.gate.set()


@pytest.mark.promise("Threads hang")
async def test_a_step_for_which_no_thread_comes_free_goes_to_another_worker(sandbox: Sandbox) -> None:
    """Its handler sees what a suspension looks like. What it has stored stays, it takes no attempt, and its line waits."""
    stuck = Stuck(sandbox)
    async with sandbox.bus(threads=1) as bus, stuck.worker(bus):
        calls = [asyncio.create_task(bus.call(Flow(order="o-1", script=script), timeout=30)) for script in ("1", "2")]
        await until(lambda: (Suspended, True) in stuck.log)
        async with bus.worker(registry=sandbox.registry):
            assert await asyncio.gather(*calls) == ["idle", "idle"]
        assert (await bus.stats()).retried == 0
    runs = [each for each in stuck.log if each[0] in ("stuck", "idle")]
    assert {attempt for _, _, attempt in runs} == {1}
    assert [script for _, script, _ in runs] == sorted(script for _, script, _ in runs)
    assert stuck.log.count("first") == 2
    assert {each for each in stuck.log if isinstance(each[0], type)} == {(Suspended, True)}


async def test_a_step_waits_for_a_thread_at_most_for_its_timeout(sandbox: Sandbox) -> None:
    gate, errors = threading.Event(), list[str]()

    @sandbox.registry.handles(Plain)
    def hang(command: Plain) -> int:
        return gate.wait(60)

    @sandbox.registry.handles(Timed)
    async def timed(command: Timed, context: DurableContext) -> Any:
        return await context.step("charge", lambda: errors.append("ran"))

    async with sandbox.bus(threads=1) as bus, bus.worker():
        try:
            await bus.dispatch(Plain(key="a"))
            with pytest.raises(CommandFailed, match="attempt_timeout"):
                await bus.call(Timed(key="a"), timeout=20)
        finally:
            gate.set()
    assert errors == []


async def test_steps_beside_one_another_wait_for_the_threads_that_their_run_takes(sandbox: Sandbox, shop: Shop) -> None:
    """Their command would be given back for nothing: it is held while a thread runs one of them."""

    def work(number: int) -> int:
        shop.log.append(number)
        time.sleep(1.3)
        return number

    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        return await asyncio.gather(*(context.step("work", work, n, key=str(n)) for n in range(3)))

    async with sandbox.bus(threads=1) as bus, bus.worker():
        assert await bus.call(Flow(order="o-1"), timeout=20) == [0, 1, 2]
    assert shop.log == ["run", 0, 1, 2]


async def test_a_handler_that_ends_leaves_no_step_behind_that_waits_for_a_thread(sandbox: Sandbox, shop: Shop) -> None:
    """Two wait for the step then: its task, and the end of the run. The worker does nothing else while one asks without an end."""
    gate, hanging, left = threading.Event(), list[int](), list[asyncio.Task[None]]()

    @sandbox.registry.handles(Plain)
    def hang(command: Plain) -> int:
        hanging.append(1)
        return gate.wait(60)

    @shop.script
    async def order(context: DurableContext) -> Any:
        left.append(asyncio.create_task(context.step("charge", lambda: shop.log.append("charged"))))
        await asyncio.sleep(0.05)
        shop.log.append(left[0].done())
        return "sold"

    async with sandbox.bus(threads=1) as bus, bus.worker():
        try:
            await bus.dispatch(Plain(key="a"))
            await until(lambda: hanging)
            assert await bus.call(Flow(order="o-1"), timeout=10) == "sold"
            await asyncio.wait(left, timeout=0.5)
            assert left[0].done()
        finally:
            gate.set()
    assert shop.log == [False]
