"""A server at its memory limit or its limit of clients refuses new commands, and running work is settled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from command_bus import (
    CommandBus,
    QueueFull,
    TransportUnavailable,
)
from tests.conformance.conftest import Sandbox, Starter
from tests.conformance.put_service import Put, PutService
from tests.conformance.servers.bad_servers import Fails, Long, refused, server_clients
from tests.conformance.unique.test_unique_loads import codes, kept, load, opened, row


async def test_44_a_full_server_is_tried_again(start: Starter) -> None:
    server = start(tcp=True, config={"maxclients": "6"})
    clients = [Redis.from_url(server.url) for _ in range(6)]
    for client in clients:
        await client.ping()
    error = await refused(server.url, dispatch_timeout=0.5)
    assert isinstance(error, TransportUnavailable)
    for client in clients[:4]:
        await client.aclose()
    async with CommandBus(server.url) as bus:
        assert (await bus.dispatch(Put(box="a", value=1))).status == "accepted"
    for client in clients[4:]:
        await client.aclose()


@pytest.fixture
async def full(start: Starter) -> Any:
    """Provide a namespace on a server that can be brought to its memory limit."""
    server = start()
    sandbox = Sandbox("valkey", server_clients(server), url=server.url)
    client = Redis.from_url(server.url)

    async def fill() -> None:
        """Make the server refuse all requests that may use memory."""
        await client.config_set("maxmemory", "1mb")

    async def relieve() -> None:
        await client.config_set("maxmemory", "0")

    yield sandbox, fill, relieve
    await client.aclose()


@pytest.mark.promise("Redis is at `maxmemory`")
async def test_a_server_at_its_memory_limit_refuses_new_commands_and_drains(full: Any) -> None:
    sandbox, fill, relieve = full

    @sandbox.registry.handles(Fails)
    async def fails(command: Fails) -> None:
        raise ValueError("planned")

    async with sandbox.bus(lease=0.6) as bus:
        service = PutService(sandbox, bus)
        await bus.dispatch_batch(Put(box=f"b{number % 20}", value=number) for number in range(300))
        await bus.dispatch(Fails(box="f"), command_id="f")
        await bus.dispatch(Put(box="later", value=1), delay=0.01, command_id="later")
        await bus.entity("box", "paused").pause()
        await bus.dispatch(Put(box="paused", value=1))
        await fill()
        with pytest.raises(QueueFull) as refused:
            await bus.dispatch(Put(box="x", value=1))
        assert refused.value.limit == "memory"
        assert refused.value.retry_after > 0
        batch = await bus.dispatch_batch(Put(box=f"y{number}", value=number) for number in range(600))
        assert batch.rejected == 600
        with pytest.raises(QueueFull):
            await bus.call(Put(box="x", value=1), timeout=5)
        assert await bus.entity("box", "paused").resume()
        async with bus.worker():
            await bus.wait_idle(20)
            assert len(service.seen) == 302
            letter = await service.letter()
            assert letter.command_id == "f"
            assert await bus.entity("box", "b0").pause(), "an operator can act"
            assert await bus.entity("box", "b0").resume()
            await bus.dead_letters.discard(letter.id)
            await relieve()
            await service.assert_unharmed("b1", "later", "paused")


async def test_a_worker_can_be_started_and_keeps_its_leases_at_the_memory_limit(full: Any) -> None:
    sandbox, fill, relieve = full
    starts: list[str] = []

    @sandbox.registry.handles(Long)
    async def long(command: Long) -> str:
        starts.append("long")
        await asyncio.sleep(1.5)
        return "done"

    async with sandbox.bus(lease=0.6) as bus:
        service = PutService(sandbox, bus)
        await bus.dispatch(Long(box="a"), command_id="long")
        await bus.dispatch(Put(box="a", value=1))
        await fill()
        async with sandbox.bus(lease=0.6) as second, second.worker():
            assert await bus.result("long", timeout=10) == "done"
            await bus.wait_idle(10)
            assert starts == ["long"]
            assert service.seen == [("a", 1)]
            await relieve()
            await service.assert_unharmed("a")


async def test_a_batch_that_meets_the_limit_reports_what_was_accepted(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third of four chunks is refused: the first two are in, and said to be."""
    async with sandbox.bus() as bus:
        service = PutService(sandbox, bus)
        kind = type(bus.session.redis.connections)
        run, chunks = kind.run, 0

        async def second_fails(place: Any, script: Any, keys: list[str], args: list[Any]) -> Any:
            nonlocal chunks
            if script.name == "enqueue":
                chunks += 1
                if chunks == 2:
                    raise QueueFull("at its memory limit", limit="memory")
            return await run(place, script, keys, args)

        with monkeypatch.context() as patch:
            patch.setattr(kind, "run", second_fails)
            patch.setattr(kind, "post", lambda *_: False)
            batch = await bus.dispatch_batch(Put(box=f"b{number % 7}", value=number) for number in range(1000))
        assert [outcome.status for outcome in batch.outcomes] == ["accepted"] * 512 + ["rejected"] * 488
        assert all(isinstance(outcome.error, QueueFull) for outcome in batch.rejections)
        async with bus.worker():
            await bus.wait_idle(10)
            assert sorted(value for _, value in service.seen) == list(range(512))
            await service.assert_unharmed("b1")


async def test_a_server_at_its_memory_limit_decides_nothing_of_rows_with_unique_keys(full: Any) -> None:
    sandbox, fill, relieve = full
    async with sandbox.bus() as bus:
        version = await opened(bus)
        assert codes(await load(bus, version, row(bus, 1))) == "+"
        await fill()
        for rows in ([row(bus, 2), row(bus, 3, shop="b")], [row(bus, 3, shop="b"), row(bus, 2)]):
            with pytest.raises(QueueFull):
                await load(bus, version, *rows)
        await relieve()
        assert codes(await load(bus, version, row(bus, 2), row(bus, 3, shop="b"))) == "u+"
        assert list(await kept(bus)) == ["d-2"]
