"""The steps of pause, drain and resume, for an entity, a type and the whole bus."""

from __future__ import annotations

from typing import Any

import pytest

from command_bus.transport.mailboxes import EVERYTHING
from command_bus.transport.redis.scripts import REACTIVATE
from command_bus.transport.steps import Released, Retry, Started
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, done

SCOPES = {"entity": "box:a", "type": "box:*", "bus": EVERYTHING}


each_scope = pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES.keys())


@each_scope
async def test_a_pause_holds_new_commands_and_resume_starts_them_once(
    harness: TransportHarness, worker: ManualWorker, scope: str
) -> None:
    assert await harness.scopes.pause(scope, "why")
    assert not await harness.scopes.pause(scope, "why")
    await harness.put("box:a", "c1", "c2")
    assert await harness.activations() == []
    assert await harness.scopes.resume(scope)
    assert not await harness.scopes.resume(scope)
    assert await harness.activations() == ["box:a"]
    lease, started = await worker.start()
    assert started.envelope == b"c1"
    following = await worker.do(lease, done("c1"))
    assert isinstance(following, Started)
    assert following.envelope == b"c2"
    assert await worker.do(lease, done("c2")) == Released("idle")
    assert await harness.nothing_of("box:a")


@each_scope
async def test_a_pause_stops_ready_retried_and_running_entities(
    harness: TransportHarness, worker: ManualWorker, scope: str
) -> None:
    await harness.put("box:a", "c1", "c2", "c3")
    lease, _ = await worker.start()
    await harness.scopes.pause(scope, "")
    assert await worker.do(lease, done("c1")) == Released("stop")
    await harness.scopes.resume(scope)
    lease = await worker.read_one()
    await harness.scopes.pause(scope, "")
    assert await worker.do(lease, TAKE) == Released("stop")
    await harness.scopes.resume(scope)
    lease, started = await worker.start()
    assert started.envelope == b"c2"
    await worker.do(lease, Retry(0))
    await harness.scopes.pause(scope, "")
    await harness.promote(worker)
    assert await harness.activations() == []
    await harness.scopes.resume(scope)
    _, started = await worker.start()
    assert (started.envelope, started.attempt) == (b"c2", 2)


@each_scope
async def test_a_drain_refuses_new_commands_and_starts_waiting_ones(
    harness: TransportHarness, worker: ManualWorker, scope: str
) -> None:
    await harness.put("box:a", "c1")
    await harness.scopes.pause(scope, "")
    await worker.do(await worker.read_one(), TAKE)
    assert await harness.activations() == []
    assert await harness.scopes.drain(scope, "")
    assert not await harness.scopes.drain(scope, "")
    assert await harness.activations() == ["box:a"]
    assert [outcome.value for outcome in await harness.put("box:a", "c2", "c1", "c3")] == ["d", "=", "d"]
    lease, started = await worker.start()
    assert started.envelope == b"c1"
    assert await worker.do(lease, done("c1")) == Released("idle")
    assert [outcome.value for outcome in await harness.put("box:a", "c2")] == ["d"]
    assert await harness.nothing_of("box:a")
    assert await harness.scopes.resume(scope)
    assert [outcome.value for outcome in await harness.put("box:a", "c2")] == ["+"]


async def test_each_scope_is_held_for_itself(harness: TransportHarness, worker: ManualWorker) -> None:
    for scope in SCOPES.values():
        await harness.scopes.pause(scope, "")
    await harness.put("box:a", "a1")
    await harness.put("box:b", "b1")
    await harness.put("bow:b", "c1")
    assert await harness.activations() == []
    await harness.scopes.resume(EVERYTHING)
    assert await harness.activations() == ["bow:b"]
    await harness.scopes.resume("box:*")
    assert await harness.activations() == ["bow:b", "box:b"]
    await harness.scopes.resume("box:a")
    assert await harness.activations() == ["bow:b", "box:b", "box:a"]


async def test_repair_wakes_entities_of_an_interrupted_resume(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.scopes.pause("box:*", "")
    await harness.scopes.pause("box:b", "")
    await harness.put("box:a", "a1")
    await harness.put("box:b", "b1")
    await harness.client.hdel(harness.shard.paused, "box:*")  # type: ignore[misc]
    names = ["box:a", "box:b"]
    run: Any = harness.connections.run
    keys = [harness.shard.ready, harness.shard.active, harness.shard.paused, harness.shard.parked, *harness.shard.fair]
    assert await run(REACTIVATE, keys, ["workers", *names]) == 1
    assert await run(REACTIVATE, keys, ["workers", *names]) == 0
    assert await harness.activations() == ["box:a"]
    _, started = await worker.start()
    assert (started.envelope, started.attempt) == (b"a1", 1)


async def test_a_pause_of_an_earlier_version_holds(harness: TransportHarness) -> None:
    await harness.client.hset(harness.shard.paused, "box:a", "why")  # type: ignore[misc]
    await harness.put("box:a", "c1")
    assert await harness.activations() == []
    assert await harness.scopes.resume("box:a")
    assert await harness.activations() == ["box:a"]
