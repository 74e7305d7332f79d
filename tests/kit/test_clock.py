"""The server's clock goes back, by an hour: what is lost is taken over, and what is due is run, as if it had not."""

from __future__ import annotations

import asyncio
import time

import pytest

from command_bus import Command, EntityId, RetryPolicy
from command_bus.testing.simulated.live import LiveServer, Process
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import TransportHarness
from tests.conformance.put_service import until

HOUR = 3600.0


class Work(Command[int], entity="line", retry=RetryPolicy(attempts=3, delay=1.0, jitter=0.0)):
    line: EntityId
    fails: bool = False


@pytest.fixture
async def server() -> LiveServer:
    return LiveServer(time.monotonic)


@pytest.fixture
def sandbox(server: LiveServer) -> Sandbox:
    return Sandbox("memory", Process(server))


@pytest.fixture
def runs(sandbox: Sandbox) -> list[float]:
    found: list[float] = []

    @sandbox.registry.handles(Work)
    async def work(command: Work) -> int:
        found.append(time.monotonic())
        if command.fails and len(found) == 1:
            raise RuntimeError
        return 1

    return found


@pytest.mark.parametrize("before", [True, False], ids=["before anybody looks", "while it is watched"])
async def test_a_lost_lease_ends_in_its_time(sandbox: Sandbox, server: LiveServer, runs: list[float], before: bool) -> None:
    async with sandbox.bus(lease=1.0) as bus:
        await bus.dispatch(Work(line="a"))
        ghost = TransportHarness(sandbox.clients, sandbox.namespace).worker("ghost")
        await ghost.start()
        began = time.monotonic()
        if before:
            server.jump(-HOUR)
        async with bus.worker():
            await asyncio.sleep(0.7)
            if not before:
                server.jump(-HOUR)
            await until(lambda: runs)
            await bus.wait_idle(5)
        assert 0.9 <= runs[0] - began < 4.0
        await ghost.steps.close(1)


@pytest.mark.promise("The server's clock goes back")
async def test_a_living_owner_keeps_its_lease(sandbox: Sandbox, server: LiveServer) -> None:
    gate, ran = asyncio.Event(), []

    @sandbox.registry.handles(Work)
    async def work(command: Work) -> int:
        ran.append(command.line)
        await gate.wait()
        return 1

    async with sandbox.bus(lease=0.6) as bus, bus.worker(), bus.worker():
        await bus.dispatch(Work(line="a"))
        await until(lambda: ran)
        for _ in range(4):
            server.jump(-HOUR)
            await asyncio.sleep(0.7)
        gate.set()
        await bus.wait_idle(5)
    assert ran == ["a"]


@pytest.mark.promise("The server's clock goes back")
async def test_a_retry_waits_no_longer_than_its_delay(sandbox: Sandbox, server: LiveServer, runs: list[float]) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Work(line="a", fails=True))
        await until(lambda: runs)
        await asyncio.sleep(0.3)
        server.jump(-HOUR)
        await bus.wait_idle(5)
    assert 0.9 <= runs[1] - runs[0] < 2.0


@pytest.mark.promise("The server's clock goes back")
async def test_a_delayed_command_waits_no_longer_than_its_delay(sandbox: Sandbox, server: LiveServer, runs: list[float]) -> None:
    async with sandbox.bus() as bus, bus.worker():
        began = time.monotonic()
        await bus.dispatch(Work(line="a"), delay=1.0)
        await asyncio.sleep(0.3)
        server.jump(-HOUR)
        await bus.wait_idle(5)
    assert 0.9 <= runs[0] - began < 2.0
