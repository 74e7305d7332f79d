"""Many workers and a few entities in retry: what is due is seen to by one worker of them, on time, and the others do not ask again and again."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
import redis

from command_bus import Command, CommandBus, EntityId, HandlerRegistry, RetryPolicy
from command_bus.embedded import EmbeddedServer
from tests.conformance.put_service import until

pytestmark = [pytest.mark.server]
DELAY = 0.2


class Fail(Command[None], entity="f", retry=RetryPolicy(attempts=10_000, delay=DELAY, backoff="fixed", jitter=0.5)):
    id: EntityId


@pytest.mark.parametrize(("workers", "looks"), [(1, 4.0), (8, 8.0)])
async def test_a_retry_does_not_wake_the_whole_fleet(workers: int, looks: float, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "command_bus")
    registry = HandlerRegistry()
    tries: list[float] = []
    last: dict[str, float] = {}
    waits: list[float] = []

    @registry.handles(Fail)
    async def fail(command: Fail) -> None:
        now = time.monotonic()
        tries.append(now)
        if command.id in last:
            waits.append(now - last[str(command.id)])
        last[str(command.id)] = now
        raise RuntimeError

    with EmbeddedServer.start() as server:
        meter = redis.Redis.from_url(server.url)
        async with CommandBus(server.url, registry=registry) as bus:
            fleet = [bus.worker(grace=0.0) for _ in range(workers)]
            for worker in fleet:
                await worker.start()
            await bus.dispatch_batch(Fail(id=f"e{number}") for number in range(20))
            await until(lambda: len(tries) > 200)
            meter.config_resetstat()
            begun, at = len(tries), time.monotonic()
            await until(lambda: len(tries) > begun + 200)
            seconds = time.monotonic() - at
            stats: Any = meter.info("commandstats")
            for worker in fleet:
                await worker.stop()
    calls = {name: stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("zrange", "xpending")}
    assert calls["zrange"] / 200 < looks, "one in each step that retries and in each that promotes, and the looks before"
    assert calls["xpending"] < 4 * workers * (seconds + 1), "leases are looked at in a time of their own"
    waits.sort()
    assert waits[len(waits) // 2] < DELAY * 1.5 + 0.1
