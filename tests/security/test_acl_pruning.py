"""Workers delete dead letters by age and number only with the right for it; without it they do everything else."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from command_bus import Command, CommandBus, EntityId, HandlerRegistry, QueueFull, RetryPolicy
from tests.conformance.conftest import Starter
from tests.conformance.put_service import until
from tests.security.acl_users import made

pytestmark = pytest.mark.server


class Fails(Command[None], entity="line", retry=RetryPolicy(attempts=1)):
    line: EntityId


@pytest.fixture
def registry() -> HandlerRegistry:
    handlers = HandlerRegistry()

    @handlers.handles(Fails)
    async def fails(command: Fails) -> None:
        raise RuntimeError("it always does")

    return handlers


@pytest.mark.parametrize("prunes", [True, False])
async def test_a_worker_prunes_if_it_may(
    binary: Path,
    start: Starter,
    registry: HandlerRegistry,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    prunes: bool,
) -> None:
    caplog.set_level(logging.WARNING, "command_bus.worker")
    monkeypatch.setattr("command_bus.transport.redis.maintenance.upkeep._LONGEST_PAUSE", 0.05)
    async with made(start(tcp=True, binary=binary), selectors=True, prunes=prunes) as place:
        bus = CommandBus(place.url("worker"), namespace="shop", registry=registry, max_dead_letters=1)
        async with bus, bus.worker():
            for number in range(3):
                await bus.dispatch(Fails(line=f"{number}"))
            await bus.wait_idle(timeout=20)

            async def settled() -> bool:
                told = any("prunes=True" in record.getMessage() for record in caplog.records)
                return told != prunes and (await bus.stats()).dead_letters == (1 if prunes else 3)

            await until(settled)


async def test_a_producer_may_count_entities(binary: Path, start: Starter, registry: HandlerRegistry) -> None:
    async with made(start(tcp=True, binary=binary), selectors=True) as place:
        worker = CommandBus(place.url("worker"), namespace="shop", registry=registry)
        async with worker, CommandBus(place.url("producer"), namespace="shop", registry=registry, max_entities=1) as bus:
            async with worker.worker():  # it loads the scripts
                pass
            await bus.dispatch(Fails(line="a"))
            with pytest.raises(QueueFull, match="max_entities"):
                await bus.dispatch(Fails(line="b"))
