"""The first start of a durable command reads no side record: no run of it can have stored anything."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import DurableContext
from command_bus.transport.redis.durable.side_records import RecordReads
from command_bus.transport.redis.mailbox_record import is_first_start
from command_bus.transport.steps import NO_SETTLEMENT, Done, GiveBack, Started
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Flow, Reserve, Shop
from tests.conformance.harness import ManualWorker, TransportHarness

BOX = "box:a"


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the keys of side records that workers read."""
    keys: list[str] = []
    read = RecordReads.read

    def noted(self: RecordReads, key: str) -> Any:
        keys.append(key)
        return read(self, key)

    monkeypatch.setattr(RecordReads, "read", noted)
    return keys


async def seven() -> int:
    return 7


@pytest.mark.parametrize("ahead", [0, 3], ids=["alone", "behind others"])
async def test_only_a_later_start_reads(sandbox: Sandbox, shop: Shop, reads: list[str], ahead: int) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        found = await context.step("seven", seven) + await context.call(Reserve(sku="s-1"))
        if shop.count("run") == 1:
            shop.log.append(len(reads))
            raise ValueError("again")
        return found

    async def nothing(context: DurableContext) -> None:
        del context

    shop.scripts["nothing"] = nothing
    async with sandbox.bus() as bus:
        for _ in range(ahead):
            await bus.dispatch(Flow(order="o-1", script="nothing"))
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        async with bus.worker():
            assert await receipt.result(timeout=10) == 8
    assert shop.log == ["run", ("reserve", "s-1"), 0, "run"]
    assert len(reads) == 1


async def test_signals_that_came_before_the_first_start_are_read_once(sandbox: Sandbox, shop: Shop, reads: list[str]) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append("run")
        first = await context.signal("first", timeout=0, returns=int)
        second, third = await context.all(context.signal("second", returns=int), context.signal("third", returns=int))
        return [first, second, third]

    async with sandbox.bus() as bus:
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        for number, name in enumerate(("first", "second", "third")):
            assert await bus.commands.signal(receipt.command_id, name, number)
        async with bus.worker():
            assert await receipt.result(timeout=10) == [0, 1, 2]
    assert shop.log == ["run"]
    assert len(reads) == 1


async def test_two_tasks_that_ask_for_signals_at_once_both_get_what_came_early(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        return await asyncio.gather(
            context.signal("left", timeout=0, returns=int), context.signal("right", timeout=0, returns=int)
        )

    async with sandbox.bus() as bus:
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        for number, name in enumerate(("left", "right")):
            assert await bus.commands.signal(receipt.command_id, name, number)
        async with bus.worker():
            assert await receipt.result(timeout=10) == [0, 1]


async def test_a_start_says_whether_it_is_the_first(harness: TransportHarness, worker: ManualWorker) -> None:
    """Also where a command is given back uncounted, and started again within the same millisecond."""
    await harness.put(BOX, "c1", "c2")
    lease, started = await worker.start()
    assert started.is_first
    for _ in range(20):
        await worker.do(lease, GiveBack(counts=False))
        lease, started = await worker.start()
        assert (started.attempt, started.is_first) == (1, False)
    following = await worker.do(lease, Done(NO_SETTLEMENT))
    assert isinstance(following, Started)
    assert following.is_first


@pytest.mark.parametrize(
    ("attempt", "first", "parts", "expected"),
    [
        ("1", "1000", [], True),
        ("1", "1000", ["c=tenant,,", "place=1"], True),
        ("2", "1000", [], False),
        ("1", "999", [], False),
        ("1", "-1000", [], False),
        ("1", "1000", ["c=,,", "started=999-0"], False),
    ],
)
def test_a_first_start_is_told_by_its_answer(attempt: str, first: str, parts: list[str], *, expected: bool) -> None:
    assert is_first_start(attempt, first, "1000", parts) is expected
