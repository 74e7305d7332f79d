"""The core on a transport without Redis: the promises, as the author of a transport runs them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from command_bus import CommandBus, EntitiesStopped
from command_bus.session import TransportOpener
from command_bus.testing.conformance.fixtures import PromiseSandbox
from command_bus.testing.conformance.messages import Log, Work
from command_bus.testing.conformance.suite import test_promise
from tests.conformance.list_server import ListLine, ListServer
from tests.conformance.list_transport import lists

__all__ = ["test_promise"]


@pytest.fixture
def command_bus_sandbox() -> PromiseSandbox:
    server = ListServer()

    def open_severable() -> tuple[TransportOpener, ListLine]:
        line = ListLine()
        return lists(server, line), line

    return PromiseSandbox(open_transport=lists(server), open_severable=open_severable)


@asynccontextmanager
async def _working() -> AsyncGenerator[tuple[PromiseSandbox, CommandBus]]:
    sandbox = PromiseSandbox(open_transport=lists(ListServer()))
    async with sandbox.working() as bus:
        yield sandbox, bus


async def test_operators_see_and_move_entities() -> None:
    async with _working() as (sandbox, bus):
        log = Log(sandbox.registry)
        await bus.entity("item", "a").pause("inventory")
        await bus.dispatch(Work(item="a", number=1))
        with pytest.raises(EntitiesStopped):
            await bus.wait_idle(5)
        [entity] = (await bus.entities.list()).entities
        assert (entity.name, entity.state, entity.depth) == ("item:a", "paused", 1)
        shown = (await bus.entity("item", "a").show()).entity
        assert replace(shown, age=entity.age) == entity, "they may be a millisecond apart"
        assert [each.name for each in await bus.entities.types()] == ["item"]
        await bus.entity("item", "a").resume()
        await bus.wait_idle(5)
        assert log.of("a") == [1]
        [worker] = await bus.fleet.workers()
        assert (worker.alive, worker.commands) == (True, tuple(sandbox.registry.names()))
