"""Primaries that fail, hand over, freeze, and slots that move, in mid-run: nothing is lost, and nothing is out of order."""

from __future__ import annotations

import asyncio
import shutil
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from command_bus import (
    Command,
    CommandBus,
    EntityId,
    HandlerRegistry,
    InvalidSettings,
    TransportUnavailable,
    Unconfirmed,
    UnsuitableServer,
)
from command_bus.transport.redis.transport import RedisTransport
from tests.topologies import ClusterServers, SentinelServers

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not (shutil.which("redis-server") and shutil.which("redis-cli")), reason="no redis-server on PATH"),
]

LINES = 8


class Add(Command[int], entity="line"):
    line: EntityId
    number: int


class Once(Command[int], entity="line", delivery="at_most_once"):
    line: EntityId
    number: int


class ContinuousLoad:
    """A worker and a producer that go on while something happens to the servers."""

    def __init__(self, url: str, namespace: str, shards: int, replicas: int = 1, dispatch_timeout: float = 60.0) -> None:
        self.registry = HandlerRegistry()
        self.seen: dict[str, list[int]] = defaultdict(list)
        self.bus = CommandBus(
            url, namespace=namespace, registry=self.registry, shards=shards, lease=4.0,
            dispatch_timeout=dispatch_timeout, durability="replicated", wait_replicas=replicas,
        )  # fmt: skip
        self.registry.handles(Add)(self._add)
        self._number = 0

    async def _add(self, command: Add) -> int:
        self.seen[str(command.line)].append(command.number)
        return command.number

    async def send_until(self, over: asyncio.Event) -> None:
        """Dispatch in order, line by line, each command until it is acknowledged; then a call to each line."""
        while not over.is_set():
            for line in range(LINES):
                await self._send(f"l{line}")
            self._number += 1
            await asyncio.sleep(0.02)
        for line in range(LINES):
            assert await self.bus.call(Add(line=f"l{line}", number=self._number), timeout=60) == self._number

    async def _send(self, line: str) -> None:
        command = Add(line=line, number=self._number)
        while True:
            with suppress(Unconfirmed):
                await self.bus.dispatch(command, command_id=f"{line}-{self._number}")
                return

    async def survives(self, *events: Callable[[], object]) -> None:
        """Let these happen one after the other, then see what was handled."""
        over = asyncio.Event()
        async with self.bus, self.bus.worker():
            sending = asyncio.create_task(self.send_until(over))
            for event in events:
                await asyncio.sleep(0.3)
                await asyncio.to_thread(event)
            over.set()
            await sending
            await self.bus.wait_idle(60)
            stats = await self.bus.stats()
        assert (stats.depth, stats.in_flight, stats.dead_letters) == (0, 0, 0)
        for line in range(LINES):
            first_starts = list(
                dict.fromkeys(self.seen[f"l{line}"])
            )  # commands that the last primary had not replicated run again
            assert first_starts == list(range(self._number + 1)), f"l{line}"


@pytest.mark.promise("A primary fails, freezes or hands over behind Sentinels, or in a Cluster")
@pytest.mark.slow
async def test_sentinel_failovers_in_mid_run(sentinel: SentinelServers) -> None:
    def killed() -> None:
        sentinel.failed_over(sentinel.kill_primary())
        sentinel.revive()

    def frozen() -> None:
        victim = sentinel.freeze_primary()
        sentinel.failed_over(victim)
        victim.thaw()  # it takes itself for the primary until a Sentinel corrects it
        sentinel.settled()

    await ContinuousLoad(sentinel.url, "mid-run", 1, replicas=2).survives(killed, frozen)  # all: a failover may choose either


@pytest.mark.promise("The server is away")
@pytest.mark.slow
async def test_with_fail_fast_sends_go_on_after_a_failover(sentinel: SentinelServers) -> None:
    refused = 0
    async with CommandBus(
        sentinel.url, namespace="fast", registry=HandlerRegistry(), dispatch_timeout=60.0, fail_fast=True
    ) as bus:
        await bus.dispatch(Add(line="a", number=0))
        victim = await asyncio.to_thread(sentinel.kill_primary)
        over = asyncio.create_task(asyncio.to_thread(sentinel.failed_over, victim))
        async with asyncio.timeout(60):
            while not over.done() or not refused or not bus.server.is_available:
                try:
                    await bus.dispatch(Add(line="b", number=1))
                except TransportUnavailable:
                    refused += 1
                await asyncio.sleep(0.05)
        await over
        assert (await bus.dispatch(Add(line="a", number=2))).status == "accepted"
    assert refused > 1
    await asyncio.to_thread(sentinel.revive)


async def test_a_frozen_sentinel_delays_nothing(sentinel: SentinelServers) -> None:
    first = sentinel.sentinels[0]
    first.freeze()
    try:
        await ContinuousLoad(sentinel.url, "asleep", 1, dispatch_timeout=10.0).survives()
    finally:
        first.thaw()


