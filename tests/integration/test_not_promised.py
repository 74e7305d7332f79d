"""Limits of the promises: acknowledged commands that a server loses, and the setting that prevents it."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from command_bus import Command, CommandBus, EntityId, HandlerRegistry, TransportUnavailable, Unconfirmed
from command_bus.embedded import EmbeddedServer
from tests.chaos.preload import compiled, cut_to_synced
from tests.chaos.servers import Preloaded
from tests.topologies import SentinelServers
from tests.topologies.node import until as eventually

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(120)]


class Note(Command[None], entity="line"):
    line: EntityId
    number: int


def bus_to(url: str, durability: str) -> CommandBus:
    return CommandBus(url, namespace="loss", registry=HandlerRegistry(), durability=durability, dispatch_timeout=2.0)


@pytest.mark.parametrize("fsync", ["everysec", "always"])
async def test_a_power_loss_takes_what_was_not_synced(tmp_path: Path, fsync: str) -> None:
    """Commands are dispatched one by one; then the server is killed, and its file cut back to what had reached the disk."""
    library = compiled("power", tmp_path)
    if library is None:
        pytest.skip("no C compiler: the file cannot be cut back to what was synced")
    data = tmp_path / "data"
    with Preloaded(library):
        server = EmbeddedServer.start(tcp=True, persistence=data, config={"appendfsync": fsync})
    try:
        acknowledged = 0
        async with bus_to(server.url, "always" if fsync == "always" else "aof") as bus:
            until = time.monotonic() + 1.7
            while time.monotonic() < until:
                await bus.dispatch(Note(line=f"l{acknowledged % 10}", number=acknowledged))
                acknowledged += 1
        server.kill()
        cut_to_synced(data)
        server.restart()
        async with bus_to(server.url, "aof") as bus:
            kept = (await bus.stats()).depth
    finally:
        server.stop()
    print(f"appendfsync {fsync}: {acknowledged} acknowledged, {acknowledged - kept} lost with the power")
    if fsync == "always":
        assert kept == acknowledged
    else:
        assert kept < acknowledged


@pytest.mark.skipif(not (shutil.which("redis-server") and shutil.which("redis-cli")), reason="no redis-server on PATH")
@pytest.mark.parametrize("durability", ["aof", "replicated"])
async def test_a_failover_takes_what_no_replica_had(tmp_path: Path, durability: str) -> None:
    """Commands are dispatched while no replica is there; then the primary fails, and a replica that knows nothing of them takes over."""
    servers = SentinelServers(tmp_path)
    acknowledged = 0
    try:
        servers.start()
        primary = servers.primary()
        async with bus_to(servers.url, durability) as bus:
            for number in range(20):
                await bus.dispatch(Note(line="before", number=number))
            primary.client().set("after-them", "1")
            eventually(lambda: all(node.client().get("after-them") for node in servers.nodes), "replicas that have them", 20)
            for node in servers.nodes:
                if node is not primary:
                    node.kill()
            for number in range(20):
                try:
                    await bus.dispatch(Note(line=f"alone-{number}", number=number))
                except Unconfirmed:
                    break  # no caller got a confirmation
                acknowledged += 1
            primary.kill()
            for node in servers.nodes:
                if node is not primary:
                    node.start()
            await asyncio.to_thread(servers.failed_over, primary)
            kept = await depth(bus)
    finally:
        servers.stop()
    print(f"durability {durability}: {acknowledged} acknowledged alone, {20 + acknowledged - kept} lost with the primary")
    if durability == "replicated":
        assert (acknowledged, kept) == (0, 20)
    else:
        assert (acknowledged, kept) == (20, 20)


async def depth(bus: CommandBus) -> int:
    """Return the depth as soon as the new primary answers."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return (await bus.stats()).depth
        except TransportUnavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
