"""States that are kept no longer are deleted by workers, unless a command of their entity runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import Command, EntityId, EntityState, HandlerRegistry
from command_bus.transport.redis.maintenance.upkeep import Upkeep
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import side_of

pytestmark = pytest.mark.server


class Session(EntityState, entity="session", keep="0.2 s"):
    hits: int = 0


class Lasting(EntityState, entity="lasting"):
    hits: int = 0


class Hit(Command[int], entity="session"):
    session: EntityId
    wait: float = 0.0


async def test_workers_delete_what_is_over(sandbox: Sandbox) -> None:
    registry = HandlerRegistry()

    @registry.handles(Hit)
    async def hit(command: Hit, session: Session) -> int:
        session.hits += 1
        await asyncio.sleep(command.wait)
        return session.hits

    async with sandbox.bus(registry=registry) as bus, bus.worker() as worker:
        for number in range(300):
            await bus.states.put(str(number), Session(hits=number))
        await bus.states.put("a", Lasting(hits=1))
        assert await bus.call(Hit(session="busy")) == 1
        receipt = await bus.dispatch(Hit(session="busy", wait=1.5), keep_result=True)
        await asyncio.sleep(0.5)
        key, client = f"{{{sandbox.namespace}:0}}:states", sandbox.client()
        upkeep: Upkeep = side_of(worker)._maintenance.upkeep[0]
        for _ in range(20):
            assert upkeep.over is not None
            await upkeep._delete_states(upkeep.over)
        left: Any = await client.hkeys(key)  # type: ignore[misc]
        assert sorted(left) == [b"lasting:a", b"session:busy"], "what a handler has read stays until its end"
        assert await receipt.result(timeout=10) == 2
        await client.aclose()


async def test_without_an_end_nothing_is_looked_at(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus, bus.worker() as worker:
        assert all(each.over is None for each in side_of(worker)._maintenance.upkeep)
