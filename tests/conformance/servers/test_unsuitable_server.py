"""Servers that are refused at the start, or warned about: wrong rights, replicas, eviction, no persistence, another format."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from command_bus import (
    BusSettings,
    Command,
    CommandBus,
    CommandBusError,
    EntityId,
    EntityPolicy,
    HandlerRegistry,
    InvalidSettings,
    QueueFull,
    RetryPolicy,
    TransportUnavailable,
    UnsuitableServer,
    lanes,
)
from command_bus.transport.redis import namespace as server_module
from command_bus.transport.redis.connection.errors import translated
from command_bus.transport.redis.namespace import PROTOCOL, recorded_choices
from tests.conformance.conftest import Sandbox, Starter
from tests.conformance.put_service import Put, PutService, until
from tests.conformance.servers.bad_servers import refused, server_clients


async def test_33_a_wrong_password_or_missing_rights_are_reported_at_the_start(start: Starter) -> None:
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


async def test_34_work_waits_while_the_primary_is_a_replica(start: Starter) -> None:
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
            with pytest.raises(CommandBusError, match=r"replica|Connection closed"):
                await bus.dispatch(Put(box="a", value=9))
            await client.replicaof("NO", "ONE")  # type: ignore[no-untyped-call]
            await client.aclose()
            await until(lambda: can_dispatch(bus))
            await service.assert_runs("a")


async def test_34_a_replica_without_info_is_recognised_by_its_refusal(start: Starter) -> None:
    primary = start(tcp=True)
    port = primary.url.rpartition(":")[2]
    replica = start(config={"replicaof": f"127.0.0.1 {port}"}, tcp=True)
    client = Redis.from_url(replica.url)
    await client.execute_command("ACL", "SETUSER", "blind", "on", ">secret", "~*", "+@all", "-info")  # type: ignore[no-untyped-call]
    await client.aclose()
    error = await refused(replica.url.replace("redis://", "redis://blind:secret@"))
    assert isinstance(error, UnsuitableServer)
    assert "connect to its primary" in str(error)


async def can_dispatch(bus: CommandBus) -> bool:
    try:
        await bus.call(Put(box="probe", value=0), timeout=1)
    except CommandBusError:
        return False
    return True


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


@pytest.mark.slow
async def test_34_a_replica_that_was_the_primary_a_moment_ago_is_no_fault_of_the_url(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspect = server_module.inspect_server

    async def demoted(connections: Any) -> Any:
        return dataclasses.replace(await inspect(connections), role="slave")

    monkeypatch.setattr(server_module, "inspect_server", demoted)
    clients = server_clients(start())
    with pytest.raises(UnsuitableServer, match="connect to its primary"):
        await CommandBus("redis://x", clients=clients).open()
    monkeypatch.setattr(server_module, "FollowingClients", type(clients))  # as of Sentinels or a Cluster
    with pytest.raises(TransportUnavailable, match="in a failover"):
        await CommandBus("redis://x", clients=clients).open()


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


async def test_36_the_development_server_does_not_warn_about_persistence(
    start: Starter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_warned", set())
    async with CommandBus(start().url):
        pass
    assert not caplog.records


@pytest.mark.parametrize(
    ("made", "advice"), [("1", "drain the namespace"), ("4", "upgrade command_bus"), ("x", "drain the namespace")]
)
async def test_39_a_namespace_of_another_format_is_refused(sandbox: Sandbox, made: str, advice: str) -> None:
    async with sandbox.bus() as bus:
        client = sandbox.client()
        await client.hset(bus.session.redis.keys.shards[0].meta, "protocol", made)  # type: ignore[misc]
        await client.aclose()
    with pytest.raises(InvalidSettings, match=f"format '{made}', this release of command_bus has format {PROTOCOL}: {advice}"):
        async with sandbox.bus():
            pass
    if sandbox.url is not None and sandbox.name not in ("sentinel", "cluster"):
        with pytest.raises(InvalidSettings, match=advice):  # a client without settings of its own: the command line, Spark
            await recorded_choices(sandbox.url, sandbox.namespace, 5.0)
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
    for url in ("rediss://host?ssl_cert_reqs=none", "rediss://u:secret@host/0?client_name=x&ssl_cert_reqs=NONE"):
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
def test_44_a_servers_error_becomes_a_typed_error(text: str, kind: type[CommandBusError], inside: str) -> None:
    """The second form is that of Redis before 7, for what happens inside a script."""
    from redis.exceptions import ResponseError

    error = translated(ResponseError(inside.format(text)), "server")
    assert type(error) is kind
    assert error.retryable == (kind is not UnsuitableServer)


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
