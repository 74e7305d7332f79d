"""A receipt gives the result of its command, if it was dispatched with `keep_result=True`."""

from __future__ import annotations

import pickle

import pytest

from command_bus import (
    Command,
    CommandRejected,
    CommandTimeout,
    EntityId,
    Envelope,
    HandlerRegistry,
    Receipt,
    Reject,
    ResultNotKept,
    SyncCommandBus,
    SyncReceipt,
    Unique,
    UnknownCommand,
)
from tests.conformance.conftest import Sandbox

pytestmark = pytest.mark.server


class Weigh(Command[float], entity="scale"):
    scale: EntityId
    grams: int


class Tick(Command[int]):
    """Without an entity."""


@pytest.fixture
def registry() -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handles(Weigh)
    async def weigh(command: Weigh) -> float:
        if command.grams < 0:
            raise Reject("nothing weighs less than nothing", code="negative")
        return command.grams / 1000

    @registry.handles(Tick)
    async def tick(command: Tick) -> int:
        return 1

    return registry


@pytest.mark.promise("Results are kept")
async def test_a_receipt_gives_the_result_typed(sandbox: Sandbox, registry: HandlerRegistry) -> None:
    async with sandbox.bus(registry=registry) as bus:
        receipt = await bus.dispatch(Weigh(scale="a", grams=1500), keep_result=True)
        assert (receipt.status, tuple(receipt)) == ("accepted", (receipt.command_id, "accepted", None))
        refused = await bus.dispatch(Weigh(scale="a", grams=-1), keep_result=True)
        raw = await bus.dispatch_raw("scale", "a", "Weigh", {"scale": "a", "grams": 500}, keep_result=True)
        scoped = await bus.entity("scale", "a").dispatch(Weigh(scale="a", grams=250), keep_result=True)
        free = await bus.dispatch(Tick(), keep_result=True)
        with pytest.raises(CommandTimeout):
            await receipt.result(timeout=0.05)
        plain = await bus.dispatch(Weigh(scale="a", grams=3), unique=Unique("k"))
        folded = await bus.dispatch(Weigh(scale="a", grams=4), unique=Unique("k"))
        found = [await bus.commands.status(each) for each in (receipt, refused, plain, folded, pickle.loads(pickle.dumps(free)))]
        assert [(each.command_id, each.position) for each in found] == [
            (receipt.command_id, 1),
            (refused.command_id, 2),
            (plain.command_id, 5),
            (plain.command_id, 5),
            (free.command_id, 1),
        ]
        async with bus.worker():
            assert await receipt.result(timeout=20) == 1.5
            assert await receipt.result() == 1.5  # again, as often as one likes
            assert (await bus.commands.status(receipt)).outcome == "completed"
            with pytest.raises(CommandRejected, match="less than nothing"):
                await refused.result(timeout=20)
            assert [await raw.result(timeout=20), await scoped.result(timeout=20)] == [0.5, 0.25]
            assert await free.result(timeout=20) == 1


async def test_a_batch_keeps_what_its_envelopes_say(sandbox: Sandbox, registry: HandlerRegistry) -> None:
    async with sandbox.bus(registry=registry) as bus, bus.worker():
        kept, plain = (
            await bus.dispatch_batch([Envelope(Weigh(scale="a", grams=1), keep_result=True), Weigh(scale="a", grams=2)])
        ).outcomes
        assert await bus.result(kept.command_id, Weigh, timeout=20) == 0.001
        await bus.wait_idle(20)
        with pytest.raises(UnknownCommand):
            await bus.result(plain.command_id, Weigh)


async def test_nothing_is_kept_unless_it_is_asked_for(sandbox: Sandbox, registry: HandlerRegistry) -> None:
    async with sandbox.bus(registry=registry) as bus, bus.worker():
        for options in ({}, {"delay": 0.01}, {"command_id": "w-1"}):
            receipt = await bus.dispatch(Weigh(scale="a", grams=1), **options)  # type: ignore[arg-type]
            assert type(receipt) is Receipt
            with pytest.raises(ResultNotKept, match="keep_result=True"):
                await receipt.result(timeout=5)
        assert await bus.result("w-1", Weigh, timeout=20) == 0.001


async def test_with_an_id_a_repeat_has_the_same_result(sandbox: Sandbox, registry: HandlerRegistry) -> None:
    async with sandbox.bus(registry=registry) as bus, bus.worker():
        receipts = [await bus.dispatch(Weigh(scale="a", grams=7), command_id="w-1", keep_result=True) for _ in range(2)]
        assert [receipt.status for receipt in receipts] == ["accepted", "duplicate"]
        assert [await receipt.result(timeout=20) for receipt in receipts] == [0.007, 0.007]


async def test_a_copy_for_another_process_is_a_plain_receipt(sandbox: Sandbox, registry: HandlerRegistry) -> None:
    async with sandbox.bus(registry=registry) as bus:
        receipt = await bus.dispatch(Weigh(scale="a", grams=7), keep_result=True)
        copy = pickle.loads(pickle.dumps(receipt))
        assert (copy, type(copy)) == (receipt, Receipt)
        with pytest.raises(ResultNotKept, match=r"bus\.result"):
            await copy.result()


async def test_a_blocking_receipt_waits(sandbox: Sandbox, registry: HandlerRegistry) -> None:
    if sandbox.url is None:
        pytest.skip("another loop needs a server")
    import asyncio

    def work() -> list[float]:
        with SyncCommandBus(sandbox.url, namespace=sandbox.namespace) as blocking:
            kept = blocking.dispatch(Weigh(scale="a", grams=1500), keep_result=True)
            raw = blocking.dispatch_raw("scale", "a", "Weigh", {"scale": "a", "grams": 500}, keep_result=True)
            scoped = blocking.entity("scale", "a").dispatch(Weigh(scale="a", grams=250), keep_result=True)
            plain = blocking.dispatch(Weigh(scale="a", grams=1))
            with pytest.raises(ResultNotKept, match="keep_result=True"):
                plain.result()
            assert type(pickle.loads(pickle.dumps(kept))) is SyncReceipt
            return [kept.result(timeout=20), raw.result(timeout=20), scoped.result()]

    async with sandbox.bus(registry=registry) as bus, bus.worker():
        assert await asyncio.to_thread(work) == [1.5, 0.5, 0.25]
