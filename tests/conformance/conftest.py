"""The same tests on every available server: fakeredis in this process, the embedded Valkey, Redis from PATH, the oldest supported Redis,
a primary behind Sentinels, and a Redis Cluster. Missing servers are skipped with the reason. `tests/selection.py` selects the servers of
each test."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from command_bus import CommandBus, HandlerRegistry
from command_bus.embedded import EmbeddedServer, find_server_binary
from command_bus.transport.redis.connection.clients import clients_of
from command_bus.transport.redis.connection.factory import ClientFactory
from command_bus.transport.redis.memory import MemoryClients
from scripts.redis62 import BINARY as OLDEST
from tests.conformance.harness import ManualWorker, TransportHarness, transport_harness
from tests.conformance.schedules.schedule_parts import Clock
from tests.selection import SERVERS
from tests.topologies import ClusterServers, SentinelServers

SINGLE = ("valkey", "redis", "redis62")
_SHARDS = 8  # that a test has at most


@dataclass
class Sandbox:
    """A namespace of one test on a server, with buses and clients."""

    name: str
    clients: ClientFactory
    registry: HandlerRegistry = field(default_factory=HandlerRegistry)
    namespace: str = field(default_factory=lambda: f"t-{secrets.token_hex(4)}")
    url: str | None = None

    def bus(self, **arguments: Any) -> CommandBus:
        """Return a bus on this server, with short times by default."""
        return CommandBus(
            "redis://unused",
            clients=self.clients,
            **{"namespace": self.namespace, "registry": self.registry, "lease": 5.0, "grace": 5.0, **arguments},
        )

    def client(self, shard: int = 0) -> Redis:
        """Return a client of the server that has a shard's keys."""
        return self.clients.at(f"{{{self.namespace}:{shard}}}:").commands()

    async def keys(self) -> list[str]:
        """Return all keys of the namespace."""
        return sorted(key.decode() for key in await self._keys())

    async def clean(self) -> None:
        """Delete all keys of the namespace."""
        for shard in self._shards():
            client = self.client(shard)
            rest = f"{shard}}}*" if self.name == "cluster" else "*"  # one command deletes of one slot only
            keys = [key async for key in client.scan_iter(f"{{{self.namespace}:{rest}", count=1000)]
            if keys:
                await client.delete(*keys)
            await client.aclose()

    def _shards(self) -> range:
        """Return shards whose servers have all keys: but for a Cluster one has them."""
        return range(_SHARDS if self.name == "cluster" else 1)

    async def _keys(self) -> set[bytes]:
        found: set[bytes] = set()
        for shard in self._shards():
            client = self.client(shard)
            found |= {key async for key in client.scan_iter(f"{{{self.namespace}:*", count=1000)}
            await client.aclose()
        return found

    async def entity_keys(self) -> list[str]:
        """Return keys of single entities or commands, without marks and producers' last answers, which expire."""
        standing = ("meta", "commands", "ready", "fence", "stats", "dead", "workers")
        names = [(key, key.partition("}:")[2]) for key in await self.keys()]
        return [key for key, name in names if name not in standing and not name.startswith(("k:", "p:"))]


Server = EmbeddedServer | SentinelServers | ClusterServers


def _started(name: str, folder: Path) -> Server:
    """Start a server."""
    if name == "valkey":
        return EmbeddedServer.start(binary=find_server_binary())
    if name == "redis62":
        return EmbeddedServer.start(binary=OLDEST if OLDEST.exists() else pytest.skip("no Redis 6.2: python3 scripts/redis62.py"))
    missing = [program for program in ("redis-server", "redis-cli") if shutil.which(program) is None]
    if missing:
        pytest.skip(f"no {missing[0]} on PATH")
    if name == "redis":
        return EmbeddedServer.start(binary=Path(shutil.which("redis-server") or ""))
    topology = SentinelServers(folder) if name == "sentinel" else ClusterServers(folder)
    return topology.start()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Start each real server once, at its first use."""
    running: dict[str, Server] = {}

    def url(name: str) -> str:
        if name not in running:
            running[name] = _started(name, tmp_path_factory.mktemp(name))
        return running[name].url

    yield url
    for server in running.values():
        server.stop()


@pytest.fixture(params=SERVERS)
async def sandbox(request: pytest.FixtureRequest, servers: Callable[[str], str]) -> AsyncIterator[Sandbox]:
    if request.param == "memory":
        yield Sandbox("memory", MemoryClients())
        return
    url = servers(request.param)
    sandbox = Sandbox(request.param, clients_of(url), url=url)
    yield sandbox
    await sandbox.clean()


@pytest.fixture
async def harness(sandbox: Sandbox) -> AsyncIterator[TransportHarness]:
    async with transport_harness(sandbox.clients, sandbox.namespace) as harness:
        yield harness


@pytest.fixture
def worker(harness: TransportHarness) -> ManualWorker:
    return harness.worker()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the time by which schedules are judged."""
    return Clock(monkeypatch)


@pytest.fixture
async def bus(sandbox: Sandbox, clock: Clock) -> AsyncIterator[CommandBus]:
    """Yield an open bus whose schedules follow `clock`."""
    async with sandbox.bus() as bus:
        yield clock.rule(bus)


Starter = Callable[..., EmbeddedServer]


@pytest.fixture
def start() -> Iterator[Starter]:
    """Start servers with settings of their own; they stop with the test."""
    running: list[EmbeddedServer] = []

    def started(**options: Any) -> EmbeddedServer:
        running.append(EmbeddedServer.start(**options))
        return running[-1]

    yield started
    for server in running:
        server.stop()
