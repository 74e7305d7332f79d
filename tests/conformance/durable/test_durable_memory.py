"""The memory of a durable run is freed when the run is over, without the garbage collector: its command, its results, its task."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from command_bus import CommandBus, CommandFailed, CommandRejected, DurableContext, RetryPolicy
from command_bus.durable.run import DurableRun
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Flow, Reserve, Shop

_RUNS = 3


@pytest.fixture
def others() -> Iterator[weakref.WeakSet[DurableRun]]:
    """Return the runs that other tests have left; the garbage collector rests."""
    gc.collect()
    gc.disable()
    yield weakref.WeakSet(runs())
    gc.enable()


def runs() -> list[DurableRun]:
    return [each for each in gc.get_objects() if isinstance(each, DurableRun)]


async def seven() -> int:
    return 7


def raise_error() -> int:
    raise ValueError("no thread for that")


async def step_and_call(context: DurableContext) -> Any:
    await context.step("seven", seven)
    return await context.call(Reserve(sku="s-1"))


async def wait_for_a_signal(context: DurableContext) -> Any:
    async with context.timeout(60):
        return await context.signal("paid", returns=int)


async def miss_a_signal(context: DurableContext) -> Any:
    with pytest.raises(TimeoutError):
        await context.signal("paid", timeout=0.01, returns=int)


async def call_in_vain(context: DurableContext) -> Any:
    with pytest.raises(CommandRejected):
        await context.call(Reserve(sku="s-1", end="reject"))


async def fail_in_a_thread(context: DurableContext) -> Any:
    with pytest.raises(ValueError, match="no thread"):
        await context.step("raise", raise_error, retry=RetryPolicy(attempts=2, delay=0.01))
    with pytest.raises(ValueError, match="no thread"):
        await context.step("again", raise_error)


async def start_what_outlives_it(context: DurableContext) -> Any:
    async def start() -> None:
        asyncio.get_running_loop().call_later(3600, print)  # a connection that is kept has a copy of this context, too

    await context.step("start", start)


@pytest.mark.parametrize(
    "handler", [step_and_call, wait_for_a_signal, miss_a_signal, call_in_vain, fail_in_a_thread, start_what_outlives_it]
)
async def test_a_run_that_is_over_is_freed(sandbox: Sandbox, others: weakref.WeakSet[DurableRun], handler: Any) -> None:
    Shop(sandbox).scripts["main"] = handler
    async with sandbox.bus() as bus, bus.worker():
        receipts = [await bus.dispatch(Flow(order=f"o-{number}"), keep_result=True) for number in range(_RUNS)]
        if handler is wait_for_a_signal:
            await until_suspended(bus)
            for receipt in receipts:
                await bus.commands.signal(receipt.command_id, "paid", 3)
        for receipt in receipts:
            await receipt.result(timeout=10)
        await bus.wait_idle(timeout=10)
        async with asyncio.timeout(5):  # that of a suspended run has a second for its last words
            while any(each not in others for each in runs()):
                await asyncio.sleep(0.1)


async def test_the_error_of_a_run_is_freed(sandbox: Sandbox, others: weakref.WeakSet[DurableRun]) -> None:
    class Fault(Exception):
        pass

    left: list[weakref.ref[Fault]] = []

    async def fail(context: DurableContext) -> Any:
        fault = Fault()
        left.append(weakref.ref(fault))
        try:
            raise fault
        finally:
            del fault

    Shop(sandbox).scripts["main"] = fail
    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed):
            await bus.call(Flow(order="o-1"), timeout=10)
        await bus.wait_idle(timeout=10)
        async with asyncio.timeout(5):
            while any(each() is not None for each in left):
                await asyncio.sleep(0.02)


async def until_suspended(bus: CommandBus) -> None:
    async with asyncio.timeout(10):
        while (await bus.stats()).suspended < _RUNS:
            await asyncio.sleep(0.02)