async def test_a_frozen_node_delays_only_its_own_shards(cluster: ClusterServers) -> None:
    first = cluster.nodes[0]
    namespace = next(name for name in map("asleep{}".format, range(100)) if cluster.primary_of(f"{{{name}:0}}:") is not first)
    first.freeze()
    try:
        await ContinuousLoad(cluster.url, namespace, 1, dispatch_timeout=10.0).survives()
    finally:
        first.thaw()
        cluster.settled()


@pytest.mark.promise("A primary fails, freezes or hands over behind Sentinels, or in a Cluster")
@pytest.mark.slow
async def test_a_cluster_s_primary_freezes_in_mid_run(cluster: ClusterServers) -> None:
    def frozen() -> None:
        victim = cluster.freeze_primary("{frozen:0}:ready")
        cluster.failed_over(victim)
        victim.thaw()
        cluster.settled()

    await ContinuousLoad(cluster.url, "frozen", 6).survives(frozen)


@pytest.mark.promise("A slot of a Cluster moves")
async def test_a_cluster_s_primary_is_killed_and_slots_move_in_mid_run(cluster: ClusterServers) -> None:
    key = "{mid-run:0}:ready"

    def killed() -> None:
        cluster.failed_over(cluster.kill_primary(key))
        cluster.revive()

    await ContinuousLoad(cluster.url, "mid-run", 6).survives(
        lambda: cluster.move_slot(key), killed, lambda: cluster.move_slot(key)
    )


async def test_a_plain_request_finds_a_slot_that_has_moved(cluster: ClusterServers) -> None:
    """It is asked once, without the patience of those that are repeated: MOVED says that nothing was applied."""
    async with CommandBus(cluster.url, namespace="moved", registry=HandlerRegistry()) as bus:
        transport = bus.session.transport
        assert isinstance(transport, RedisTransport)
        keys = transport.keys.shards[0]
        server = transport.connections.at(keys.prefix)
        for client in (server.commands, server.factory.commands()):  # over the pipe, and over a pool
            server._commands = client
            await server.ask(lambda client: client.hset(keys.stats, "tried", "1"))
            await asyncio.to_thread(cluster.move_slot, keys.stats)
            assert await server.ask(lambda client: client.hget(keys.stats, "tried")) == b"1"


async def test_shards_spread_over_the_primaries(cluster: ClusterServers) -> None:
    async with CommandBus(cluster.url, namespace="spread", shards=12, registry=HandlerRegistry()) as bus:
        batch = await bus.dispatch_batch(Add(line=f"l{number}", number=number) for number in range(600))
        assert batch.accepted == 600
        held = [sum(map(node.client().hlen, node.client().keys("{spread:*}:active"))) for node in cluster.primaries()]  # type: ignore[arg-type]
        assert sum(held) == 600
        assert all(entities > 50 for entities in held)


@pytest.mark.promise("Accepted is stored")
async def test_without_replicas_nothing_is_confirmed_and_no_at_most_once_starts(tmp_path: Path) -> None:
    registry, started = HandlerRegistry(), asyncio.Event()

    @registry.handles(Once)
    async def once(command: Once) -> int:
        started.set()
        return command.number

    servers = SentinelServers(tmp_path)
    try:
        servers.start()
        async with CommandBus(
            servers.url, namespace="few", registry=registry, durability="replicated", wait_replicas=2, wait_timeout=0.2,
            dispatch_timeout=1.0,
        ) as bus:  # fmt: skip
            await bus.dispatch(Once(line="a", number=1))
            primary = servers.primary()
            victim = next(node for node in servers.nodes if node is not primary)
            victim.kill()
            with pytest.raises(Unconfirmed, match="too few replicas confirmed it"):
                await bus.dispatch(Once(line="b", number=2), command_id="b-2")
            async with bus.worker():
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(2):
                        await started.wait()
                victim.start()
                await asyncio.wait_for(started.wait(), 30)
                await bus.wait_idle(30)
            stats = await bus.stats()
            assert (stats.completed, stats.dead_letters) == (2, 0)  # what was not confirmed is there nevertheless
    finally:
        servers.stop()


async def test_a_server_that_cannot_keep_what_is_asked_for_is_refused(cluster: ClusterServers) -> None:
    node = cluster.primaries()[0]
    with pytest.raises(UnsuitableServer, match=r"write redis\+cluster://"):
        await CommandBus(f"redis://127.0.0.1:{node.port}").open()
    with pytest.raises(UnsuitableServer, match="appendfsync everysec, durability = 'always' needs appendfsync always"):
        await CommandBus(cluster.url, durability="always").open()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis+sentinel://localhost:1", "name the primary"),
        ("redis+sentinel://localhost:x/bus", "is no host:port"),
        ("redis+cluster://localhost:1/3", "no databases but 0"),
        ("http://localhost:1", "begins with redis://"),
    ],
)
async def test_a_url_that_names_no_server_is_refused(url: str, message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        await CommandBus(url).open()
