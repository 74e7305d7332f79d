"""The core on a transport without Redis, by the promises that need no fault of a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from command_bus import CommandBus, EntitiesStopped
from command_bus.testing.conformance.fixtures import PromiseSandbox
from command_bus.testing.conformance.messages import Log, Work
from command_bus.testing.conformance.promises import PROMISES, Promise
from tests.conformance.list_server import ListServer
from tests.conformance.list_transport import lists

NEED_A_LOST_WORKER = {"a_lost_worker_is_succeeded", "at_most_once_never_starts_again", "a_lost_holder_changes_nothing"}
"""A worker cannot be cut off from lists in its own process."""
CHOSEN = [promise for promise in PROMISES if promise.__name__ not in NEED_A_LOST_WORKER]


def on_lists() -> PromiseSandbox:
    return PromiseSandbox(open_transport=lists(ListServer()))


@pytest.mark.parametrize("promise", CHOSEN, ids=lambda promise: promise.__name__)
def test_promise(promise: Promise) -> None:
    asyncio.run(promise(on_lists()))


def test_every_promise_is_kept_or_named() -> None:
    assert {promise.__name__ for promise in PROMISES} >= NEED_A_LOST_WORKER
    assert len(CHOSEN) == len(PROMISES) - len(NEED_A_LOST_WORKER)


@asynccontextmanager
async def _working() -> AsyncGenerator[tuple[PromiseSandbox, CommandBus]]:
    sandbox = on_lists()
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
        assert (await bus.entity("item", "a").show()).entity == entity
        assert [each.name for each in await bus.entities.types()] == ["item"]
        await bus.entity("item", "a").resume()
        await bus.wait_idle(5)
        assert log.of("a") == [1]
        [worker] = await bus.fleet.workers()
        assert (worker.alive, worker.commands) == (True, tuple(sandbox.registry.names()))
