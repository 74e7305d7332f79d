"""Scripts, workers and activations that the server has lost are loaded, forgotten or repaired."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus.transport.redis.keys import GROUP
from command_bus.transport.redis.scripts import REACTIVATE, REMOVE_WORKER
from command_bus.transport.steps import LeaseLost, Released, Retry, Started
from command_bus.transport.submissions import Admission
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, bury, done, left, removal

BOX = "box:a"


@pytest.mark.promise("The script cache is lost")
async def test_scripts_are_loaded_again_when_the_server_forgot_them(harness: TransportHarness, worker: ManualWorker) -> None:
    async def forget() -> None:
        await harness.client.script_flush()

    await forget()
    assert await harness.put(BOX, "c1", "c2", "c3") == [Admission.ACCEPTED] * 3
    await forget()
    lease, _ = await worker.start()
    await forget()
    await worker.do(lease, Retry(0))
    await forget()
    await harness.promote(worker)
    lease = await worker.read_one()
    await forget()
    assert await harness.scopes.pause(BOX, "")
    await worker.do(lease, TAKE)
    await forget()
    assert await harness.scopes.resume(BOX)
    lease, _ = await worker.start()
    await forget()
    assert isinstance(await worker.do(lease, bury("c1")), Started)
    (letter,) = [letter async for letter in harness.dead_letters.all()]
    await forget()
    assert await harness.dead_letters.settle(letter, "replay", left("c1"))
    waiting = [page async for page in harness.mailboxes.waiting(BOX)][0]  # noqa: RUF015 - there is no async next()
    await forget()
    assert await harness.mailboxes.remove(BOX, [removal(waiting[1], left("c3"))]) == 1
    await forget()
    assert isinstance(await worker.do(lease, done("c2")), Started)
    assert await worker.do(lease, done("c1")) == Released("idle")
    await forget()
    assert await harness.connections.run(REMOVE_WORKER, [harness.shard.ready, harness.shard.workers], [GROUP, worker.owner]) == 1
    assert await harness.nothing_of(BOX)


async def test_a_worker_that_holds_something_is_not_forgotten(harness: TransportHarness, worker: ManualWorker) -> None:
    async def forget() -> Any:
        return await harness.connections.run(REMOVE_WORKER, [harness.shard.ready, harness.shard.workers], [GROUP, worker.owner])

    await harness.client.hset(harness.shard.workers, worker.owner, "here")  # type: ignore[misc]
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    assert await forget() == 0
    assert await harness.client.hexists(harness.shard.workers, worker.owner)  # type: ignore[misc]
    await worker.do(lease, done("c1"))
    assert await forget() == 1
    assert await forget() == 1
    assert not await harness.client.hexists(harness.shard.workers, worker.owner)  # type: ignore[misc]


async def test_a_lost_worker_is_listed_for_an_hour(
    harness: TransportHarness, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def swept() -> bool:
        await harness.recovery(harness.worker("w2"), lease=0.01).upkeep[0].turn()
        return not await harness.client.hexists(harness.shard.workers, worker.owner)  # type: ignore[misc]

    await harness.client.hset(harness.shard.workers, worker.owner, "here")  # type: ignore[misc]
    await harness.put(BOX, "c1")
    lease = await worker.read_one()
    await asyncio.sleep(0.2)
    monkeypatch.setattr("command_bus.transport.redis.maintenance.upkeep._SHOWN", 0.1)
    assert not await swept()  # it holds something
    await worker.do(lease, TAKE)
    await worker.do(lease, done("c1"))
    await asyncio.sleep(0.2)
    monkeypatch.undo()
    assert not await swept()
    monkeypatch.setattr("command_bus.transport.redis.maintenance.upkeep._SHOWN", 0.1)
    assert await swept()


async def test_repair_gives_lost_activations_back_and_only_those(harness: TransportHarness, worker: ManualWorker) -> None:
    for box in ("box:ready", "box:held", "box:waiting", "box:stopped", "box:fine"):
        await harness.put(box, f"{box}1", f"{box}2")
    await harness.scopes.pause("box:stopped", "")
    leases = {lease.mailbox: lease for lease in await worker.read()}
    for box in ("box:held", "box:waiting", "box:stopped"):
        await worker.do(leases[box], TAKE)
    await worker.do(leases["box:waiting"], Retry(60_000))
    for box in ("box:ready", "box:held"):
        await harness.client.xdel(harness.shard.ready, leases[box].activation)
    names = [name.decode() for name in await harness.client.hkeys(harness.shard.active)]  # type: ignore[misc]
    run: Any = harness.connections.run
    assert (
        await run(
            REACTIVATE,
            [harness.shard.ready, harness.shard.active, harness.shard.paused, harness.shard.parked, *harness.shard.fair],
            [GROUP, *names],
        )
        == 2
    )
    assert (
        await run(
            REACTIVATE,
            [harness.shard.ready, harness.shard.active, harness.shard.paused, harness.shard.parked, *harness.shard.fair],
            [GROUP, *names],
        )
        == 0
    )
    assert sorted(await harness.activations()) == ["box:fine", "box:held", "box:ready"]
    other = harness.worker("w2")
    again = {lease.mailbox: lease for lease in await other.read()}
    assert isinstance(await other.do(again["box:ready"], TAKE), Started)
    assert await other.do(again["box:held"], TAKE) == LeaseLost(), "it was started: that is for the recovery to decide"
    assert await worker.do(leases["box:held"], done("box:held1")) == LeaseLost(), "and not by its old holder"
