"""Calls, batches and close while the server is away, or another server takes its place."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Self

import pytest
from redis.asyncio import Redis

from command_bus import (
    BusClosed,
    Command,
    CommandBus,
    EntityId,
    HandlerRegistry,
    TransportUnavailable,
)
from command_bus.clock import wall_ms
from command_bus.embedded import EmbeddedServer
from command_bus.serialization.envelope import unpack_envelope
from command_bus.transport.redis.keys import GROUP
from command_bus.transport.redis.mailbox_record import parse_record
from tests.conformance.conftest import Sandbox, Starter
from tests.conformance.put_service import Put, until
from tests.conformance.servers.bad_servers import Long, accepted, differs


class Other(Command[None], entity="crate"):
    crate: EntityId


class Balancer:
    """A name that leads to the current primary; open connections stay with their server."""

    def __init__(self, target: EmbeddedServer) -> None:
        self.target = target
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        host, port = self.target.url.removeprefix("redis://").split(":")
        theirs, ours = await asyncio.open_connection(host, int(port))
        try:
            await asyncio.gather(self._pass(reader, ours), self._pass(theirs, writer))
        except OSError:
            pass
        finally:
            ours.close()
            writer.close()
            self._serving.discard(task)

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            target.write(data)
        target.close()


@pytest.mark.promise("A name or balancer leads to another primary, and the previous one is a replica now")
@pytest.mark.parametrize("durability", ["server", "replicated"])
async def test_34_clients_follow_a_name_to_its_new_primary(start: Starter, durability: Any) -> None:
    quick = {"repl-diskless-sync-delay": 0, "appendonly": "yes"}
    old, new = start(tcp=True, config=quick), start(tcp=True, config=quick)
    places = [server.url.removeprefix("redis://").split(":") for server in (old, new)]
    clients = [Redis.from_url(server.url) for server in (old, new)]
    registry, gate, starts = HandlerRegistry(), asyncio.Event(), list[str]()

    @registry.handles(Long)
    async def long(command: Long) -> str:
        starts.append(str(command.box))
        await gate.wait()
        return "done"

    @registry.handles(Put)
    async def put(command: Put) -> int:
        return command.value

    async def follow(replica: int) -> None:
        await clients[replica].replicaof(*places[1 - replica])  # type: ignore[no-untyped-call]
        await until(lambda: follows(clients[replica]), 20)

    async def renewals() -> int:
        (pending,) = await clients[1].xpending_range(bus.session.redis.keys.shards[0].ready, GROUP, min="-", max="+", count=10)
        return int(pending["times_delivered"])

    await follow(1)
    async with (
        Balancer(old) as name,
        CommandBus(name.url, registry=registry, lease=2.0, dispatch_timeout=10.0, durability=durability) as bus,
        bus.worker(),
    ):
        await bus.dispatch(Long(box="held"), command_id="held")
        await until(lambda: starts)
        await clients[1].replicaof("NO", "ONE")  # type: ignore[no-untyped-call]
        name.target = new
        await follow(0)  # its connections stay
        assert await bus.call(Put(box="a", value=1), timeout=10) == 1
        before = await renewals()
        await until(lambda: differs(renewals, before))
        gate.set()
        assert await bus.result("held", timeout=5) == "done"
        assert starts == ["held"]
    for client in clients:
        await client.aclose()


async def follows(client: Redis) -> bool:
    facts: Any = await client.info("replication")
    return bool(facts["role"] == "slave" and facts["master_link_status"] == "up")


async def test_a_cancelled_close_continues_for_all_callers(start: Starter) -> None:
    server = start(tcp=True)
    bus = CommandBus(server.url, registry=HandlerRegistry(), dispatch_timeout=2.0)
    await bus.open()
    called = asyncio.create_task(bus.call(Put(box="a", value=0), timeout=60))
    await until(lambda: accepted(bus))
    server.kill()
    sent = asyncio.create_task(bus.dispatch(Put(box="b", value=0)))
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(bus.close(), 0.1)
    with pytest.raises(BusClosed, match="while a call waited"):
        await asyncio.wait_for(called, 1.0)
    assert "closed" in repr(bus)
    assert not sent.done()
    await asyncio.wait_for(bus.close(), 10)
    assert isinstance(sent.exception(), TransportUnavailable)
    assert not [task.get_name() for task in asyncio.all_tasks() if "command_bus" in task.get_name()]


async def test_an_error_in_closing_does_not_keep_other_parts_open(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = CommandBus(start().url, registry=HandlerRegistry())
    await bus.open()
    called = asyncio.create_task(bus.call(Put(box="a", value=0), timeout=60))
    await until(lambda: accepted(bus))

    async def fails() -> None:
        raise RuntimeError("planned")

    monkeypatch.setattr(bus.session.transport.operator.events, "close", fails)
    connections = bus.session.redis.connections
    with pytest.raises(RuntimeError, match="planned"):
        await bus.close()
    with pytest.raises(BusClosed):
        await called
    with pytest.raises(BusClosed):
        connections.pipe()
    assert not [task.get_name() for task in asyncio.all_tasks() if "command_bus" in task.get_name()]


async def test_a_batch_waits_once_for_a_server_that_is_away(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(tcp=True)
    async with CommandBus(server.url, registry=HandlerRegistry(), dispatch_timeout=0.5) as bus:
        await bus.dispatch(Put(box="a", value=0))
        server.kill()
        batch = await bus.dispatch_batch(Put(box=f"b{number}", value=number) for number in range(2000))
        assert next(bus.session.transport._stream._lines[0]._numbers) == 3, "one was sent before the outage, and one in it"
        errors = [outcome.error for outcome in batch.outcomes]
        assert all(isinstance(error, TransportUnavailable) for error in errors)
        assert not any(getattr(error, "outcome_unknown", True) for error in errors[512:])
        asked: list[str] = []
        agree = bus.session.transport.agreements.agree

        async def counted(entity_type: str, *rest: Any) -> Any:
            asked.append(entity_type)
            return await agree(entity_type, *rest)

        monkeypatch.setattr(bus.session.transport.agreements, "agree", counted)
        batch = await bus.dispatch_batch([Other(crate="c") for _ in range(50)])
        assert (batch.rejected, asked) == (50, ["crate"])
        server.restart()
        batch = await bus.dispatch_batch([*(Put(box=f"b{number}", value=number) for number in range(2000)), Other(crate="c")])
        assert batch.accepted == 2001


@pytest.mark.parametrize("signing", [{}, {"signing_keys": {"one": "a secret of some length"}}], ids=["plain", "signed"])
async def test_a_call_delayed_by_an_outage_expires_with_its_caller(
    start: Starter, tmp_path: Path, signing: dict[str, Any]
) -> None:
    server = start(tcp=True, persistence=tmp_path / "data")
    async with CommandBus(server.url, registry=HandlerRegistry(), dispatch_timeout=30, **signing) as bus:
        await bus.dispatch(Put(box="b", value=0))
        server.kill()
        until_ms = wall_ms() + 20_000
        call = asyncio.create_task(bus.call(Put(box="a", value=0), timeout=20))
        await until(lambda: bus.session.redis.connections.reconnects > 5)
        await asyncio.sleep(3)  # longer than the way to the server takes on a busy machine
        away_ms = wall_ms() + 20_000 - until_ms
        server.restart()
        keys = bus.session.redis.keys
        client = Redis.from_url(server.url)
        raw: Any = await until(lambda: client.hget(keys.shards[0].lone, "box:a"))
        record: Any = await client.hget(keys.shards[0].active, "box:a")  # type: ignore[misc]
        await client.aclose()
        envelope = unpack_envelope(raw)
        assert envelope.ttl_ms is not None
        late_ms = int(parse_record(record).activation.partition("-")[0]) + envelope.ttl_ms - until_ms
        assert late_ms < away_ms / 2  # nothing of the outage, but the way to the server
        assert envelope.ttl_ms > 1000
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def test_reading_the_agreed_settings_ends_with_the_callers_timeout(start: Starter) -> None:
    server = start(tcp=True)
    async with CommandBus(server.url, registry=HandlerRegistry(), dispatch_timeout=60) as bus:
        server.kill()
        with pytest.raises(TransportUnavailable):
            await asyncio.wait_for(bus.call(Other(crate="c"), timeout=0.3), 20)
        patient = asyncio.create_task(bus.dispatch(Other(crate="c")))
        await asyncio.sleep(0)
        with pytest.raises(TransportUnavailable):  # nor behind others who wait for longer
            await asyncio.wait_for(bus.call(Other(crate="c"), timeout=0.3), 20)
        patient.cancel()
        await asyncio.gather(patient, return_exceptions=True)


async def test_a_batch_of_more_than_may_wait_leaves_bit_by_bit(sandbox: Sandbox) -> None:
    async with sandbox.bus(max_pending=100) as bus:
        batch = await bus.dispatch_batch(Put(box=f"b{number % 10}", value=number) for number in range(450))
        assert batch.accepted == 450
        assert (await bus.stats()).depth == 450
