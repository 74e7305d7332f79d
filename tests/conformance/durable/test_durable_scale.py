"""Durable commands with much of something: of what they wait for, and of what comes back to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from command_bus import BadStep, BusSettings, Command, CommandRejected, DurableContext, EntityId, Reject
from command_bus.clock import mono
from command_bus.durable import names as record_size
from command_bus.serialization.limits import reading_limits
from command_bus.transport.redis.durable.side_records import RedisSideRecords
from command_bus.transport.steps import Lease, Released, Suspend
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Flow, Reserve, Shop
from tests.conformance.harness import ManualWorker, TransportHarness
from tests.conformance.put_service import until

BOX = "box:a"


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


async def side(harness: TransportHarness) -> dict[bytes, bytes]:
    found: Any = await harness.client.hgetall(harness.shard.side("c1"))  # type: ignore[misc]
    return dict(found)


@pytest.mark.parametrize("count", [1_000, 1_001, 10_000])
async def test_it_is_suspended_for_as_many_fields_as_it_may_store(
    harness: TransportHarness, worker: ManualWorker, count: int
) -> None:
    await harness.put(BOX, "c1")
    lease, started = await worker.start()
    awaited = tuple(f"o:call#{number}" for number in range(count))
    await harness.client.hset(harness.shard.side("c1"), mapping={"m": started.message, awaited[0]: b"x", awaited[-1]: b"y"})  # type: ignore[misc]
    assert await worker.do(lease, Suspend("c1", awaited, count, None)) == Released("wait")
    record = await harness.record(BOX)
    assert record is not None
    assert record.state == "U"
    found = await side(harness)
    fence, left = found[b"w"].split(b"|")
    assert int(left) == count - 2
    assert {name for name, value in found.items() if name.startswith(b"a:") and value == fence} == {
        f"a:{each}".encode() for each in awaited[1:-1]
    }


async def test_what_stays_with_its_worker_is_looked_at_as_one(
    sandbox: Sandbox, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many waits beside each other one looks for all, and reads only what they wait for."""
    looks: list[tuple[float, set[str]]] = []
    real = RedisSideRecords.fields

    async def fields(self: RedisSideRecords, lease: Lease, command_id: str, names: Sequence[str]) -> Mapping[str, bytes]:
        looks.append((mono(), set(names)))
        return await real(self, lease, command_id, names)

    monkeypatch.setattr(RedisSideRecords, "fields", fields)

    @shop.script
    async def order(context: DurableContext) -> Any:
        calls = [context.call(Reserve(sku=f"s-{number}")) for number in range(50)]
        return sum(await asyncio.gather(*calls, context.signal("more", returns=int)))

    async with sandbox.bus() as bus:
        await bus.entities.of("stock").pause("stocktaking")
        async with bus.worker():
            receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
            await until(lambda: len(looks) >= 5)
            await bus.commands.signal(receipt.command_id, "more", 7)
            await bus.entities.of("stock").resume()
            assert await receipt.result(timeout=20) == 57
    assert looks[4][0] - looks[0][0] > 0.8, "the pauses between looks grow to a second"
    assert {len(names) for _, names in looks[2:5]} == {52}, "each looks for 50 outcomes, a signal and a wish"


class Report(Command[bytes], entity="report"):
    """Returns so many bytes."""

    key: EntityId
    size: int


class Revoke(Command[bytes], entity="report"):
    key: EntityId


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("how", ["all", "gather", "suspended"])
async def test_136_outcomes_beyond_what_it_may_store_are_errors_of_their_calls(
    sandbox: Sandbox, shop: Shop, shards: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count as they come, from many workers, and all runs see the same."""
    monkeypatch.setattr(record_size, "PAYLOADS", 3)
    gate = asyncio.Event()

    @sandbox.registry.handles(Report)
    async def report(command: Report) -> bytes:
        if how == "suspended":
            await gate.wait()
        return os.urandom(command.size)

    @sandbox.registry.handles(Revoke)
    async def revoke(command: Revoke) -> bytes:
        return os.urandom(19_000)

    @shop.script
    async def order(context: DurableContext) -> Any:
        calls = [context.call(Report(key=f"r-{number}", size=19_000), undo=Revoke(key="r")) for number in range(20)]
        small = context.call(Report(key="small", size=1_000))
        if how == "gather":
            await asyncio.gather(*calls, small, return_exceptions=True)
        else:
            with contextlib.suppress(BadStep):
                await context.all(*calls, small)
        ends: list[Any] = []
        for number, call in enumerate((*calls, small)):
            try:
                ends.append(len(await call))
            except BadStep as error:
                ends.append(-number if "bytes together. Let them return less" in error.message else error.message)
        shop.log.append(ends)
        if len(shop.log) < 3:
            raise ValueError("again")
        raise Reject("undo it")

    async with sandbox.bus(shards=shards, max_payload=20_000) as bus, bus.worker():
        receipt = await bus.dispatch(Flow(order="o-1"), keep_result=True)
        if how == "suspended":
            await shop.suspended()
            gate.set()
        with pytest.raises(CommandRejected):
            await receipt.result(timeout=30)
    assert shop.log[0] == shop.log[1] == shop.log[2]
    assert shop.log[0].count(19_000) == 3 * reading_limits(BusSettings(max_payload=20_000)).max_bytes // 19_030
    assert shop.log[0][-1] == 1_000, "small ones have room"
