"""Servers that do not fit, break or fill up, and settings that make no sense. Numbers as in `test_bad_input.py`."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import pytest
from redis.asyncio import Redis

from command_bus import (
    BusClosed,
    BusSettings,
    Command,
    CommandBus,
    CommandBusError,
    EntityId,
    EntityPolicy,
    HandlerRegistry,
    InvalidCommand,
    InvalidSettings,
    QueueFull,
    RetryPolicy,
    TransportUnavailable,
    UnknownDeadLetter,
    UnsuitableServer,
    lanes,
)
from command_bus.clock import wall_ms
from command_bus.embedded import EmbeddedServer
from command_bus.serialization.envelope import unpack_envelope
from command_bus.transport.redis import namespace as server_module
from command_bus.transport.redis.connection.errors import translated
from command_bus.transport.redis.keys import GROUP
from tests.conformance.conftest import Sandbox, Starter
from tests.conformance.put_service import Put, PutService, put_service, until


class Long(Command[str], entity="box", delivery="at_most_once"):
    box: EntityId


class Fails(Command[None], entity="box", retry=RetryPolicy(attempts=1)):
    box: EntityId


class Other(Command[None], entity="crate"):
    crate: EntityId


async def refused(url: str, **settings: Any) -> CommandBusError:
    """The error of opening a bus, which must come at once."""
    began = time.monotonic()
    with pytest.raises(CommandBusError) as error:
        async with CommandBus(url, **settings):
            pass
    assert time.monotonic() - began < 3
    return error.value


async def test_33_a_wrong_password_or_too_few_rights_are_told_at_the_start(start: Starter) -> None:
    server = start(tcp=True)
    address = server.url.partition("//")[2]
    client = Redis.from_url(server.url)
    await client.config_set("requirepass", "right")
    await client.aclose()
    for login, told in ((":wrong@", "WRONGPASS|invalid"), ("", "NOAUTH|required")):
        error = await refused(f"redis://{login}{address}")
        assert isinstance(error, UnsuitableServer)
        assert any(word in str(error) for word in told.split("|"))
        assert "user" in str(error)
        assert "wrong@" not in str(error)
    client = Redis.from_url(f"redis://:right@{address}")
    connections = (await client.info("stats"))["total_connections_received"]
    await refused(f"redis://:wrong@{address}")
    assert (await client.info("stats"))["total_connections_received"] - connections <= 3, "a storm of tries"
    await client.acl_setuser("limited", enabled=True, passwords=["+pw"], categories=["+@read"], keys=["*"])
    error = await refused(f"redis://limited:pw@{address}")
    assert isinstance(error, UnsuitableServer)
    assert "permission" in str(error).lower()
    assert "limited:pw" not in str(error)
    async with CommandBus(f"redis://:right@{address}") as bus:
        assert "right" not in repr(bus)
    await client.aclose()
    error = await refused(f"redis://:right@{address}/99")
    assert "99" in str(error) or "DB index" in str(error)


async def test_34_a_replica_says_that_it_is_one(start: Starter) -> None:
    primary = start(tcp=True)
    port = primary.url.rpartition(":")[2]
    replica = start(config={"replicaof": f"127.0.0.1 {port}"})
    error = await refused(replica.url)
    assert isinstance(error, UnsuitableServer)
    assert "replica" in str(error)


async def test_34_a_primary_that_becomes_a_replica_refuses_and_work_goes_on_when_it_is_back(start: Starter) -> None:
    primary, other = start(tcp=True), start(tcp=True)
    host, port = other.url.removeprefix("redis://").split(":")
    registry = HandlerRegistry()
    sandbox = Sandbox("valkey", server_clients(primary), registry=registry, url=primary.url)
    async with sandbox.bus(dispatch_timeout=1.0) as bus:
        service = PutService(sandbox, bus)
        await bus.dispatch(Put(box="a", value=0))
        client = Redis.from_url(primary.url)
        async with bus.worker():
            await bus.wait_idle(5)
            await client.replicaof(host, port)  # type: ignore[no-untyped-call]
            with pytest.raises(CommandBusError, match="replica"):
                await bus.dispatch(Put(box="a", value=9))
            await client.replicaof("NO", "ONE")  # type: ignore[no-untyped-call]
            await client.aclose()
            await until(lambda: can_dispatch(bus))
            await service.assert_runs("a")


async def test_34_a_replica_is_told_from_its_refusal_where_its_facts_are_not_to_be_seen(start: Starter) -> None:
    primary = start(tcp=True)
    port = primary.url.rpartition(":")[2]
    replica = start(config={"replicaof": f"127.0.0.1 {port}"}, tcp=True)
    client = Redis.from_url(replica.url)
    await client.execute_command("ACL", "SETUSER", "blind", "on", ">secret", "~*", "+@all", "-info")  # type: ignore[no-untyped-call]
    await client.aclose()
    error = await refused(replica.url.replace("redis://", "redis://blind:secret@"))
    assert isinstance(error, UnsuitableServer)
    assert "connect to its primary" in str(error)


class Balancer:
    """A name for whichever server is the primary; connections that it has led somewhere stay there."""

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


@pytest.mark.parametrize("durability", ["server", "replicated"])
async def test_34_behind_a_name_whose_primary_changes_everybody_goes_to_the_new_one(start: Starter, durability: Any) -> None:
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
        (pending,) = await clients[1].xpending_range(
            bus.session.transport.keys.shards[0].ready, GROUP, min="-", max="+", count=10
        )
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


async def test_a_close_that_is_given_up_goes_on_and_tells_everybody(start: Starter) -> None:
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


async def test_what_fails_in_closing_keeps_nothing_else_open(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = CommandBus(start().url, registry=HandlerRegistry())
    await bus.open()
    called = asyncio.create_task(bus.call(Put(box="a", value=0), timeout=60))
    await until(lambda: accepted(bus))

    async def fails() -> None:
        raise RuntimeError("planned")

    monkeypatch.setattr(bus.session.transport.events, "close", fails)
    connections = bus.session.transport.connections
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
        assert next(bus.session.transport._stream._shards[0]._numbers) == 3, "one was sent before the outage, and one in it"
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
async def test_a_call_that_an_outage_kept_waiting_expires_when_its_caller_goes(
    start: Starter, tmp_path: Path, signing: dict[str, Any]
) -> None:
    server = start(tcp=True, persistence=tmp_path / "data")
    async with CommandBus(server.url, registry=HandlerRegistry(), dispatch_timeout=30, **signing) as bus:
        await bus.dispatch(Put(box="b", value=0))
        server.kill()
        until_ms = wall_ms() + 20_000
        call = asyncio.create_task(bus.call(Put(box="a", value=0), timeout=20))
        await until(lambda: bus.session.transport.connections.all_reconnects > 5)
        away_ms = wall_ms() + 20_000 - until_ms
        server.restart()
        keys = bus.session.transport.keys
        client = Redis.from_url(server.url)
        entries: Any = await until(lambda: client.xrange(keys.shards[0].mailbox("box:a")))
        await client.aclose()
        ((entry, fields),) = entries
        envelope = unpack_envelope(fields[b"e"])
        assert envelope.ttl_ms is not None
        late_ms = int(entry.partition(b"-")[0]) + envelope.ttl_ms - until_ms
        assert late_ms < away_ms / 2  # nothing of the outage, but the way to the server
        assert envelope.ttl_ms > 1000
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def test_a_caller_waits_no_longer_than_it_said_for_what_all_must_agree_on(start: Starter) -> None:
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


async def accepted(bus: CommandBus) -> bool:
    return (await bus.stats()).depth == 1


async def can_dispatch(bus: CommandBus) -> bool:
    try:
        await bus.call(Put(box="probe", value=0), timeout=1)
    except CommandBusError:
        return False
    return True


def server_clients(server: EmbeddedServer) -> Any:
    from command_bus.transport.redis.connection.connections import UrlClients

    return UrlClients(server.url)


async def test_34_a_cluster_node_is_refused(start: Starter) -> None:
    try:
        server = start(tcp=True, config={"cluster-enabled": "yes"})
    except CommandBusError as error:
        pytest.skip(f"this server cannot be a cluster node here: {error}")
    error = await refused(server.url)
    assert isinstance(error, UnsuitableServer)
    assert "Cluster" in str(error)


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random", "allkeys-lfu"])
async def test_35_a_server_that_may_evict_queues_is_refused(start: Starter, policy: str) -> None:
    server = start(config={"maxmemory-policy": policy})
    error = await refused(server.url)
    assert isinstance(error, UnsuitableServer)
    assert policy in str(error)
    assert "noeviction" in str(error)
    async with CommandBus(server.url, allow_eviction=True) as bus:
        assert (await bus.dispatch(Put(box="a", value=1))).status == "accepted"


@pytest.mark.parametrize("persistent", [False, True])
async def test_36_a_server_without_persistence_is_warned_of_once(
    start: Starter,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    persistent: bool,
) -> None:
    monkeypatch.setattr(server_module, "_warned", set())
    inspect = server_module.inspect_server

    async def as_anybodys(connections: Any) -> Any:  # any server but the development server
        return dataclasses.replace(await inspect(connections), disposable=False)

    monkeypatch.setattr(server_module, "inspect_server", as_anybodys)
    server = start(persistence=tmp_path / "data") if persistent else start()
    for _ in range(2):
        async with CommandBus(server.url):
            pass
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == (0 if persistent else 1)
    assert all("append-only" in text and "at_most_once" in text for text in warnings)


async def test_36_the_development_server_forgets_on_purpose_and_warns_of_nothing(
    start: Starter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_warned", set())
    async with CommandBus(start().url):
        pass
    assert not caplog.records


async def test_37_a_mailbox_of_another_type_fails_alone_when_sending(sandbox: Sandbox) -> None:
    async with put_service(sandbox) as service:
        client = sandbox.client()
        await client.set(service.keys.mailbox("box:broken"), "mine")
        with pytest.raises(InvalidCommand, match="WRONGTYPE"):
            await service.bus.dispatch(Put(box="broken", value=1))
        batch = await service.bus.dispatch_batch(
            [Put(box="a", value=1), Put(box="broken", value=1), Put(box="a", value=2), Put(box="broken", value=2)]
        )
        assert [outcome.status for outcome in batch.outcomes] == ["accepted", "rejected", "accepted", "rejected"]
        await client.delete(service.keys.mailbox("box:broken"))
        await client.hset(service.keys.mark("taken"), "a", "b")  # type: ignore[misc]
        with pytest.raises(InvalidCommand, match="WRONGTYPE"):
            await service.bus.dispatch(Put(box="a", value=1), command_id="taken")
        await client.delete(service.keys.mark("taken"))
        await client.aclose()
        await service.assert_unharmed("a", "broken")


@pytest.mark.parametrize("outcome", ["returns", "fails"])
async def test_37_a_mailbox_that_changes_its_type_holds_up_its_entity_alone(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture, outcome: str
) -> None:
    gate = asyncio.Event()
    running = asyncio.Event()

    @sandbox.registry.handles(Long)
    async def long(command: Long) -> str:
        running.set()
        await gate.wait()
        return "done"

    @sandbox.registry.handles(Fails)
    async def fails(command: Fails) -> None:
        running.set()
        await gate.wait()
        raise ValueError("planned")

    command = Long(box="broken") if outcome == "returns" else Fails(box="broken")
    async with put_service(sandbox) as service:
        await service.bus.dispatch(command, command_id="stuck")
        await running.wait()
        client = sandbox.client()
        box = service.keys.mailbox("box:broken")
        await client.rename(box, box + ":aside")
        await client.set(box, "not a stream")
        gate.set()
        await until(lambda: "broken is stuck" in caplog.text)
        assert "WRONGTYPE" in caplog.text
        await service.assert_runs("a")
        await asyncio.sleep(1.2)  # it is tried again, and again without effect
        assert len(await service.letters()) == 0
        await client.delete(box)
        await client.rename(box + ":aside", box)
        await service.bus.wait_idle(10)
        assert len(await service.letters()) == (1 if outcome == "fails" else 0)
        await client.aclose()
        await service.assert_unharmed("a", "broken")
        stats = await service.bus.stats()
        assert stats.depth == 0
        assert stats.dead_lettered == (0 if outcome == "returns" else 1)


@pytest.mark.parametrize("what", ["group", "stream", "everything"])
async def test_38_a_ready_stream_or_group_deleted_under_a_worker_is_made_anew(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    gate = asyncio.Event()
    starts: list[str] = []

    @sandbox.registry.handles(Long)
    async def long(command: Long) -> str:
        starts.append(str(command.box))
        await gate.wait()
        return "done"

    async with put_service(sandbox, lease=1.0, concurrency=2) as service:
        await service.bus.dispatch_batch([Long(box="held"), Put(box="held", value=1)])
        await until(lambda: starts)
        await service.bus.entity("box", "resting").pause()
        await service.bus.dispatch(Put(box="resting", value=1))
        client = sandbox.client()
        if what == "group":
            await client.xgroup_destroy(service.keys.ready, "workers")
        elif what == "stream":
            await client.delete(service.keys.ready)
        else:
            await client.delete(*(key for key in await sandbox.keys() if not key.endswith("meta")))
        await client.aclose()
        await until(lambda: "created anew" in caplog.text)
        await service.assert_runs("a")
        await asyncio.sleep(0.3)
        gate.set()
        await service.bus.entity("box", "resting").resume()
        await service.bus.wait_idle(10)
        assert starts == ["held"], "at most once"
        await service.assert_unharmed("a", "held", "resting")
        if what != "everything":
            assert ("held", 1) in service.seen
            assert ("resting", 1) in service.seen


async def test_38_what_runs_while_the_group_is_deleted_goes_on_under_its_lease(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    gate = asyncio.Event()
    running = asyncio.Event()

    @sandbox.registry.handles(Long)
    async def long(command: Long) -> str:
        running.set()
        await gate.wait()
        return "done"

    async with put_service(sandbox, lease=1.5) as service:
        client = sandbox.client()
        ready = service.keys.ready

        async def renewals() -> int:
            (pending,) = await client.xpending_range(ready, GROUP, min="-", max="+", count=10)
            return int(pending["times_delivered"])

        await service.bus.dispatch(Long(box="held"), command_id="held")
        await running.wait()
        before = await renewals()
        await until(lambda: differs(renewals, before))  # the next renewal is half a second away
        await client.xgroup_destroy(ready, GROUP)
        await until(lambda: "created anew" in caplog.text)
        await asyncio.sleep(2.0)
        gate.set()
        assert await service.bus.result("held", timeout=5) == "done"
        await client.aclose()
        await service.assert_unharmed("held")


async def differs(look: Callable[[], Awaitable[int]], before: int) -> bool:
    return await look() != before


async def test_39_a_namespace_of_another_protocol_is_refused(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        client = sandbox.client()
        await client.hset(bus.session.transport.keys.shards[0].meta, "protocol", "2")  # type: ignore[misc]
        await client.aclose()
    with pytest.raises(InvalidSettings, match="protocol 2"):
        async with sandbox.bus():
            pass
    async with sandbox.bus(namespace=f"{sandbox.namespace}x") as other:
        assert (await other.dispatch(Put(box="a", value=1))).status == "accepted"
        await other.entity("box", "a").purge()


@pytest.mark.parametrize("namespace", ["", "{x}", "a b", "a\nb", "}", "x" * 101, "ü", "a:b"])
def test_40_a_namespace_is_a_plain_word(namespace: str) -> None:
    with pytest.raises(InvalidSettings, match="namespace"):
        CommandBus("redis://localhost", namespace=namespace)
    with pytest.raises(ValueError):
        BusSettings(namespace=namespace)


@pytest.mark.parametrize("entity_type", ["", "{x}", "a b", "a\nb", "a:b", "a/b", "x" * 65])
def test_40_an_entity_type_is_a_plain_word(entity_type: str) -> None:
    with pytest.raises(TypeError, match="entity type"):

        class Wrong(Command[None], entity=entity_type):
            box: EntityId


def test_42_an_unverified_server_must_be_asked_for() -> None:
    for url in ("rediss://host?ssl_cert_reqs=none", "rediss://u:secret@host/0?x=1&ssl_cert_reqs=NONE"):
        with pytest.raises(InvalidSettings, match="insecure=True") as error:
            CommandBus(url)
        assert "secret" not in str(error.value)
        CommandBus(url, insecure=True)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("LOADING Redis is loading the dataset in memory", TransportUnavailable),
        ("BUSY Redis is busy running a script", TransportUnavailable),
        ("MISCONF Redis is configured to save RDB snapshots", TransportUnavailable),
        ("max number of clients reached", TransportUnavailable),
        ("NOREPLICAS Not enough good replicas to write.", TransportUnavailable),
        ("OOM command not allowed when used memory > 'maxmemory'.", QueueFull),
        ("READONLY You can't write against a read only replica.", TransportUnavailable),
        ("NOAUTH Authentication required.", UnsuitableServer),
        ("NOPERM this user has no permissions to run the 'xadd' command", UnsuitableServer),
        ("MOVED 866 127.0.0.1:7000", UnsuitableServer),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", UnsuitableServer),
    ],
)
@pytest.mark.parametrize("inside", ["{}", "Error running script (call to f_x): @user_script:60: -{}"])
def test_44_what_a_server_says_becomes_a_typed_error(text: str, kind: type[CommandBusError], inside: str) -> None:
    """The second form is that of Redis before 7, for what happens inside a script."""
    from redis.exceptions import ResponseError

    error = translated(ResponseError(inside.format(text)), "server")
    assert type(error) is kind
    assert error.retryable == (kind is not UnsuitableServer)


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


async def test_45_a_letter_is_replayed_once(sandbox: Sandbox) -> None:
    @sandbox.registry.handles(Fails)
    async def fails(command: Fails) -> None:
        raise ValueError("planned")

    async with put_service(sandbox) as service:
        await service.bus.dispatch(Fails(box="a"), command_id="again")
        letter = await service.letter()
        outcomes = await asyncio.gather(*(service.bus.dead_letters.replay(letter.id) for _ in range(3)), return_exceptions=True)
        assert sorted(map(type, outcomes), key=str) == [UnknownDeadLetter, UnknownDeadLetter, str] or outcomes.count("again") == 1
        await service.bus.wait_idle(5)
        (again,) = await service.letters()
        assert (again.command_id, (await service.bus.stats()).dead_lettered) == ("again", 2)
        for bad in ("", "0-0", "9-1-1", "x", letter.id):
            with pytest.raises(UnknownDeadLetter):
                await service.bus.dead_letters.replay(bad)
            with pytest.raises(UnknownDeadLetter):
                await service.bus.dead_letters.discard(bad)
        await service.assert_unharmed("a")


@pytest.mark.parametrize(
    "bad",
    [
        {"concurrency": 0},
        {"concurrency": -1},
        {"concurrency": 10**9},
        {"lease": 0},
        {"lease": -1.0},
        {"lease": float("nan")},
        {"lease": float("inf")},
        {"grace": -1.0},
        {"shards": 0},
        {"shards": 10**6},
        {"quantum": 0},
        {"max_depth": 0},
        {"max_payload": 1},
        {"max_nesting": 100_000},
        {"dispatch_timeout": 0},
        {"reply_ttl": 0.0009},
        {"wait_timeout": 0.0005},
        {"threads": 0},
        {"no_such_setting": 1},
        {"shards": "many"},
    ],
    ids=str,
)
def test_46_settings_out_of_range_are_refused_by_name(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match=next(iter(bad))) as error:
        CommandBus("redis://:secret@localhost", **bad)
    assert isinstance(error.value, ValueError)
    assert "secret" not in str(error.value)


def test_46_policies_out_of_range_are_refused() -> None:
    for bad in (
        {"attempts": 0},
        {"delay": -1.0},
        {"factor": 0.5},
        {"jitter": 2.0},
        {"max_delay": float("inf")},
        {"backoff": "linear"},
    ):
        with pytest.raises(InvalidSettings, match=next(iter(bad))):
            RetryPolicy(**bad)  # type: ignore[arg-type]
    for count in (0, -1, 10**6, 1.5):
        with pytest.raises(InvalidSettings):
            lanes(count)  # type: ignore[arg-type]
    with pytest.raises(InvalidSettings):
        EntityPolicy(max_depth=0)


@pytest.fixture
async def full(start: Starter) -> Any:
    """A namespace on a server that can be brought to its memory limit."""
    server = start()
    sandbox = Sandbox("valkey", server_clients(server), url=server.url)
    client = Redis.from_url(server.url)

    async def fill() -> None:
        """From now on the server refuses whatever may take memory."""
        await client.config_set("maxmemory", "1mb")

    async def relieve() -> None:
        await client.config_set("maxmemory", "0")

    yield sandbox, fill, relieve
    await client.aclose()


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
        kind = type(bus.session.transport.connections)
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
            batch = await bus.dispatch_batch(Put(box=f"b{number % 7}", value=number) for number in range(1000))
        assert [outcome.status for outcome in batch.outcomes] == ["accepted"] * 512 + ["rejected"] * 488
        assert all(isinstance(outcome.error, QueueFull) for outcome in batch.rejections)
        async with bus.worker():
            await bus.wait_idle(10)
            assert sorted(value for _, value in service.seen) == list(range(512))
            await service.assert_unharmed("b1")


@pytest.mark.parametrize("hours", [-5, 5])
async def test_41_a_worker_whose_clock_is_wrong_by_hours_works_as_any_other(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """Deadlines, delays and leases go by the server's clock and by time that only grows; the wrong time shows in what it writes of itself."""
    real = wall_ms

    def wrong() -> int:
        return real() + hours * 3_600_000

    for module in (
        "command_bus.worker.decisions",
        "command_bus.worker.worker",
        "command_bus.transport.redis.worker.lease_keeper",
    ):
        monkeypatch.setattr(f"{module}.wall_ms", wrong)
    sandbox.registry.handles(Fails)(fails)
    async with put_service(sandbox, lease=0.6) as service:
        await service.bus.dispatch(Put(box="a", value=0), expires=30)
        await service.bus.dispatch(Put(box="a", value=1), delay=0.1)
        assert await service.bus.call(Put(box="a", value=2), timeout=5) == 2
        await service.bus.dispatch(Fails(box="b"))
        letter = await service.letter()
        assert abs(letter.failed_ms - wrong()) < 60_000
        assert abs(letter.accepted_ms - real()) < 60_000
        await service.bus.dead_letters.discard(letter.id)
        await service.bus.wait_idle(5)
        assert sorted(service.seen) == [("a", 0), ("a", 1), ("a", 2)]
        await service.assert_unharmed("a", "b")


async def fails(command: Fails) -> None:
    raise OSError("always")
