"""The server in memory blocks its readers as a server does: a reader that asks again and again starves the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from command_bus import Command, CommandBus, EntityId, HandlerRegistry
from command_bus.transport.redis.connection.pipe import ClientRequests, Requests
from command_bus.transport.redis.memory import MemoryClients

READ = ("XREADGROUP", "GROUP", "workers", "w", "COUNT", 8, "BLOCK", 60_000, "STREAMS", "ready", ">")


class Ping(Command[str], entity="box"):
    box: EntityId


@asynccontextmanager
async def reading(clients: MemoryClients) -> AsyncIterator[tuple[Any, asyncio.Task[Any]]]:
    """Return a client, and a read that waits in a group."""
    client, pipe = clients.commands(), clients.pipe()
    await client.xgroup_create("ready", "workers", id="0", mkstream=True)
    read = asyncio.create_task(pipe.request(*READ))
    try:
        for _ in range(100):  # turns of the event loop, more than the request takes
            await asyncio.sleep(0)
        assert not read.done(), "it does not block"
        yield client, read
    finally:
        await pipe.close()
        await client.aclose()


async def test_a_limited_read_of_a_group_blocks_until_there_is_something() -> None:
    async with reading(MemoryClients()) as (client, read):
        await client.xadd("ready", {"e": "box:a"})
        ((stream, ((_, fields),)),) = await asyncio.wait_for(read, 5)
        assert (stream, fields) == (b"ready", [b"e", b"box:a"])


@pytest.mark.parametrize("what", ["group", "stream", "both anew"])
async def test_it_ends_when_its_group_is_gone(what: str) -> None:
    async with reading(MemoryClients()) as (client, read):
        if what == "group":
            await client.xgroup_destroy("ready", "workers")
            await client.set("any", "write")  # only a write wakes a read here
        else:
            await client.delete("ready")
        if what == "both anew":
            await client.xgroup_create("ready", "workers", id="0", mkstream=True)
        assert await asyncio.wait_for(read, 5) is None


async def test_an_idle_worker_asks_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python, also one whose event loop gets no turn between two answers."""
    asked = 0
    request = ClientRequests.request

    async def counted(pipe: Requests, *words: Any) -> Any:
        nonlocal asked
        asked += words[0] == "XREADGROUP"
        return await request(pipe, *words)  # type: ignore[arg-type]

    monkeypatch.setattr(ClientRequests, "request", counted)
    registry = HandlerRegistry()

    @registry.handles(Ping)
    async def ping(command: Ping) -> str:
        return "pong"

    async with CommandBus.in_memory(registry=registry) as bus, bus.worker():
        for _ in range(5):
            assert await bus.call(Ping(box="a"), timeout=5) == "pong"
        await asyncio.sleep(0.2)
        assert asked < 30
