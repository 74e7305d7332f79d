"""Waits of a worker itself for the outcome of a durable call: a second where no other needs what it holds, else the command is suspended soon."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import Command, DurableContext, EntityId, EntityPolicy, Limit
from command_bus.durable import run_tools
from command_bus.transport.ports.durable import SMALL_OUTCOME
from command_bus.transport.redis.keys import KeySpace
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Flow, Reserve, Shop

LIMITED = {"order": EntityPolicy(limits=(Limit(concurrency=1, scope="type"),))}


class Print(Command[str], entity="printer"):
    """Returns more than comes to its caller at once."""

    printer: EntityId


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


@pytest.fixture
def lingers_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers wait for longer than any test does."""
    monkeypatch.setattr(run_tools, "LONG_LINGER", 60.0)


@pytest.mark.parametrize(
    ("settings", "options", "runs"),
    [
        pytest.param({}, {}, 1, id="few wait"),
        pytest.param({"max_waiting": 0}, {}, 2, id="many wait"),
        pytest.param({"entities": LIMITED}, {}, 2, id="it has a place that others may wait for"),
        pytest.param({}, {"attempt_timeout": 10.0}, 2, id="its time is limited"),
    ],
)
async def test_a_call_that_ends_soon_costs_no_second_start(
    sandbox: Sandbox, shop: Shop, settings: dict[str, Any], options: dict[str, Any], runs: int
) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        return await context.call(Reserve(sku="s-1", seconds=0.3))

    async with sandbox.bus(**settings) as bus, bus.worker():
        assert await bus.call(Flow(order="o-1"), timeout=10, **options) == 1
    assert shop.count("run") == runs


@pytest.mark.usefixtures("lingers_long")
async def test_what_does_not_come_by_itself_is_not_late(sandbox: Sandbox, shop: Shop) -> None:
    """A signal wakes a command that is suspended; a worker that waited itself for the call beside it would not see it."""
    shop.gates["s-1"] = asyncio.Event()

    @shop.script
    async def order(context: DurableContext) -> Any:
        return await (await context.first(context.call(Reserve(sku="s-1")), context.signal("go", returns=int)))

    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        await shop.suspended()
        await bus.commands.signal(receipt.command_id, "go", 7)
        assert await receipt.result(timeout=10) == 7
        shop.gates["s-1"].set()
        await bus.wait_idle(10)


@pytest.mark.usefixtures("lingers_long")
async def test_a_large_outcome_of_another_shard_is_not_late(sandbox: Sandbox, shop: Shop) -> None:
    keys = KeySpace(sandbox.namespace, 4)
    printer = next(f"p-{n}" for n in range(100) if keys.shard_of(f"printer:p-{n}") != keys.shard_of("order:o-1"))

    @sandbox.registry.handles(Print)
    async def make(command: Print) -> str:
        await asyncio.sleep(0.1)
        return "x" * 2 * SMALL_OUTCOME

    @shop.script
    async def order(context: DurableContext) -> Any:
        return len(await context.call(Print(printer=printer)))

    async with sandbox.bus(shards=4) as bus, bus.worker():
        assert await bus.call(Flow(order="o-1"), timeout=10) == 2 * SMALL_OUTCOME


@pytest.mark.usefixtures("lingers_long")
async def test_a_worker_that_leaves_does_not_wait_itself(sandbox: Sandbox, shop: Shop) -> None:
    shop.gates["begun"] = asyncio.Event()

    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        await shop.gates["begun"].wait()
        return await context.call(Reserve(sku="s-1"))

    async with sandbox.bus() as bus, bus.worker() as worker:
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        while not shop.count("run"):
            await asyncio.sleep(0.01)
        worker.pause()
        shop.gates["begun"].set()
        await shop.suspended()
        worker.resume()
        assert await receipt.result(timeout=10) == 1
