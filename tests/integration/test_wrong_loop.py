"""A bus belongs to the event loop that opened it: elsewhere it says so, and what to do, before anything is sent."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from command_bus import Command, CommandBus, EntityId, HandlerRegistry, WrongEventLoop


class Move(Command[None], entity="box"):
    box: EntityId


USES: dict[str, Callable[[CommandBus], Awaitable[Any]]] = {
    "dispatch": lambda bus: bus.dispatch(Move(box="a")),
    "dispatch with an id": lambda bus: bus.dispatch(Move(box="a"), command_id="c-1"),
    "batch": lambda bus: bus.dispatch_batch([Move(box="a")]),
    "call": lambda bus: bus.call(Move(box="a"), timeout=1),
    "result": lambda bus: bus.result("c-1"),
    "stats": lambda bus: bus.stats(),
    "depth": lambda bus: bus.entity("box", "a").depth(),
    "pause": lambda bus: bus.entities.pause("box"),
    "open": lambda bus: bus.open(),
    "worker": lambda bus: bus.worker().start(),
    "letters": lambda bus: anext(aiter(bus.dead_letters.list())),
}


def _bus() -> CommandBus:
    return CommandBus.in_memory(registry=HandlerRegistry())


async def _refused(bus: CommandBus, use: str) -> WrongEventLoop:
    with pytest.raises(WrongEventLoop) as refusal:
        await USES[use](bus)
    return refusal.value


@pytest.mark.parametrize("use", USES)
def test_in_a_second_loop_of_the_thread(use: str) -> None:
    bus = _bus()
    with asyncio.Runner() as first:
        first.run(bus.open())
        first.run(bus.dispatch(Move(box="a")))
        error = asyncio.run(_refused(bus, use))
        assert "SyncCommandBus" in error.message
        assert "open one in this loop" in error.message
        assert (error.code, error.retryable) == ("wrong_event_loop", False)
        assert bus.is_open
        assert first.run(bus.dispatch(Move(box="a"))).command_id, "where it belongs it goes on"
        first.run(bus.close())


@pytest.mark.parametrize("use", USES)
async def test_in_another_thread(use: str) -> None:
    async with _bus() as bus:
        error = await asyncio.to_thread(lambda: asyncio.run(_refused(bus, use)))
        assert "another event loop" in error.message
        assert (await bus.dispatch(Move(box="a"))).command_id


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.skipif(sys.version_info >= (3, 12) and threading.active_count() > 1, reason="Python warns of forks with threads")
def test_in_a_forked_child() -> None:
    bus = _bus()
    reading, writing = os.pipe()
    with asyncio.Runner() as runner:
        runner.run(bus.open())
        child = os.fork()
        if not child:
            try:
                error = asyncio.run(_refused(bus, "dispatch"))
                asyncio.run(bus.close())  # nothing of it is the child's
                os.write(writing, error.message.encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as told:
            message = told.read()
        os.waitpid(child, 0)
        assert f"opened in process {os.getpid()}" in message
        assert f"this is process {child}" in message
        assert runner.run(bus.dispatch(Move(box="a"))).command_id
        runner.run(bus.close())


def test_it_is_closed_where_it_was_opened() -> None:
    bus = _bus()
    with asyncio.Runner() as first:
        first.run(bus.open())
        with pytest.raises(WrongEventLoop):
            asyncio.run(bus.close())
        assert bus.is_open
        first.run(bus.close())
    assert not bus.is_open


def test_one_whose_loop_is_gone_can_be_closed_from_anywhere() -> None:
    bus = _bus()
    asyncio.run(bus.open())
    with pytest.raises(WrongEventLoop, match="another event loop"):
        asyncio.run(bus.dispatch(Move(box="a")))
    asyncio.run(bus.close())
    assert not bus.is_open

    async def again() -> None:
        async with bus:
            assert bus.is_open

    asyncio.run(again())


async def test_a_lifespan_that_raises_at_its_end_leaves_no_bus_open() -> None:
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def lifespan():
        yield
        raise RuntimeError("the pool would not close")

    bus = CommandBus.in_memory(registry=HandlerRegistry(), lifespan=lifespan)
    worker = bus.worker()
    await worker.start()
    assert bus.is_open
    with pytest.raises(RuntimeError, match="the pool would not close"):
        await worker.stop()
    assert not bus.is_open
