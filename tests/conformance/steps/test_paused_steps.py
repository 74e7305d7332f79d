"""Steps of mailboxes that are paused or parked, and of what an operator removes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from command_bus.transport.steps import GiveBack, LeaseLost, Released, Retry, Step
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, done, left, park, removal
from tests.conformance.steps.step_tables import SETTLING, each

BOX = "box:a"


async def _stopped(harness: TransportHarness) -> None:
    record = await harness.record(BOX)
    assert record is not None
    assert record.state == "s"
    assert await harness.activations() == []


async def _resume_runs(harness: TransportHarness, worker: ManualWorker, command: bytes, attempt: int = 1) -> None:
    assert await harness.scopes.resume(BOX)
    lease, started = await worker.start()
    assert (started.envelope, started.attempt) == (command, attempt)
    assert await worker.do(lease, done(command.decode(), "leave")) in (Released("idle"), Released("yield"))


async def test_paused_before_the_first_command(harness: TransportHarness, worker: ManualWorker) -> None:
    assert await harness.scopes.pause(BOX, "why")
    assert not await harness.scopes.pause(BOX, "why")
    await harness.put(BOX, "c1")
    await _stopped(harness)
    await _resume_runs(harness, worker, b"c1")
    assert not await harness.scopes.resume(BOX)
    assert await harness.nothing_of(BOX)


async def test_paused_between_ready_and_take(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease = await worker.read_one()
    await harness.scopes.pause(BOX, "")
    assert await worker.do(lease, TAKE) == Released("stop")
    await _stopped(harness)
    await _resume_runs(harness, worker, b"c1")


@each({**SETTLING, "leave": lambda name: done(name, "leave")})
async def test_paused_while_a_command_runs(
    harness: TransportHarness, worker: ManualWorker, step_for: Callable[[str], Step]
) -> None:
    await harness.put(BOX, "c1", "c2")
    lease, _ = await worker.start()
    await harness.scopes.pause(BOX, "")
    assert await worker.do(lease, step_for("c1")) == Released("stop")
    await _stopped(harness)
    await _resume_runs(harness, worker, b"c2")
    assert await harness.nothing_of(BOX)


async def test_paused_while_the_last_command_runs_leaves_nothing(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    await harness.scopes.pause(BOX, "")
    assert await worker.do(lease, done("c1")) == Released("idle")
    assert await harness.nothing_of(BOX)
    assert await harness.scopes.resume(BOX)
    assert await harness.nothing_of(BOX)


async def test_paused_while_a_retry_waits(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    await worker.do(lease, Retry(0))
    await harness.scopes.pause(BOX, "")
    await harness.promote(worker)
    await _stopped(harness)
    await _resume_runs(harness, worker, b"c1", attempt=2)


async def test_resumed_while_a_retry_waits_keeps_waiting(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    await worker.do(lease, Retry(60_000))
    await harness.scopes.pause(BOX, "")
    await harness.scopes.resume(BOX)
    assert await harness.activations() == []
    record = await harness.record(BOX)
    assert record is not None
    assert record.state == "w"


async def test_paused_when_a_delayed_command_comes_due(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.scopes.pause(BOX, "")
    await harness.put(BOX, "d1", delay_ms=1)
    while await harness.client.zcard(harness.shard.due):
        await harness.promote(worker)
    await _stopped(harness)
    await _resume_runs(harness, worker, b"d1")


@pytest.mark.parametrize("verb", ["replay", "discard"])
@pytest.mark.parametrize("paused", [True, False])
async def test_parked_and_paused_are_independent(
    harness: TransportHarness, worker: ManualWorker, verb: str, paused: bool
) -> None:
    await harness.put(BOX, "c1", "c2")
    lease, _ = await worker.start()
    if paused:
        await harness.scopes.pause(BOX, "")
    assert await worker.do(lease, park("c1")) == Released("stop")
    await _stopped(harness)
    await harness.put(BOX, "c3")
    await _stopped(harness)
    (letter,) = [letter async for letter in harness.dead_letters.all()]
    assert letter.parked
    if not paused:
        assert not await harness.scopes.resume(BOX)
        await _stopped(harness)
    assert await harness.dead_letters.settle(letter, verb, left("c1"))
    assert not await harness.dead_letters.settle(letter, verb, left("c1"))
    first = b"c1" if verb == "replay" else b"c2"
    if paused:
        await _stopped(harness)
        await _resume_runs(harness, worker, first)
    else:
        _, started = await worker.start()
        assert (started.envelope, started.attempt) == (first, 1)
    assert await harness.client.xlen(harness.shard.dead) == 0


async def test_resumed_while_parked_stays_parked(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    await harness.scopes.pause(BOX, "")
    await worker.do(lease, park("c1"))
    assert await harness.scopes.resume(BOX)
    await _stopped(harness)
    (letter,) = [letter async for letter in harness.dead_letters.all()]
    await harness.dead_letters.settle(letter, "discard", left("c1"))
    assert await harness.nothing_of(BOX)


@pytest.mark.parametrize("state", ["ready", "delivered", "held", "waiting", "paused", "parked"])
async def test_a_purge_leaves_the_running_command_alone_and_nothing_else(
    harness: TransportHarness, worker: ManualWorker, state: str
) -> None:
    await harness.put(BOX, "c1", "c2")
    await harness.put(BOX, "d1", delay_ms=60_000)
    lease = None
    if state != "ready":
        lease = await worker.read_one()
    if state not in ("ready", "delivered"):
        assert lease is not None
        await worker.do(lease, TAKE)
    if state == "waiting":
        await worker.do(lease, Retry(60_000))  # type: ignore[arg-type]
    if state == "parked":
        await worker.do(lease, park("c1"))  # type: ignore[arg-type]
    if state == "paused":
        await harness.scopes.pause(BOX, "")
        await worker.do(lease, GiveBack(counts=False))  # type: ignore[arg-type]
        assert await worker.do(await worker.read_one(), TAKE) == Released("stop")
    removed = 0
    async for page in harness.mailboxes.waiting(BOX):
        removed += await harness.mailboxes.remove(
            BOX, [removal(command, left(command.envelope.decode(), inbox="p")) for command in page]
        )
    assert removed == (2 if state == "held" else 3)
    if state == "held":
        assert lease is not None
        assert await worker.do(lease, done("c1")) == Released("idle")
    assert await harness.nothing_of(BOX)
    assert (await harness.counters())["depth"] == 0
    assert len(await harness.client.lrange(harness.shard.inbox("p"), 0, -1)) == removed  # type: ignore[misc]
    keys = set(await harness.everything())
    assert not {harness.shard.due, harness.shard.delayed, harness.shard.delayed_counts, harness.shard.parked} & keys
    assert await harness.client.xlen(harness.shard.dead) == 0
    if state == "delivered":
        assert lease is not None
        assert await worker.do(lease, TAKE) == LeaseLost()


@pytest.mark.parametrize("state", ["waiting", "parked"])
async def test_removing_the_head_frees_its_followers(harness: TransportHarness, worker: ManualWorker, state: str) -> None:
    await harness.put(BOX, "c1", "c2")
    lease, _ = await worker.start()
    await worker.do(lease, Retry(60_000) if state == "waiting" else park("c1"))
    page = [page async for page in harness.mailboxes.waiting(BOX)][0]  # noqa: RUF015 - there is no async next()
    assert await harness.mailboxes.remove(BOX, [removal(page[0], left("c1"))]) == 1
    _, started = await worker.start()
    assert (started.envelope, started.attempt) == (b"c2", 1)
