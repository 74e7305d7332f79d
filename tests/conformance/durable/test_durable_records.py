"""Side records on the server: how they are read, and what of them stays."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from command_bus import DurableContext
from command_bus.transport.ports.durable import Note, SignalToBring
from command_bus.transport.redis.durable import side_records
from command_bus.transport.redis.durable.commands import RedisDurableCommands
from command_bus.transport.redis.durable.lost_outcomes import Telling, tell
from command_bus.transport.redis.durable.side_records import RedisSideRecords, read_side_record
from command_bus.transport.redis.scripts import READ_RECORDS
from command_bus.transport.steps import FollowUp, Lease
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Flow, Shop
from tests.conformance.harness import ManualWorker, TransportHarness

BOX = "box:a"
LARGE = 257
"""Fields of a record that is not returned whole."""


@pytest.fixture
def records(harness: TransportHarness) -> RedisSideRecords:
    return RedisSideRecords(harness.connections, harness.keys)


@pytest.fixture
def paged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the keys of records that are read a page at a time."""
    keys: list[str] = []

    def reading(connections: Any, key: str) -> Any:
        keys.append(key)
        return read_side_record(connections, key)

    monkeypatch.setattr(side_records, "read_side_record", reading)
    return keys


def lease_of(harness: TransportHarness) -> Lease:
    """Return a lease of the harness's shard: reading needs no more of it."""
    return Lease(harness.keys.shards.index(harness.shard), BOX, "1-0", 0.0)


async def put(harness: TransportHarness, command_id: str, count: int, size: int = 1) -> dict[str, bytes]:
    """Make a record with so many fields of so many bytes; return it."""
    fields = {f"s:{number}": b"x" * size for number in range(count)}
    await harness.client.hset(harness.shard.side(command_id), mapping=fields)  # type: ignore[misc]
    return fields


async def test_a_record_is_read_as_it_is(harness: TransportHarness, records: RedisSideRecords, paged: list[str]) -> None:
    lease = lease_of(harness)
    assert await records.read(lease, "none") == {}
    fields = await put(harness, "c1", LARGE - 1)
    assert await records.read(lease, "c1") == fields
    assert paged == []


async def test_a_large_record_is_read_a_page_at_a_time(
    harness: TransportHarness, records: RedisSideRecords, paged: list[str]
) -> None:
    many, long = await put(harness, "many", LARGE), await put(harness, "long", 2, size=1024 * 1024)
    small = await put(harness, "small", 2)
    lease = lease_of(harness)
    found = await asyncio.gather(*(records.read(lease, each) for each in ("many", "long", "small")))
    assert found == [many, long, small]
    assert paged == [harness.shard.side("many"), harness.shard.side("small")]  # the last has no room beside the long one


async def test_what_starts_in_one_turn_is_read_in_one_request(
    harness: TransportHarness, records: RedisSideRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    post, requests = harness.connections.post, itertools.count()

    def counted(script: Any, *args: Any) -> bool:
        if script is READ_RECORDS:
            next(requests)
        return post(script, *args)

    monkeypatch.setattr(harness.connections, "post", counted)
    await records.read(lease_of(harness), "warm")
    next(requests)
    await asyncio.gather(*(records.read(lease_of(harness), f"c{number}") for number in range(100)))
    assert next(requests) == 3


async def test_a_key_of_another_type_harms_no_record_beside_it(harness: TransportHarness, records: RedisSideRecords) -> None:
    await harness.client.set(harness.shard.side("odd"), "text")
    fields = await put(harness, "c1", 2)
    waits = asyncio.ensure_future(records.read(lease_of(harness), "odd"))
    async with asyncio.timeout(10):
        assert await records.read(lease_of(harness), "c1") == fields
    assert not waits.done()
    await harness.client.delete(harness.shard.side("odd"))
    async with asyncio.timeout(10):
        assert await waits == {}


async def test_what_came_early_stays_once_its_command_stores_something(
    harness: TransportHarness, worker: ManualWorker, records: RedisSideRecords
) -> None:
    """A signal that comes before the first start has a time to live: its command may never start."""
    await harness.put(BOX, "c1")
    wishes = RedisDurableCommands(harness.connections, harness.keys, patience=1.0)
    assert await wishes.signal(BOX, "c1", SignalToBring("go", "s1", b"value")) == "taken"
    side = harness.shard.side("c1")
    assert await harness.client.pttl(side) > 0
    lease, _ = await worker.start()
    assert await records.store(lease, "c1", (Note("s:a", b"1"),), progressed=True) == [None]
    assert await harness.client.pttl(side) == -1
    assert (await records.read(lease, "c1"))["g:go#1"] == b"value"


async def test_the_first_outcome_stays(harness: TransportHarness, worker: ManualWorker, records: RedisSideRecords) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    call = Note("c:call#1", b"8 bytes.child|box:b", child=FollowUp("box:b", "child", b"child", mark=b"q"))
    assert await records.store(lease, "c1", (call,), progressed=True) == [None]
    told = [
        await tell(harness.connections, harness.shard, BOX, "c1", Telling("outcome", value, "call#1", "child"))
        for value in (b"first", b"second")
    ]
    assert told == ["taken", "repeated"]
    assert (await records.read(lease, "c1"))["o:call#1"] == b"first"


async def test_a_run_whose_record_comes_behind_its_lease_does_not_start(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was away for longer than the lease: another worker may have it by then."""
    shop, read, reads = Shop(sandbox), RedisSideRecords.read, list[str]()

    async def late(self: RedisSideRecords, lease: Lease, command_id: str) -> dict[str, bytes]:
        fields = await read(self, lease, command_id)
        reads.append(command_id)
        if len(reads) == 1:
            lease.deadline = 0.0
        return fields

    monkeypatch.setattr(RedisSideRecords, "read", late)

    @shop.script
    async def order(context: DurableContext) -> Any:
        shop.log.append(len(reads))
        if not reads:
            raise RuntimeError("the first time")

    async with sandbox.bus() as bus, bus.worker():
        await bus.call(Flow(order="o-1"), timeout=20)
    assert shop.log == [0, 2]
