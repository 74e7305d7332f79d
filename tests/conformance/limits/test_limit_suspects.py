"""Commands of which workers die before limits have let them start."""

from __future__ import annotations

import pytest

from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.worker.step_batcher import KnownLimits
from command_bus.transport.steps import GiveBack, Lease, LimitQuestion, PutOff, Released, Retry, Started, Take
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, done
from tests.conformance.limits.limit_bench import LimitBench

A = "box:a"


@pytest.fixture
def bench(harness: TransportHarness) -> LimitBench:
    return LimitBench(harness)


def _elsewhere(harness: TransportHarness) -> ManualWorker:
    """Return a worker of a shard that is not the first: nothing decides there."""
    worker = harness.worker()
    worker.batches._known_limits = KnownLimits(KeySpace("elsewhere", 1).shards[0])
    return worker


async def _suspected(bench: LimitBench, harness: TransportHarness) -> tuple[ManualWorker, Lease, Started]:
    """Let three workers end before they answer; return what starts the command nevertheless."""
    for _ in range(3):
        worker = _elsewhere(harness)
        lease = await worker.read_one()
        asked = await worker.do(lease, TAKE)
        assert isinstance(asked, LimitQuestion)
        assert not asked.is_suspect
        await harness.recovery(worker).settle(0, [(lease.activation, A)])  # its process ends
    worker = _elsewhere(harness)
    lease = await worker.read_one()
    asked = await worker.do(lease, TAKE)
    assert isinstance(asked, LimitQuestion)
    assert asked.is_suspect
    assert await bench.asks.ask(lease, asked.message, "", must_yield=False)
    started = await worker.do(lease, Take(asked.message))
    assert isinstance(started, Started)
    return worker, lease, started


async def test_what_workers_die_of_is_read_under_an_attempt(bench: LimitBench, harness: TransportHarness) -> None:
    """An upcaster that ends the process, say: as it is read before it starts, no attempt would count for ever."""
    await bench.put("type:box", concurrency=1)
    await harness.put(A, "a1", "a2")
    worker, lease, started = await _suspected(bench, harness)
    assert (started.envelope, started.attempt) == (b"a1", 1)
    following = await worker.do(lease, done("a1"))
    assert isinstance(following, LimitQuestion)
    assert not following.is_suspect, "the next one is another command"


async def test_a_worker_that_answers_is_no_suspect(bench: LimitBench, harness: TransportHarness) -> None:
    await bench.put("type:box", concurrency=1)
    await harness.put(A, "a1", "a2")
    for _ in range(6):
        worker = _elsewhere(harness)
        lease = await worker.read_one()
        asked = await worker.do(lease, TAKE)
        assert isinstance(asked, LimitQuestion)
        assert not asked.is_suspect
        assert await worker.do(lease, GiveBack(counts=False)) == Released("yield")


@pytest.mark.parametrize("step", [Retry(0), PutOff(0)])
async def test_what_a_worker_has_run_is_no_suspect(bench: LimitBench, harness: TransportHarness, step: Retry | PutOff) -> None:
    """Answers that were lost make a suspect, too: it must not pass its limits by for as long as it lives."""
    await bench.put("type:box", concurrency=1)
    await harness.put(A, "a1", "a2")
    worker, lease, _ = await _suspected(bench, harness)
    assert await worker.do(lease, step) == Released("wait")
    await harness.promote(worker)
    worker = _elsewhere(harness)
    asked = await worker.do(await worker.read_one(), TAKE)
    assert isinstance(asked, LimitQuestion)
    assert not asked.is_suspect
