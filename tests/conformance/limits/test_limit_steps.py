"""The effect of each step on limits: refusals in place, queues, places that return, live changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from command_bus.messages.limits import Rate
from command_bus.transport.redis.admin.mailboxes import RedisMailboxes
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.worker.step_batcher import KnownLimits
from command_bus.transport.steps import GiveBack, LeaseLost, LimitQuestion, Refused, Released, Removal, Retry, Started, Step, Take
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, bury, done, left, park
from tests.conformance.limits.limit_bench import LimitBench, run_script

A, B, C, D = "box:a", "box:b", "box:c", "box:d"
SLOW = Rate(1, per=3600.0, burst=1)
"""One start; the next in an hour."""
QUICK = Rate(20, burst=1)


@pytest.fixture
def bench(harness: TransportHarness) -> LimitBench:
    return LimitBench(harness)


async def _leases(bench: LimitBench, worker: ManualWorker, *mailboxes: str) -> list[Any]:
    for mailbox in mailboxes:
        await bench.harness.put(mailbox, f"{mailbox[4:]}1", f"{mailbox[4:]}2")
    return await worker.read()


async def test_a_refused_entity_waits_in_place(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("type:box", QUICK)
    worker = bench.worker()
    first, second = await _leases(bench, worker, A, B)
    assert isinstance(await worker.do(first, TAKE), Started)
    assert await worker.do(second, TAKE) == Released("wait")
    record = await harness.record(B)
    assert record is not None
    assert (record.state, record.activation, record.attempt, record.first_ms) == ("l", "", 0, 0)
    assert await bench.queue() == [B]
    assert await harness.activations() == [A]
    await bench.wake_until(2)
    (lease,) = await worker.read()
    started = await worker.do(lease, TAKE)
    assert isinstance(started, Started)
    assert (started.envelope, started.attempt) == (b"b1", 1)
    assert await bench.queue() == []


async def test_a_lone_command_that_is_refused_has_its_place(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("type:box", QUICK)
    worker = bench.worker()
    await harness.put(A, "a1")
    await harness.put(B, "b1")
    first, second = await worker.read()
    assert isinstance(await worker.do(first, TAKE), Started)
    assert await worker.do(second, TAKE) == Released("wait")
    await harness.put(B, "b2")
    await bench.wake_until(2)
    (lease,) = await worker.read()
    started = await worker.do(lease, TAKE)
    assert isinstance(started, Started)
    assert started.envelope == b"b1"
    after = await worker.do(lease, done("b1"))
    assert after == Released("wait")
    assert await worker.do(first, done("a1")) == Released("idle")


@pytest.mark.promise("Limits are never exceeded")
async def test_newcomers_stand_behind_and_first_come_is_first_served(bench: LimitBench) -> None:
    await bench.put("type:box", QUICK)
    worker = bench.worker()
    for lease in await _leases(bench, worker, A, C, B, D):
        await worker.do(lease, TAKE)
    assert await bench.queue() == [C, B, D]
    order = []
    for _ in range(3):
        await bench.wake_until(2)
        (lease,) = await worker.read()
        order.append(lease.mailbox)
        assert isinstance(await worker.do(lease, TAKE), Started)
        await worker.do(lease, done(f"{lease.mailbox[4:]}1", "leave"))
        for again in await worker.read():
            assert await worker.do(again, TAKE) == Released("wait")
    assert order == [C, B, D]
    assert await bench.queue() == [C, B, D]


async def test_no_more_are_woken_than_there_are_tokens(bench: LimitBench, harness: TransportHarness) -> None:
    """A grant counts as used, as long as its entity waits for a worker."""
    await bench.put("type:box", Rate(20, burst=3))
    worker = bench.worker()
    names = [f"box:{number}" for number in range(12)]
    for lease in await _leases(bench, worker, *names):
        await worker.do(lease, TAKE)
    running = 12 - len(await bench.queue())
    assert 3 <= running < 6
    await bench.wake_until(running + 3)
    await asyncio.sleep(0.2)
    for _ in range(20):
        await bench.wake()
    assert len(await harness.activations()) == running + 3, "three are granted their start, and none of them has started"


@pytest.mark.promise("Places come back")
async def test_purging_who_waits_leaves_no_debt(bench: LimitBench, harness: TransportHarness) -> None:
    """Tokens are deducted at a start, so those that never start have taken none."""
    await bench.put("type:box", QUICK)
    worker = bench.worker()
    names = [f"box:{number}" for number in range(40)]
    for name in names:
        await harness.put(name, name)
    first, *others = await worker.read()
    await worker.do(first, TAKE)
    for lease in others:
        assert await worker.do(lease, TAKE) == Released("wait")
    mailboxes: RedisMailboxes = harness.mailboxes
    for name in names[1:]:
        async for page in mailboxes.lined_up(name):
            await mailboxes.remove(name, [Removal(command, left("x"), left("x")) for command in page])
        assert await harness.nothing_of(name)
    await harness.put(A, "a1")
    (lease,) = await worker.read()
    if await worker.do(lease, TAKE) == Released("wait"):
        await bench.wake_until(2)
        (lease,) = await worker.read()
        assert isinstance(await worker.do(lease, TAKE), Started)
    assert await bench.queue() == []


@pytest.mark.promise("Places come back")
async def test_a_raised_rule_holds_at_once_and_a_removed_one(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("type:box", SLOW)
    worker = bench.worker()
    for lease in await _leases(bench, worker, A, B, C, D):
        await worker.do(lease, TAKE)
    await bench.wake()
    assert await harness.activations() == [A]
    await bench.put("type:box", QUICK)
    await bench.wake_until(2)
    (lease,) = await worker.read()
    assert lease.mailbox == B
    await bench.put("type:box", SLOW)
    assert isinstance(await worker.do(lease, TAKE), Started), "its start was granted"
    await bench.wake()
    assert await bench.queue() == [C, D]
    await bench.put("type:box")
    await bench.wake()
    assert sorted(await harness.activations()) == [A, B, C, D]
    for lease in await worker.read():
        assert isinstance(await worker.do(lease, TAKE), Started)


async def test_a_lowered_rule_counts_what_has_started(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("type:box", Rate(1000, burst=1000))
    worker = bench.worker()
    first, second = await _leases(bench, worker, A, B)
    assert isinstance(await worker.do(first, TAKE), Started)
    await bench.put("type:box", concurrency=1)
    assert isinstance(await worker.do(second, TAKE), Started), "who ran before has no place"
    await bench.put("type:box", SLOW, 1)
    (third,) = await _leases(bench, worker, C)
    assert isinstance(await worker.do(third, TAKE), Started) or await bench.queue() == [C]


async def test_what_is_paused_is_passed_over(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("type:box", QUICK)
    worker = bench.worker()
    for lease in await _leases(bench, worker, A, B, C):
        await worker.do(lease, TAKE)
    await harness.scopes.pause(B, "")
    await bench.wake_until(2)
    assert await harness.activations() == [A, C]
    assert await bench.state(B) == "s"
    assert await bench.queue() == []
    await harness.scopes.resume(B)
    assert await harness.activations() == [A, C, B]


ENDS: dict[str, Callable[[str], Step]] = {
    "done": lambda name: done(name, "leave"),
    "dead letter": lambda name: bury(name, "leave"),
    "retry": lambda _: Retry(60_000),
    "give back": lambda _: GiveBack(counts=True),
    "park": park,
}


@pytest.mark.promise("Places come back")
@pytest.mark.parametrize("how", ENDS)
async def test_a_place_returns_with_the_end_of_its_lease(bench: LimitBench, harness: TransportHarness, how: str) -> None:
    await bench.put("type:box", concurrency=1)
    worker = bench.worker()
    first, second = await _leases(bench, worker, A, B)
    assert isinstance(await worker.do(first, TAKE), Started)
    assert await worker.do(second, TAKE) == Released("wait")
    assert await bench.places() == [A]
    await bench.wake()
    assert await bench.queue() == [B]
    await worker.again(first, ENDS[how]("a1"))
    assert A not in await bench.places()
    await bench.wake()
    assert await bench.places() == [B]
    assert B in await harness.activations()


async def test_the_last_command_gives_the_place_back(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("type:box", concurrency=1)
    worker = bench.worker()
    await harness.put(A, "a1")
    lease, _ = await worker.start()
    assert await worker.do(lease, done("a1")) == Released("idle")
    assert await bench.places() == []
    assert await bench.passes() == []


@pytest.mark.promise("Places come back")
async def test_a_lost_worker_gives_the_place_back(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("type:box", concurrency=1)
    worker, other = bench.worker(), bench.worker("w2")
    (first,) = await _leases(bench, worker, A)
    await worker.do(first, TAKE)
    await other.claim(first.activation)
    await harness.recovery(other).settle(0, [(first.activation, A)])
    assert await bench.places() == []
    assert await worker.do(first, done("a1")) == LeaseLost()


@pytest.mark.promise("Places come back")
async def test_a_place_is_kept_within_the_quantum_and_goes_past_it(bench: LimitBench, harness: TransportHarness) -> None:
    """Past the quantum a place goes to the first in the queue, although nothing stands in the ready stream."""
    await bench.put("type:box", concurrency=1)
    worker = bench.worker()
    await harness.put(A, *(f"a{number}" for number in range(1, 6)))
    lease, _ = await worker.start()
    assert isinstance(await worker.do(lease, done("a1", "yield")), Started), "no entity waits"
    (second,) = await _leases(bench, worker, B)
    assert await worker.do(second, TAKE) == Released("wait")
    assert await worker.read() == [], "nothing stands in the ready stream"
    assert isinstance(await worker.do(lease, done("a2", "stay")), Started)
    assert await worker.do(lease, done("a3", "yield")) == Released("yield")
    await bench.wake()
    leases = await worker.read()
    assert [each.mailbox for each in leases] == [A, B]
    assert await worker.do(leases[0], TAKE) == Released("wait")
    assert isinstance(await worker.do(leases[1], TAKE), Started)


async def test_an_entity_under_two_limits_takes_of_both_or_none(bench: LimitBench) -> None:
    await bench.put("type:box", concurrency=5)
    await bench.put("bus", concurrency=1)
    worker = bench.worker()
    first, second = await _leases(bench, worker, A, B)
    await worker.do(first, TAKE)
    assert await worker.do(second, TAKE) == Released("wait")
    assert await bench.places("type:box") == [A]
    assert await bench.places("bus") == [A]
    assert (await bench.queue("bus"), await bench.queue("type:box")) == ([B], [])
    await worker.do(first, done("a1", "leave"))
    await bench.wake()
    assert await bench.places("type:box") == [B]
    assert await bench.places("bus") == [B]


async def test_a_limit_of_each_entity_holds_only_that_entity(bench: LimitBench) -> None:
    await bench.put("entity:box", SLOW)
    worker = bench.worker()
    first, second = await _leases(bench, worker, A, B)
    assert isinstance(await worker.do(first, TAKE), Started)
    assert isinstance(await worker.do(second, TAKE), Started)
    assert await worker.do(first, done("a1")) == Released("wait")
    assert await bench.queue(f"entity:{A}") == [A]


async def test_a_request_that_comes_again_late_takes_no_place_away(bench: LimitBench, harness: TransportHarness) -> None:
    """Its answer was lost, so it was sent again, and comes when its command runs, or the next one of this lease."""
    await bench.put("type:box", SLOW, 1)
    worker = bench.harness.worker()  # it knows of no limits, so it asks
    (lease,) = await _leases(bench, worker, A)
    asked = await worker.do(lease, TAKE)
    assert isinstance(asked, LimitQuestion)
    assert await bench.asks.ask(lease, asked.message, "", must_yield=False)
    started = await worker.do(lease, Take(asked.message))
    assert isinstance(started, Started)
    assert await bench.asks.ask(lease, asked.message, "", must_yield=False)
    assert (await bench.places(), await bench.queue()) == ([A], [])
    assert await bench.asks.ask(lease, "1-1", "", must_yield=True), "an earlier message of this lease"
    assert (await bench.places(), await bench.queue()) == ([A], [])


@pytest.mark.promise("Places come back")
async def test_a_late_end_of_a_lease_frees_no_place_of_another(bench: LimitBench, harness: TransportHarness) -> None:
    """What a worker says beyond its lease names an activation that is over."""
    await bench.put("type:box", concurrency=1)
    worker, other = bench.worker(), bench.worker("w2")
    (first,) = await _leases(bench, worker, A)
    await worker.do(first, TAKE)
    await other.claim(first.activation)
    await harness.recovery(other).settle(0, [(first.activation, A)])
    (again,) = await other.read()
    assert isinstance(await other.do(again, TAKE), Started)
    await bench.asks.over(A, first.activation)
    assert await bench.places() == [A]
    assert await bench.asks.ask(first, "1-1", "", must_yield=False), "its take is refused"
    assert await bench.passes() == [A]
    await bench.asks.over(A, again.activation)
    await bench.asks.over(A, again.activation)
    assert await bench.places() == []


async def test_a_sweep_frees_places_without_a_lease(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("type:box", concurrency=2)
    worker = bench.worker()
    first, second = await _leases(bench, worker, A, B)
    await worker.do(first, TAKE)
    await worker.do(second, TAKE)
    await harness.client.hdel(harness.shard.active, A)  # type: ignore[misc]
    await bench.work.turn()
    assert await bench.places() == [B]
    assert await bench.passes() == [B]


async def test_a_look_over_all_mailboxes_wakes_who_stands_in_no_queue(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("type:box", SLOW)
    worker = bench.worker()
    first, second = await _leases(bench, worker, A, B)
    await worker.do(first, TAKE)
    await worker.do(second, TAKE)
    await harness.client.delete(harness.shard.limits, harness.shard.places)
    await bench.look_over()
    assert await harness.activations() == [A, B]


async def test_a_full_bucket_leaves_nothing(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("entity:box", Rate(1000, burst=1000))
    worker = bench.worker()
    await harness.put(A, "a1")
    lease, _ = await worker.start()
    await worker.do(lease, done("a1"))
    assert await harness.client.exists(harness.shard.limits)
    await harness.client.hset(harness.shard.limits, f"b\nentity:{A}", "1.00|0|0")  # type: ignore[misc]
    await bench.work.turn()
    assert not await harness.client.exists(harness.shard.limits)


async def test_a_hold_stops_a_limit_until_its_time(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("type:box", Rate(1000))
    await bench.limits.hold("type:box", 0.2)
    worker = bench.worker()
    (lease,) = await _leases(bench, worker, A)
    assert await worker.do(lease, TAKE) == Released("wait")
    await bench.wake()
    assert await harness.activations() == []
    (wait,) = (await bench.limits.waits([A])).values()
    assert wait.free_in is not None
    assert 0 < wait.free_in <= 0.2
    await bench.wake_until(1)


async def test_a_clock_that_went_back_costs_a_burst_at_most(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("type:box", Rate(50, burst=3))
    await harness.client.hset(harness.shard.limits, "b\ntype:box", "9000000000000000.00|0|0")  # type: ignore[misc]
    worker = bench.worker()
    (lease,) = await _leases(bench, worker, A)
    assert await worker.do(lease, TAKE) == Released("wait")
    await bench.wake_until(1, 1.0)


async def test_72_a_cost_above_the_burst_waits_for_a_full_bucket(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("shopify", Rate(50, burst=5))
    worker = bench.worker()
    for lease in await _leases(bench, worker, A):
        scopes = "900 name:shopify:acme"
        assert await bench.asks.ask(lease, "1-1", scopes, must_yield=False)
        assert not await bench.asks.ask(lease, "1-2", scopes, must_yield=False)
    assert await bench.queue("name:shopify:acme") == [A]
    assert await bench.queue("name:shopify:zeta") == []


async def test_the_script_passes_over_who_has_yet_to_wait(bench: LimitBench, harness: TransportHarness) -> None:
    """A worker was refused, and the place is free before it has said so: its entity keeps its place in the queue."""
    await bench.put("shopify", concurrency=1)
    worker = bench.worker()
    first, second = await _leases(bench, worker, A, B)
    assert await bench.asks.ask(first, "1-1", "1 name:shopify", must_yield=False)
    assert not await bench.asks.ask(second, "1-1", "1 name:shopify", must_yield=False)
    await bench.asks.over(A, first.activation)
    await bench.wake()
    assert await bench.queue("name:shopify") == [B]
    assert await bench.places("name:shopify") == []
    assert await run_script(bench.work, "gone", [B]) == 1
    assert await bench.queue("name:shopify") == [B], "it holds no grant"


async def test_no_command_waits_without_a_rule(bench: LimitBench, harness: TransportHarness) -> None:
    worker = bench.worker()
    lease, *_ = await _leases(bench, worker, A)
    assert isinstance(await worker.do(lease, TAKE), Started)
    assert not await harness.client.exists(harness.shard.limits, harness.shard.places, harness.shard.rules)


def _elsewhere(harness: TransportHarness) -> ManualWorker:
    """Return a worker of a shard that is not the first: nothing decides there."""
    worker = harness.worker()
    worker.batches._known_limits = KnownLimits(KeySpace("elsewhere", 1).shards[0])
    return worker


async def test_a_worker_that_does_not_know_of_limits_asks(bench: LimitBench, harness: TransportHarness) -> None:
    """As one of another shard does, or for a limit by a key. A step that is asked again after a lost answer is answered as before."""
    await bench.put("type:box", concurrency=1)
    worker = _elsewhere(harness)
    await harness.put(A, "a1", "a2", "a3")
    lease = await worker.read_one()
    asked, again = await worker.again(lease, TAKE)
    assert isinstance(asked, LimitQuestion)
    assert isinstance(again, LimitQuestion)
    assert asked == replace(again, due_ms=asked.due_ms)
    record = await harness.record(A)
    assert record is not None
    assert (record.state, record.activation, record.attempt) == ("r", lease.activation, 0)
    assert await bench.asks.ask(lease, asked.message, "", must_yield=False)
    started = await worker.do(lease, Take(asked.message))
    assert isinstance(started, Started)
    assert started.envelope == b"a1"
    asked, again = await worker.again(lease, done("a1"))
    assert isinstance(asked, LimitQuestion)
    assert isinstance(again, LimitQuestion)
    assert asked == replace(again, due_ms=asked.due_ms)
    assert asked.envelope == b"a2"
    assert await bench.places() == [A]
    assert isinstance(await worker.do(lease, Take(started.message)), LimitQuestion), "leave was given for another message"
    assert await worker.do(lease, Refused()) == Released("wait")
    assert await bench.state(A) == "l"


async def test_a_lone_command_is_asked_for_and_stays_one(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("type:box", concurrency=1)
    worker = _elsewhere(harness)
    await harness.put(A, "a1")
    lease = await worker.read_one()
    asked = await worker.do(lease, TAKE)
    assert isinstance(asked, LimitQuestion)
    assert (await bench.state(A), asked.envelope) == ("o", b"a1")
    assert isinstance(await worker.do(lease, Take(asked.message)), Started)
    assert await bench.state(A) == "O"
    assert await worker.do(lease, done("a1")) == Released("idle")


async def test_a_lone_command_that_is_refused_elsewhere_gets_its_entry(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("type:box", concurrency=1)
    worker = _elsewhere(harness)
    await harness.put(A, "a1")
    lease = await worker.read_one()
    assert isinstance(await worker.do(lease, TAKE), LimitQuestion)
    assert await worker.do(lease, Refused()) == Released("wait")
    assert await bench.state(A) == "l"
    assert await harness.client.xlen(harness.shard.mailbox(A)) == 1


@pytest.mark.promise("Limits are never exceeded")
async def test_a_limited_entity_runs_nothing_twice(bench: LimitBench, harness: TransportHarness) -> None:
    """What was read ahead and settled is trimmed before its entity waits."""
    await bench.put("type:box", Rate(20, burst=2))
    worker = bench.worker()
    await harness.put(A, *(f"a{number}" for number in range(1, 6)))
    lease, started = await worker.start()
    ran = [started.envelope]
    for _ in range(3):
        answer = await worker.do(lease, done(str(ran[-1], "ascii")))
        if answer == Released("wait"):
            await bench.wake_until(1)
            (lease,) = await worker.read()
            answer = await worker.do(lease, TAKE)
        assert isinstance(answer, Started)
        ran.append(answer.envelope)
    assert ran == [b"a1", b"a2", b"a3", b"a4"]


async def test_a_raised_rule_tells_at_once(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("type:box", SLOW)
    worker = bench.worker()
    for lease in await _leases(bench, worker, A, B):
        await worker.do(lease, TAKE)
    ((_, before),) = await bench.due()
    await bench.put("type:box", Rate(1000))
    ((_, after),) = await bench.due()
    assert after < before - 1_000_000


async def test_a_free_token_is_the_first_one_s_in_the_queue(bench: LimitBench) -> None:
    await bench.put("type:box", QUICK)
    worker = bench.worker()
    for lease in await _leases(bench, worker, A, B):
        await worker.do(lease, TAKE)
    await asyncio.sleep(0.06)
    (late,) = await _leases(bench, worker, C)
    assert await worker.do(late, TAKE) == Released("wait")
    assert await bench.queue() == [B, C]
