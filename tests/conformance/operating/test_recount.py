"""Counters that are wrong are set right, exactly, also while commands come and go."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
import pytest_asyncio

from command_bus import EntityPolicy
from command_bus.errors import NewerState
from command_bus.transport.records import Recount
from command_bus.transport.redis.admin.statistics import RedisStatistics
from command_bus.transport.redis.maintenance import upkeep as counter_check
from command_bus.transport.redis.maintenance.upkeep import CounterCheck, Upkeep
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import TransportHarness, done, transport_harness
from tests.conformance.put_service import Put, put_service


@pytest_asyncio.fixture
async def harness(sandbox: Sandbox) -> Any:
    async with transport_harness(sandbox.clients, sandbox.namespace) as harness:
        yield harness


def recounts(harness: TransportHarness) -> RedisStatistics:
    return RedisStatistics(harness.connections, harness.keys, patience=5)


async def filled(harness: TransportHarness) -> int:
    """Fill a shard with commands of every kind; return how many."""
    await harness.put("box:lone", "c1")
    await harness.put("box:line", "c2", "c3", "c4")
    await harness.put("box:later", "c5", "c6", delay_ms=60_000)
    await harness.put("box:both", "c7")
    await harness.put("box:both", "c8", delay_ms=60_000)
    return 8


async def test_right_counters_stay(harness: TransportHarness) -> None:
    count = await filled(harness)
    before = await harness.everything()
    assert await recounts(harness).recount(correct=True) == Recount(count, count, 0)
    assert await harness.everything() == before


async def test_settled_commands_that_still_stand_there_do_not_count(harness: TransportHarness) -> None:
    worker = harness.worker()
    await harness.put("box:a", "c1", "c2", "c3", "c4")
    lease, _ = await worker.start()
    await worker.do(lease, done("c1"))
    await worker.do(lease, done("c2"))
    assert (await recounts(harness).recount(correct=False)) == Recount(2, 2, 0)


@pytest.mark.promise("Counters are wrong")
@pytest.mark.parametrize("value", ["0", "99", "-7", "no number"])
async def test_wrong_ones_are_set_right(harness: TransportHarness, value: str) -> None:
    count = await filled(harness)
    shard, client = harness.shard, harness.client
    await client.hset(shard.stats, "depth", value)  # type: ignore[misc]
    await client.hset(
        shard.delayed_counts,
        mapping={"box:later": 5, "box:gone": 1, "*of a command that is gone": 9, "box:later*": "7|c5", "box:gone*": "7|c5"},
    )  # type: ignore[misc]
    await client.hdel(shard.delayed_counts, "box:both")  # type: ignore[misc]
    stored = int(value) if value.lstrip("-").isdecimal() else 0
    assert await recounts(harness).recount(correct=False) == Recount(stored, count, 3)
    assert await client.hget(shard.stats, "depth") == value.encode(), "it only compared"  # type: ignore[misc]
    assert await recounts(harness).recount(correct=True) == Recount(stored, count, 3)
    assert (await recounts(harness).recount(correct=False)).is_right
    later = await client.hgetall(shard.delayed_counts)  # type: ignore[misc]
    numbers = {b"*c5": b"1", b"*c6": b"2", b"*c8": b"3", b"*": b"3"}
    assert later == {b"box:later": b"2", b"box:both": b"1", b"box:later*": b"7|c5"} | numbers


async def test_an_entity_that_was_not_seen_is_asked_for_again(harness: TransportHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    from command_bus.transport.redis.admin import statistics as module

    await filled(harness)
    names, asked = module._names, list[int]()

    async def late(client: Any, key: str, most: int) -> list[bytes]:
        found = await names(client, key, most)
        asked.append(len(found))
        if len(asked) == 1:
            await harness.put("box:new", "n1", "n2")
        return found

    monkeypatch.setattr(module, "_names", late)
    assert await recounts(harness).recount(correct=True) == Recount(10, 10, 0)
    assert len(asked) == 2


async def test_too_much_is_left_alone(harness: TransportHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    await filled(harness)
    monkeypatch.setattr("command_bus.transport.redis.admin.statistics._BYTES", 5)
    assert not (await recounts(harness).recount(correct=True)).complete
    monkeypatch.setattr("command_bus.transport.redis.admin.statistics._MOST", 2)
    await harness.client.hset(harness.shard.stats, "depth", "99")  # type: ignore[misc]
    assert await recounts(harness).recount(correct=True) == Recount(0, 0, 0, complete=False)
    assert (await harness.counters())["depth"] == 99


async def test_a_state_of_a_later_release_is_not_counted(harness: TransportHarness) -> None:
    await harness.put("box:a", "c1")
    await harness.client.hset(harness.shard.active, "box:new", "zz||||0|0|")  # type: ignore[misc]
    with pytest.raises(NewerState):
        await recounts(harness).recount(correct=True)


@pytest.mark.promise("Counters are wrong")
@pytest.mark.parametrize("shards", [1, 3])
async def test_it_is_exact_while_commands_come_and_go(sandbox: Sandbox, shards: int) -> None:
    async with put_service(sandbox, shards=shards, entities={"box": EntityPolicy()}) as service:
        bus = service.bus
        over = asyncio.Event()

        async def send() -> None:
            number = 0
            while not over.is_set():
                number += 1
                await bus.dispatch_batch([Put(box=f"b{number % 7}-{each % 3}", value=each) for each in range(20)])

        sending = asyncio.create_task(send())
        for _ in range(10):
            found = await bus.entities.recount(correct=True)
            assert found.is_right, found
        over.set()
        await sending
        await bus.wait_idle(timeout=20)
        assert await bus.entities.recount() == Recount(0, 0, 0)


async def test_nothing_counts_twice_beside_a_worker(harness: TransportHarness) -> None:
    worker = harness.worker()
    await harness.put("box:a", "c1")
    await worker.start()
    assert await recounts(harness).recount(correct=True) == Recount(1, 1, 0)


def upkeep(harness: TransportHarness) -> Upkeep:
    return Upkeep(harness.connections, harness.keys, harness.shard, worker="w1", lease=30.0)


@pytest.mark.promise("Counters are wrong")
async def test_workers_set_wrong_counters_right(
    harness: TransportHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(counter_check, "_EVERY", 0.0)
    count = await filled(harness)
    before = await harness.everything()
    await upkeep(harness).turn()
    assert await harness.everything() == before, "what is right is not written"
    await harness.client.hset(harness.shard.stats, "depth", "99")  # type: ignore[misc]
    await harness.client.hset(harness.shard.delayed_counts, "box:gone", "4")  # type: ignore[misc]
    await upkeep(harness).turn()
    assert await recounts(harness).recount(correct=False) == Recount(count, count, 0)
    assert "depth was 99, and 8 were counted; of 1 entities the delayed commands" in caplog.text


@pytest.mark.promise("Counters are wrong")
async def test_an_idle_shard_is_counted_at_once(harness: TransportHarness) -> None:
    """Without that, who waits for an idle bus, as before a deploy, would wait for an hour."""
    counters = upkeep(harness)
    await harness.client.hset(harness.shard.stats, "depth", "13")  # type: ignore[misc]
    await harness.put("box:a", "c1")
    await counters.turn()
    assert (await harness.counters())["depth"] == 14, "an entity has work: the depth is not looked at"
    worker = harness.worker()
    lease, _ = await worker.start()
    await worker.do(lease, done("c1"))
    await counters.turn()
    assert (await harness.counters())["depth"] == 0


async def test_workers_leave_a_large_shard_to_a_quieter_time(harness: TransportHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter_check, "_EVERY", 0.0)
    monkeypatch.setattr(counter_check, "_MOST", 2)
    await filled(harness)
    await harness.client.hset(harness.shard.stats, "depth", "99")  # type: ignore[misc]
    await upkeep(harness).turn()
    assert (await harness.counters())["depth"] == 99


async def test_the_fleet_counts_about_once_an_hour(harness: TransportHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    counters, now = CounterCheck(harness.connections, harness.keys, harness.shard), 0.0

    async def count() -> None:
        asked.append(now)

    monkeypatch.setattr(counters, "_count", count)
    while now < 400_000:
        await counters.turn(now, 4)
        now += 60.0
    assert asked[0] <= 4 * 3600.0
    pauses = [later - sooner for sooner, later in itertools.pairwise(asked)]
    assert 0.8 * 4 * 3600 <= min(pauses) <= max(pauses) <= 1.2 * 4 * 3600 + 60
