"""Grants of a rule that is changed before they are used: they are compared with the rule of the moment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from command_bus.errors import TransportUnavailable
from command_bus.messages.limits import Rate
from command_bus.transport.redis.admin.type_records import RedisObliteration
from command_bus.transport.redis.keys import GROUP
from command_bus.transport.redis.maintenance.due_work import Member
from command_bus.transport.steps import Released, Started
from tests.conformance.harness import TAKE, TransportHarness, done
from tests.conformance.limits.limit_bench import LimitBench, run_script

SLOW = Rate(1, per=3600.0, burst=1)
"""One start; the next in an hour."""
BOXES = ("box:a", "box:b", "box:c", "box:d")


@pytest.fixture
def bench(harness: TransportHarness) -> LimitBench:
    return LimitBench(harness)


@pytest.mark.promise("Places come back")
async def test_a_grant_of_a_rate_has_no_place_of_the_rule_that_follows(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("type:box", Rate(40, burst=2))
    worker = bench.worker()
    for mailbox in BOXES:
        await harness.put(mailbox, mailbox)
    for lease in await worker.read():
        await worker.do(lease, TAKE)
    assert await bench.queue() == ["box:c", "box:d"]
    await bench.wake_until(4)
    await bench.put("type:box", concurrency=1)
    third, fourth = await worker.read()
    assert isinstance(await worker.do(third, TAKE), Started)
    assert await worker.do(fourth, TAKE) == Released("wait")
    assert await bench.places() == ["box:c"]


@pytest.mark.promise("Places come back")
async def test_grants_of_places_are_no_tokens_of_the_rate_that_follows(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("type:box", concurrency=1)
    worker = bench.worker()
    for mailbox in BOXES[:3]:
        await harness.put(mailbox, mailbox)
    for lease in await worker.read():
        await worker.do(lease, TAKE)
    await bench.put("type:box", concurrency=3)
    await bench.wake_until(3)
    await bench.put("type:box", SLOW)
    second, third = await worker.read()
    assert isinstance(await worker.do(second, TAKE), Started)
    assert await worker.do(third, TAKE) == Released("wait")


async def obliterate(harness: TransportHarness) -> None:
    deletion = RedisObliteration(harness.connections, harness.keys, patience=5)
    for step in (deletion.begin, deletion.go_on, deletion.end):
        await step(0)
    await harness.client.xgroup_create(harness.shard.ready, GROUP, "0", mkstream=True)  # as a worker does
    assert set(await harness.everything()) == {harness.shard.ready, "pending"}


STEPS: dict[str, Callable[[LimitBench], Awaitable[Any]]] = {
    "wake": lambda bench: bench.work.perform([Member("l:type:box", 0)]),
    "again": lambda bench: run_script(bench.work, "again", ["box:b"]),
    "gone": lambda bench: run_script(bench.work, "gone", ["box:b"]),
    "clean": lambda bench: run_script(bench.work, "clean", ["type:box"]),
    "over": lambda bench: run_script(bench.work, "over", ["box:a", "1-1"]),
    "hold": lambda bench: bench.limits.hold("type:box", 60),
    "wake_limited": lambda bench: bench.work._make_ready(bench.harness.shard, ["box:b"]),
}


@pytest.mark.promise("A deleted namespace leaves nothing")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made again"])
async def test_a_step_from_before_a_deletion_writes_nothing(
    bench: LimitBench, harness: TransportHarness, step: str, again: bool
) -> None:
    await bench.incarnations.all()
    await bench.limits.hold("type:other", 60)
    await obliterate(harness)
    if again:  # the same entities wait for the same limit
        await waiting(bench, harness)
    before = await harness.everything()
    with pytest.raises(TransportUnavailable, match="was deleted"):
        await STEPS[step](bench)
    assert await harness.everything() == before


@pytest.mark.promise("A deleted namespace leaves nothing")
@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made again"])
async def test_a_lease_from_before_a_deletion_gets_no_place(bench: LimitBench, harness: TransportHarness, again: bool) -> None:
    await bench.incarnations.all()
    await harness.put("box:x", "x")
    (lease,) = await bench.worker().read()
    await obliterate(harness)
    if again:
        await waiting(bench, harness)
    before = await harness.everything()
    asked = bench.asks.ask(lease, lease.activation, "1 name:shop:7", must_yield=False)
    over = bench.asks.over("box:a", lease.activation)
    assert not await asked
    await over
    assert await harness.everything() == before
    if again:
        assert not await bench.asks.ask(lease, lease.activation, "", must_yield=False), "it begins afresh: the place is taken"
        assert await bench.queue() == ["box:b", "box:x"]


async def waiting(bench: LimitBench, harness: TransportHarness) -> None:
    """Let an entity run, and another wait for its place."""
    fresh = LimitBench(harness)
    await fresh.incarnations.all()
    await fresh.put("type:box", concurrency=1)
    worker = fresh.worker()
    for mailbox in ("box:a", "box:b"):
        await harness.put(mailbox, mailbox)
    for lease in await worker.read():
        await worker.do(lease, TAKE)
    assert (await bench.places(), await bench.queue()) == (["box:a"], ["box:b"])


async def test_a_grant_that_is_taken_back_asks_again_for_what_its_worker_read(
    bench: LimitBench, harness: TransportHarness
) -> None:
    """By a key, and of further entities of a command of several."""
    await bench.put("type:box", concurrency=1)
    assert await run_script(bench.work, "ask", ["box:a", "1", "1-1", "1-0", "", "0"]) == [b"+"]
    assert await run_script(bench.work, "ask", ["order:b", "1", "1-2", "1-0", "1 type:box", "0"]) == [b"type:box"]
    await run_script(bench.work, "over", ["box:a", "1-1"])
    assert await run_script(bench.work, "wake", ["type:box"]) == [b"order:b", b"1"]
    await run_script(bench.work, "again", ["order:b"])
    kept: Any = await harness.client.hget(harness.shard.limits, "w\norder:b")  # type: ignore[misc]
    assert kept.rpartition(b"\n")[2] == b"0 type:box"
    assert await bench.queue() == ["order:b"]


async def test_tokens_that_are_given_back_are_given_to_who_waits_at_once(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("type:box", SLOW)
    worker = bench.worker()
    for mailbox in BOXES[:2]:
        await harness.put(mailbox, mailbox)
    first, second = await worker.read()
    assert isinstance(await worker.do(first, TAKE), Started)
    assert await worker.do(second, TAKE) == Released("wait")
    first.is_unused = True
    ((_, later),) = await bench.due()
    await worker.do(first, done("box:a"))
    ((_, now),) = await bench.due()
    assert now < later - 3_000_000, "not in an hour"
    await bench.wake_until(1)
    (second,) = await worker.read()
    assert isinstance(await worker.do(second, TAKE), Started)
