"""Moments of a worker that an observer is called at: it is drained, it begins to stop, it has stopped."""

from __future__ import annotations

import asyncio
import logging

import pytest

from command_bus import Command, EntityId, Observer
from command_bus.errors import BadState
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.maintenance.periodic import Periodic
from command_bus.transport.redis.memory import MemoryClients
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until

pytestmark = pytest.mark.server


class Work(Command[None], entity="bench"):
    bench: EntityId
    seconds: float = 0.0


class Moments(Observer):
    """Notes the moments of workers."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def worker_changed(self, worker: str, state: str) -> None:
        self.seen.append(f"{state} {worker}")


@pytest.mark.parametrize("shards", [1, 3])
async def test_an_observer_is_called_at_the_moments_of_a_worker(sandbox: Sandbox, shards: int) -> None:
    done: list[str] = []
    moments = Moments()

    @sandbox.registry.handles(Work)
    async def work(command: Work) -> None:
        await asyncio.sleep(command.seconds)
        done.append(command.bench)
        assert not moments.seen or len(done) > 6, "not drained while something runs"

    async with sandbox.bus(observer=moments, shards=shards) as bus:
        async with bus.worker() as worker:
            await asyncio.sleep(2.5)
            assert moments.seen == [], "it had no work yet"
            await bus.dispatch_batch([Work(bench=f"b{number}") for number in range(5)] + [Work(bench="slow", seconds=2.5)])
            await until(lambda: bool(moments.seen), 20)
            assert len(done) == 6
            await asyncio.sleep(2.5)
            assert moments.seen == [f"drained {worker.name}"], "once"
            await bus.dispatch(Work(bench="b1"))
            await until(lambda: len(moments.seen) == 2, 20)
        assert moments.seen[2:] == [f"closing {worker.name}", f"closed {worker.name}"]


async def test_an_observer_that_raises_keeps_no_worker_from_its_end(sandbox: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    class Raising(Observer):
        def worker_changed(self, worker: str, state: str) -> None:
            raise RuntimeError(state)

    done: list[str] = []

    @sandbox.registry.handles(Work)
    async def work(command: Work) -> None:
        done.append(command.bench)

    async with sandbox.bus(observer=Raising()) as bus:
        worker = bus.worker()
        async with worker:
            await bus.dispatch(Work(bench="a"))
            await until(lambda: any("drained" in each.getMessage() for each in caplog.records), 20)
            await bus.dispatch(Work(bench="b"))
            await bus.wait_idle(10)
        assert worker.finishing() is False
    assert done == ["a", "b"]
    assert sum("the observer failed" in each.getMessage() for each in caplog.records) >= 3


async def test_a_job_that_fails_again_and_again_is_critical_once(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Periodic):
        name = "failing job"
        turns = 0

        async def turn(self) -> float:
            self.turns += 1
            if self.turns > 9:
                return 60.0
            raise BadState("odd")

    space = KeySpace("n", 1)
    job = Failing(Connections(MemoryClients()), space, space.shards[0])
    with caplog.at_level(logging.CRITICAL, "command_bus.worker"):
        task = job.start()
        async with asyncio.timeout(20):
            while job.turns < 10:
                await asyncio.sleep(0.01)
        task.cancel()
    assert [each.getMessage() for each in caplog.records] == [
        f"{space.shards[0].prefix} failing job has failed 5 times in a row, and goes on: odd"
    ]
