"""One worker is paused, resumed and resized while it runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import Command, EntityId, HandlerRegistry, InvalidSettings
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until


class Step(Command[None], entity="job"):
    job: EntityId
    number: int


class Floor:
    """Handlers that note what they start, and wait for a gate."""

    def __init__(self, registry: HandlerRegistry) -> None:
        self.started: list[tuple[str, int]] = []
        self.running = 0
        self.most = 0
        self.gate = asyncio.Event()
        registry.handles(Step)(self.step)

    async def step(self, command: Step) -> None:
        self.started.append((str(command.job), command.number))
        self.running += 1
        self.most = max(self.most, self.running)
        await self.gate.wait()
        self.running -= 1


@pytest.fixture
def floor(sandbox: Sandbox) -> Floor:
    return Floor(sandbox.registry)


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_paused_worker_takes_nothing_until_it_goes_on(sandbox: Sandbox, floor: Floor, shards: int) -> None:
    floor.gate.set()
    async with sandbox.bus(shards=shards) as bus, bus.worker() as worker:
        await bus.dispatch(Step(job="a", number=0))
        await until(lambda: floor.started)
        worker.pause()
        worker.pause()
        assert worker.paused
        for number in range(1, 6):
            await bus.dispatch(Step(job=f"b{number}", number=number))
        await asyncio.sleep(0.3)
        assert floor.started == [("a", 0)]
        assert (await bus.stats()).depth == 5
        assert worker.silent_for < 5
        worker.resume()
        await bus.wait_idle(timeout=20)
        assert not worker.paused
        assert len(floor.started) == 6


@pytest.mark.promise("A worker is paused")
async def test_what_a_read_under_way_brings_is_given_back(sandbox: Sandbox, floor: Floor) -> None:
    floor.gate.set()
    async with sandbox.bus() as bus, bus.worker() as worker:
        await bus.dispatch(Step(job="a", number=0))
        await bus.wait_idle(timeout=20)  # its reader waits for more now
        worker.pause()
        for number in range(1, 4):
            await bus.dispatch(Step(job="b", number=number))
        await asyncio.sleep(0.3)
        assert floor.started == [("a", 0)]
        async with bus.worker():
            await bus.wait_idle(timeout=20)
        assert floor.started == [("a", 0), ("b", 1), ("b", 2), ("b", 3)]
        assert (await bus.stats()).retried == 0


@pytest.mark.promise("A worker is paused")
async def test_the_entity_of_a_paused_worker_goes_on_elsewhere(sandbox: Sandbox, floor: Floor) -> None:
    async with sandbox.bus() as bus, bus.worker() as worker:
        for number in range(3):
            await bus.dispatch(Step(job="a", number=number))
        await until(lambda: floor.started)
        worker.pause()
        assert floor.running == 1, "what runs goes on"
        floor.gate.set()
        await until(lambda: worker.running == 0)
        assert floor.started == [("a", 0)]
        async with bus.worker():
            await bus.wait_idle(timeout=20)
        assert floor.started == [("a", 0), ("a", 1), ("a", 2)]


async def test_a_worker_may_be_paused_before_it_starts(sandbox: Sandbox, floor: Floor) -> None:
    floor.gate.set()
    async with sandbox.bus() as bus:
        worker = bus.worker()
        worker.pause()
        await bus.dispatch(Step(job="a", number=0))
        async with worker:
            await asyncio.sleep(0.2)
            assert not floor.started
            found: list[Any] = []

            async def shown() -> bool:
                found[:] = await bus.fleet.workers()
                return bool(found)

            await until(shown)
            assert [each.paused for each in found] == [True]
            worker.resume()
            await bus.wait_idle(timeout=20)


async def test_concurrency_is_changed_while_it_runs(sandbox: Sandbox, floor: Floor) -> None:
    async with sandbox.bus(concurrency=2) as bus, bus.worker() as worker:
        for number in range(12):
            await bus.dispatch(Step(job=f"j{number}", number=number))
        await until(lambda: floor.running == 2)
        worker.concurrency = 5
        await until(lambda: floor.running == 5)
        assert worker.info().concurrency == worker.concurrency == 5
        worker.concurrency = 1
        assert floor.running == 5, "none is ended"
        floor.gate.set()
        await bus.wait_idle(timeout=20)
        assert floor.most == 5
        floor.gate.clear()
        for number in range(3):
            await bus.dispatch(Step(job=f"k{number}", number=number))
        await until(lambda: floor.running == 1)
        await asyncio.sleep(0.2)
        assert floor.running == 1
        floor.gate.set()


async def test_92_a_wrong_number_is_refused(sandbox: Sandbox, floor: Floor) -> None:
    async with sandbox.bus(concurrency=3) as bus:
        worker = bus.worker()
        for wrong in (0, -1, 100_001, "many", 1.5):
            with pytest.raises(InvalidSettings, match="concurrency"):
                worker.concurrency = wrong  # type: ignore[assignment]
        assert worker.concurrency == 3
        worker.concurrency = 4
        assert worker.concurrency == 4
