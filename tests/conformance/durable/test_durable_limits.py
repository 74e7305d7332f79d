"""A durable command that goes on after a wait: limits have its token already, and it needs a place again."""

from __future__ import annotations

import pytest

from command_bus.messages.limits import Rate
from command_bus.transport.ports.durable import SignalToBring
from command_bus.transport.redis.durable.commands import RedisDurableCommands
from command_bus.transport.steps import GiveBack, Lease, LimitQuestion, Refused, Released, Started, Suspend, Take
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, done
from tests.conformance.limits.limit_bench import LimitBench
from tests.conformance.put_service import until

A, B, C = "box:a", "box:b", "box:c"
ONCE, TWICE = Rate(1, per=3600.0, burst=1), Rate(2, per=7200.0, burst=2)
"""Starts; the next in an hour."""


@pytest.fixture
def bench(harness: TransportHarness) -> LimitBench:
    return LimitBench(harness)


async def begun(bench: LimitBench, worker: ManualWorker, mailbox: str) -> Lease:
    """Start the only command of a mailbox."""
    await bench.harness.put(mailbox, mailbox[4:])
    (lease,) = await worker.read()
    assert isinstance(await worker.do(lease, TAKE), Started)
    return lease


async def suspend(worker: ManualWorker, lease: Lease, *, number: int = 1, until_ms: int | None = None) -> object:
    return await worker.do(lease, Suspend(lease.mailbox[4:], (f"g:go#{number}",), 1, until_ms))


async def wake(bench: LimitBench, mailbox: str, once: str = "once") -> None:
    """Bring a suspended command the signal that it waits for."""
    harness = bench.harness
    await harness.client.set(harness.shard.mark(mailbox[4:]), b"q" + 8 * b"." + mailbox.encode())
    wishes = RedisDurableCommands(harness.connections, harness.keys, patience=5)
    assert await wishes.signal(mailbox, mailbox[4:], SignalToBring("go", once, b"value")) == "taken"


async def waiting(bench: LimitBench, worker: ManualWorker, mailbox: str) -> None:
    """Let another command wait for the limit."""
    await bench.harness.put(mailbox, mailbox[4:])
    (lease,) = await worker.read()
    assert await worker.do(lease, TAKE) == Released("wait")


async def test_it_goes_past_those_that_wait_for_a_token(bench: LimitBench) -> None:
    await bench.put("type:box", ONCE, 1)
    worker = bench.worker()
    lease = await begun(bench, worker, A)
    await suspend(worker, lease)
    await waiting(bench, worker, B)
    await wake(bench, A)
    lease = await worker.read_one()
    assert isinstance(await worker.do(lease, TAKE), Started)
    assert await bench.places() == [A]
    assert isinstance(await suspend(worker, lease, number=2, until_ms=1), Started), "its wait is over at once"
    assert await worker.do(lease, done("a")) == Released("idle")
    await bench.wake()
    assert await bench.queue() == [B]


async def test_it_waits_for_a_place_before_those_that_have_not_begun(bench: LimitBench) -> None:
    """Also if the worker dies that was to start it, after its start was granted."""
    await bench.put("type:box", TWICE, 1)
    worker = bench.worker()
    await suspend(worker, await begun(bench, worker, A))
    other = await begun(bench, worker, B)
    await waiting(bench, worker, C)
    await wake(bench, A)
    lease = await worker.read_one()
    assert await worker.do(lease, TAKE) == Released("wait")
    assert await bench.queue() == [A, C]
    await worker.do(other, done("b"))
    await bench.wake_until(1)
    assert await bench.places() == [A]
    lost = await worker.read_one()
    assert isinstance(await bench.worker("w2").do(lost, TAKE), Started)
    await bench.wake()
    assert await bench.queue() == [C], "there is no token"


async def test_who_waits_for_a_token_under_its_caller_does_not_hold_it_up(bench: LimitBench) -> None:
    await bench.put("type:box", TWICE, 1)
    worker = bench.worker()
    await suspend(worker, await begun(bench, worker, A))
    caller = await begun(bench, worker, B)
    await bench.harness.put(C, "c")
    called = await worker.read_one()
    assert not await bench.asks.ask(called, called.activation, f"\t~{caller.activation} {B}", must_yield=False)
    assert await worker.do(called, Refused()) == Released("wait")
    await wake(bench, A)
    assert await worker.do(await worker.read_one(), TAKE) == Released("wait")
    assert await bench.queue() == [C, A]
    await worker.do(caller, done("b"))
    await bench.wake_until(1)
    assert await bench.places() == [A]
    assert await bench.queue() == [C]


async def test_what_slept_has_its_token(bench: LimitBench) -> None:
    await bench.put("type:box", ONCE)
    worker = bench.worker()
    lease = await begun(bench, worker, A)
    seconds, micros = await bench.harness.client.time()
    assert await suspend(worker, lease, until_ms=int(seconds) * 1000 + int(micros) // 1000 + 50) == Released("wait")

    async def is_ready() -> bool:
        await bench.harness.promote(worker)
        return await bench.state(A) == "r"

    await until(is_ready)
    assert isinstance(await worker.do(await worker.read_one(), TAKE), Started)


async def test_a_retry_takes_a_token(bench: LimitBench) -> None:
    await bench.put("type:box", TWICE)
    worker = bench.worker()
    lease = await begun(bench, worker, A)
    await suspend(worker, lease)
    await wake(bench, A)
    lease = await worker.read_one()
    assert isinstance(await worker.do(lease, TAKE), Started)
    for ending in (Started, Released):
        await worker.do(lease, GiveBack(counts=True))
        lease = await worker.read_one()
        assert isinstance(await worker.do(lease, TAKE), ending), "the bucket had one more"


async def test_what_follows_it_takes_a_token(bench: LimitBench) -> None:
    await bench.put("type:box", ONCE)
    worker = bench.worker()
    lease = await begun(bench, worker, A)
    await bench.harness.put(A, "behind")
    await suspend(worker, lease)
    await wake(bench, A)
    lease = await worker.read_one()
    assert isinstance(await worker.do(lease, TAKE), Started)
    assert await worker.do(lease, done("a")) == Released("wait")


@pytest.mark.parametrize("concurrency", [None, 1])
async def test_a_worker_that_has_to_ask_asks_for_no_token(bench: LimitBench, concurrency: int | None) -> None:
    """A named limit is asked for by the worker: it learns that the command has its token, and asks again after a crash."""
    await bench.put("shop", ONCE, concurrency)
    await bench.limits.declare_keyed({"box": ["shop"]})
    worker = bench.worker()
    await bench.harness.put(A, "a")
    lease = await worker.read_one()
    asked = await worker.do(lease, TAKE)
    assert isinstance(asked, LimitQuestion)
    assert not asked.is_paid
    assert await bench.asks.ask(lease, asked.message, "1 name:shop:7", must_yield=False)
    assert isinstance(await worker.do(lease, Take(granted=asked.message)), Started)
    await suspend(worker, lease)
    await bench.asks.over(A, lease.activation)
    await wake(bench, A)
    lease = await worker.read_one()
    for each in (worker, bench.worker("w2")):  # the first dies with its leave
        asked = await each.do(lease, TAKE)
        assert isinstance(asked, LimitQuestion)
        assert asked.is_paid
        assert await bench.asks.ask(lease, asked.message, "1 name:shop:7\t~paid", must_yield=False)
    again = await bench.worker("w2").do(lease, Take(granted=asked.message))
    assert isinstance(again, Started)
