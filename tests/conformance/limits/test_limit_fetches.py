"""A busy worker starts what limits allow in the request that fetches it; what they refuse, and what has to be asked for, a take starts."""

from __future__ import annotations

from typing import Any

import pytest

from command_bus import Command, EntityId, EntityPolicy, Limit, Rate
from command_bus.transport.steps import GiveBack, Lease, LimitQuestion, Released, Started
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, done
from tests.conformance.limits.limit_bench import LimitBench
from tests.conformance.steps.test_fetch import Fetches

A, B, C, D = "box:a", "box:b", "box:c", "box:d"
SLOW = Rate(1, per=3600.0, burst=1)
"""One start; the next in an hour."""


@pytest.fixture
def bench(harness: TransportHarness) -> LimitBench:
    return LimitBench(harness)


async def _fetched(bench: LimitBench, worker: ManualWorker, *mailboxes: str) -> dict[str, Lease]:
    for mailbox in mailboxes:
        await bench.harness.put(mailbox, f"{mailbox}1")
    return {lease.mailbox: lease for lease in await bench.fetch(worker)}


def _begun(leases: dict[str, Lease]) -> list[str]:
    return [name for name, lease in leases.items() if lease.begun is not None]


@pytest.mark.promise("Limits are never exceeded")
async def test_as_many_start_as_there_are_tokens(bench: LimitBench) -> None:
    await bench.put("type:box", Rate(1, per=3600.0, burst=2))
    worker = bench.worker()
    leases = await _fetched(bench, worker, A, B, C, D)
    assert _begun(leases) == [A, B]
    assert not leases[A].has_place
    assert await worker.do(leases[C], TAKE) == Released("wait")
    assert await worker.do(leases[D], TAKE) == Released("wait")
    assert await bench.queue() == [C, D]
    assert _begun(await _fetched(bench, worker, "box:e")) == []


@pytest.mark.promise("Limits are never exceeded")
async def test_as_many_start_as_there_are_places(bench: LimitBench) -> None:
    """Those that are taken count, and the end of a lease gives its place back."""
    await bench.put("type:box", concurrency=3)
    worker = bench.worker()
    first = await _fetched(bench, worker, A, B)
    second = await _fetched(bench, worker, C, D)
    assert (_begun(first), _begun(second)) == ([A, B], [C])
    assert all(lease.has_place for lease in (first[A], first[B], second[C]))
    assert await bench.places() == [A, B, C]
    assert isinstance(await worker.do(first[A], TAKE), Started)
    assert await worker.do(second[D], TAKE) == Released("wait")
    assert await worker.do(first[A], done("box:a1")) == Released("idle")
    assert await bench.places() == [B, C]
    assert await bench.passes() == [B, C]


async def test_of_two_limits_both_are_asked(bench: LimitBench) -> None:
    await bench.put("type:box", concurrency=5)
    await bench.put("bus", Rate(1, per=3600.0, burst=2), 3)
    worker = bench.worker()
    assert _begun(await _fetched(bench, worker, A, B, C)) == [A, B]
    assert (await bench.places("type:box"), await bench.places("bus")) == ([A, B], [A, B])
    (each,) = await bench.limits.uses(["bus"])
    assert (each.tokens, each.used) == (0, 2)


async def test_a_limit_of_each_entity_lets_each_start(bench: LimitBench) -> None:
    await bench.put("entity:box", SLOW)
    worker = bench.worker()
    assert _begun(await _fetched(bench, worker, A, B)) == [A, B]
    assert [each.scope for each in await bench.limits.uses(["entity:box"])] == [f"entity:{A}", f"entity:{B}"]


async def test_newcomers_stand_behind_a_queue(bench: LimitBench) -> None:
    await bench.put("type:box", SLOW)
    worker = bench.worker()
    leases = await _fetched(bench, worker, A, B)
    assert await worker.do(leases[B], TAKE) == Released("wait")
    await bench.put("type:box", Rate(1000))
    late = await _fetched(bench, worker, C)
    assert _begun(late) == []
    assert await worker.do(late[C], TAKE) == Released("wait")
    assert await bench.queue() == [B, C]


@pytest.mark.promise("Places come back")
async def test_what_was_fetched_and_is_given_back_gives_its_place_back(bench: LimitBench) -> None:
    """As after a lost answer."""
    await bench.put("type:box", concurrency=1)
    worker = bench.worker()
    leases = await _fetched(bench, worker, A)
    leases[A].begun = None
    assert await worker.do(leases[A], GiveBack(counts=False)) == Released("yield")
    assert (await bench.places(), await bench.passes()) == ([], [])


