"""Several shards share the slots of a worker: none is read for nothing, none starves, and an idle worker hears of each at once."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from command_bus import Command, CommandBus, EntityId
from command_bus.transport.redis.worker.consumer import ConsumerLoop, Delivery
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until

SHARDS = 8


class Work(Command[int], entity="line"):
    line: EntityId


class Log:
    """A handler that takes a moment, and what it did."""

    def __init__(self, sandbox: Sandbox, seconds: float) -> None:
        self.ran: list[str] = []
        self.most = self.running = 0

        @sandbox.registry.handles(Work)
        async def work(command: Work) -> int:
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(seconds)
            self.running -= 1
            self.ran.append(str(command.line))
            return 1


@pytest.fixture
def handed_back(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the mailboxes whose activations were read without a slot for them."""
    found: list[str] = []
    really = ConsumerLoop.hand_back

    def counted(loop: ConsumerLoop, shard: int, deliveries: list[Delivery]) -> list[str]:
        found.extend(str(each.mailbox) for each in deliveries)
        return really(loop, shard, deliveries)

    monkeypatch.setattr(ConsumerLoop, "hand_back", counted)
    return found


def shard_of(bus: CommandBus, line: str) -> int:
    return bus.session.redis.keys.shard_of(f"line:{line}")


async def test_a_saturated_worker_reads_nothing_that_it_cannot_run(sandbox: Sandbox, handed_back: list[str]) -> None:
    log = Log(sandbox, 0.003)
    async with sandbox.bus(shards=SHARDS) as bus:
        await bus.dispatch_batch(Work(line=f"l{number}") for number in range(200))
        async with bus.worker(concurrency=4):
            await until(lambda: len(log.ran) == 200, 20)
            assert handed_back == []
            await bus.wait_idle(5)
    assert sorted(log.ran) == sorted(f"l{number}" for number in range(200))
    assert log.most == 4


async def test_a_shard_with_much_work_does_not_starve_the_others(sandbox: Sandbox) -> None:
    log = Log(sandbox, 0.02)
    async with sandbox.bus(shards=SHARDS) as bus, bus.worker(concurrency=2):
        await asyncio.sleep(0)
        names = [f"l{number}" for number in range(2000)]
        much = [name for name in names if shard_of(bus, name) == 0][:200]
        await bus.dispatch_batch(Work(line=name) for name in much)
        await until(lambda: log.ran)
        rest = [next(name for name in names if shard_of(bus, name) == shard) for shard in range(1, SHARDS)]
        await bus.dispatch_batch(Work(line=name) for name in rest)
        await until(lambda: set(rest) <= set(log.ran))
        assert len(log.ran) < 150, "long before the shard's work was done"
        await bus.wait_idle(20)
    assert log.most == 2


async def test_the_only_shard_with_work_has_all_the_slots(sandbox: Sandbox) -> None:
    log = Log(sandbox, 0.05)
    async with sandbox.bus(shards=SHARDS) as bus, bus.worker(concurrency=10):
        await asyncio.sleep(0.1)  # its readers wait for work, each at its shard
        lines = [f"l{number}" for number in range(1000) if shard_of(bus, f"l{number}") == 3][:60]
        await bus.dispatch_batch(Work(line=line) for line in lines)
        await bus.wait_idle(20)
    assert log.most == 10


@pytest.mark.parametrize("concurrency", [1, 100])
async def test_an_idle_worker_hears_of_every_shard_at_once(sandbox: Sandbox, concurrency: int) -> None:
    log = Log(sandbox, 0.0)
    async with sandbox.bus(shards=SHARDS) as bus, bus.worker(concurrency=concurrency):
        lines: dict[int, Any] = {shard_of(bus, f"l{number}"): f"l{number}" for number in range(200)}
        assert len(lines) == SHARDS
        await bus.call(Work(line="warm"), timeout=5)
        for shard in range(SHARDS):
            began = time.monotonic()
            await bus.call(Work(line=lines[shard]), timeout=5)
            assert time.monotonic() - began < 1.0
    assert len(log.ran) == SHARDS + 1
