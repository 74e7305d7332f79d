"""One body of tests over every server at hand: fakeredis in this process, the embedded Valkey, Redis from PATH."""

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
from command_bus.testing.memory import MemoryClients
from command_bus.transport.redis.connections import ClientFactory, UrlClients

SERVERS = ("memory", "valkey", "redis")


@dataclass
class Bench:
    """A namespace of its own on one server, and what tests do with it."""

    name: str
    clients: ClientFactory
    registry: HandlerRegistry = field(default_factory=HandlerRegistry)
    namespace: str = field(default_factory=lambda: f"t-{secrets.token_hex(4)}")
    url: str | None = None

    def bus(self, **arguments: Any) -> CommandBus:
        """A bus on this server; short times by default."""
        bus = CommandBus(
            "redis://unused", **{"namespace": self.namespace, "registry": self.registry, "lease": 5.0, "grace": 5.0, **arguments}
        )
        bus._clients = self.clients
        return bus

    def client(self) -> Redis:
        return self.clients.commands()

    async def keys(self) -> list[str]:
        """All keys of the namespace."""
        client = self.client()
        try:
            return sorted([key.decode() async for key in client.scan_iter(f"{{{self.namespace}:*")])
        finally:
            await client.aclose()

    async def entity_keys(self) -> list[str]:
        """Keys that belong to single entities or commands, without the marks that end by themselves."""
        standing = ("meta", "commands", "ready", "fence", "stats", "dead", "workers")
        return [key for key in await self.keys() if key.partition("}:")[2] not in standing and "}:k:" not in key]


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Starts each real server once, at its first use."""
    running: dict[str, EmbeddedServer] = {}

    def url(name: str) -> str:
        if name not in running:
            binary = (
                find_server_binary()
                if name == "valkey"
                else Path(shutil.which("redis-server") or pytest.skip("no redis-server on PATH"))
            )
            running[name] = EmbeddedServer.start(binary=binary)
        return running[name].url

    yield url
    for server in running.values():
        server.stop()


@pytest.fixture(params=SERVERS)
async def bench(request: pytest.FixtureRequest, servers: Callable[[str], str]) -> AsyncIterator[Bench]:
    if request.param == "memory":
        yield Bench("memory", MemoryClients())
        return
    url = servers(request.param)
    bench = Bench(request.param, UrlClients(url), url=url)
    yield bench
    client = bench.client()
    keys = [key async for key in client.scan_iter(f"{{{bench.namespace}:*")]
    if keys:
        await client.delete(*keys)
    await client.aclose()
