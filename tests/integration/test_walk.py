"""The number of files that one command enters: what a reader has to open to follow it.

The bus and the worker share an event loop, and everything has run once, so that what is imported, compiled and looked up once is not counted.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import pytest

from command_bus import Command, CommandBus, DurableContext, EntityId, HandlerRegistry
from command_bus.embedded import EmbeddedServer

pytestmark = pytest.mark.server
registry = HandlerRegistry()
MOST = {"dispatch": 39, "call": 48, "durable": 66}


class Plain(Command[int], entity="plain"):
    plain: EntityId


class Journey(Command[int], entity="journey", durable=True):
    journey: EntityId


ran = asyncio.Event()


@registry.handles(Plain)
async def plain(command: Plain) -> int:
    ran.set()
    return len(command.plain)


@registry.handles(Journey)
async def journey(command: Journey, context: DurableContext) -> int:
    return await context.step("count", len, command.journey)


async def walked(work: Callable[[], Awaitable[Any]]) -> set[str]:
    """Return the files of the package whose functions run meanwhile."""
    files: set[str] = set()

    def enter(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    sys.setprofile(enter)
    try:
        await work()
    finally:
        sys.setprofile(None)
    return {name.rpartition("/command_bus/")[2] for name in files if "/command_bus/" in name and "/tests/" not in name}


@pytest.mark.parametrize("way", MOST)
async def test_a_reader_opens_few_files(way: str, server: EmbeddedServer) -> None:
    async with CommandBus(server.url, namespace=f"walk-{way}", registry=registry) as bus, bus.worker():

        async def once() -> None:
            if way == "dispatch":
                ran.clear()
                await bus.dispatch(Plain(plain="a"))
                await ran.wait()
                await asyncio.sleep(0.1)  # it is settled, and its entity released
            else:
                await bus.call(Plain(plain="a") if way == "call" else Journey(journey="a"), timeout=10)

        await once()
        files = await walked(once)
        for _ in range(40):  # what a worker does now and then is not in all of them; on a busy machine it is in many
            files &= await walked(once)
            if len(files) <= MOST[way]:
                break
    assert len(files) <= MOST[way], sorted(files)