async def test_what_a_lost_worker_fetched_gives_its_place_back(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("type:box", concurrency=1)
    worker, other = bench.worker(), bench.worker("w2")
    (lease,) = (await _fetched(bench, worker, A)).values()
    await other.claim(lease.activation)
    await harness.recovery(other).settle(0, [(lease.activation, A)])
    assert (await bench.places(), await bench.passes()) == ([], [])


@pytest.mark.parametrize("named", [False, True], ids=["another shard", "by a key"])
async def test_what_has_to_be_asked_for_is_not_started(bench: LimitBench, named: bool) -> None:
    await bench.put("type:box", concurrency=5)
    if named:
        await bench.limits.declare_keyed({"box": ["shopify"]})
    worker = bench.worker() if named else bench.harness.worker()  # one that does not know of limits, as of another shard
    leases = await _fetched(bench, worker, A)
    assert _begun(leases) == []
    assert isinstance(await worker.do(leases[A], TAKE), LimitQuestion)


@pytest.mark.parametrize("knows", [False, True])
async def test_types_without_limits_start_beside_limited_ones(bench: LimitBench, knows: bool) -> None:
    await bench.put("type:box", SLOW)
    worker = bench.worker() if knows else bench.harness.worker()
    leases = await _fetched(bench, worker, A, "can:a", B, "can:b")
    assert _begun(leases) == ([A, "can:a", "can:b"] if knows else ["can:a", "can:b"])
    assert not leases["can:a"].has_place


async def test_a_place_that_was_lost_is_not_counted_twice(bench: LimitBench, harness: TransportHarness) -> None:
    """The entity has the place of a lease that nobody ended: it is its own."""
    await bench.put("type:box", concurrency=2)
    assert await bench.asks.ask(Lease(0, A, "1-1", 1e12, "w1#1"), "1-1", "", must_yield=False)
    worker = bench.worker()
    assert _begun(await _fetched(bench, worker, A, B, C)) == [A, B]
    assert await bench.places() == [A, B]


async def test_places_that_are_taken_in_one_request_count_in_it(bench: LimitBench) -> None:
    """Also that of an entity which has one of another limit already."""
    await bench.put("shopify", concurrency=5)
    assert await bench.asks.ask(Lease(0, A, "1-1", 1e12, "w1#1"), "1-1", "1 name:shopify", must_yield=False)
    await bench.put("type:box", concurrency=1)
    leases = [Lease(0, name, "2-1", 1e12, "w1#2") for name in (A, B)]
    asked = [bench.asks.ask(lease, "2-1", "", must_yield=False) for lease in leases]  # one request
    assert [await each for each in asked] == [True, False]
    assert (await bench.places(), await bench.places("name:shopify")) == ([A], [])


async def test_a_full_place_costs_nothing_of_the_other_limit(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("type:box", Rate(1, per=3600.0, burst=5))
    await bench.put("bus", concurrency=1)
    worker = bench.worker()
    assert _begun(await _fetched(bench, worker, A, B, C)) == [A]
    (each,) = await bench.limits.uses(["type:box"])
    assert each.tokens is not None
    assert 4 <= each.tokens < 4.01


class Pay(Command[None], entity="sum"):
    sum_id: EntityId


async def test_a_busy_worker_starts_them_under_limits(sandbox: Sandbox) -> None:
    ran: list[str] = []

    @sandbox.registry.handles(Pay)
    async def pay(command: Pay) -> None:
        ran.append(str(command.sum_id))

    policies = {"sum": EntityPolicy(limits=(Limit(rate=Rate(10_000), concurrency=100, scope="type"),))}
    answers: list[Any] = []
    async with sandbox.bus(entities=policies) as bus, bus.worker(concurrency=16) as worker:
        await bus.call(Pay(sum_id="first"))  # from here on the worker knows of limits
        fetches = Fetches(worker)
        fetches.heard = answers.append
        await bus.dispatch_batch(Pay(sum_id=f"s{number}") for number in range(200))
        await bus.wait_idle(20)
        (use,) = await bus.limits.list("type:sum")
    assert sorted(ran) == sorted(["first", *(f"s{number}" for number in range(200))])
    assert (use.used, use.waiting) == (0, 0)
    begun = [running for answer in answers for running in answer[3::4]]
    assert begun
    assert all(running.endswith(b"|place=1") for running in begun)
