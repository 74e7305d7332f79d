"""Sentinels with three servers, and a Redis Cluster, as targets of the harness: a server that is killed or frozen is failed over."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from tests.topologies import ClusterServers, Node, SentinelServers

__all__ = ["Several"]

_SUPPORTED = ("kill", "stop", "clock", "deploy", "client_kill", "script_flush", "server")


class Several:
    """Implements `Target`.

    Args:
        name: `sentinel` or `cluster`.
        folder: For the servers' data.
        seed: Chooses victims.
    """

    def __init__(self, name: str, folder: Path, seed: int) -> None:
        self.name = name
        self.address: tuple[str, int] | None = None
        self._servers = SentinelServers(folder / "servers") if name == "sentinel" else ClusterServers(folder / "servers")
        self._servers.start()
        self.url = self._servers.url
        self._random = random.Random(seed)
        self._clients: dict[int, Redis] = {}
        self._primaries = self._look()
        self._victim: tuple[Node, bool] | None = None
        self.supports = frozenset(_SUPPORTED)
        self.missing = {
            "net": "processes find the servers by themselves, so that no proxy stands between",
            "oom": "injected on a single server",
            "power": "injected on a single server",
        }

    def _look(self) -> list[Node]:
        servers = self._servers
        return [servers.primary()] if isinstance(servers, SentinelServers) else list(dict.fromkeys(servers.primaries()))

    def admins(self) -> list[Redis]:
        """See `Target`."""
        return [self._client(node) for node in self._primaries]

    def _client(self, node: Node) -> Redis:
        client = self._clients.get(node.port)
        if client is None:
            client = Redis(host="127.0.0.1", port=node.port, socket_timeout=5.0, retry=Retry(NoBackoff(), 0))
            self._clients[node.port] = client
        return client

    async def kill(self, *, power: bool = False) -> None:
        """See `Target`; one in three is frozen instead, and takes itself for a primary when it wakes."""
        assert not power
        self._victim = await asyncio.to_thread(self._strike)

    def _strike(self) -> tuple[Node, bool]:
        victim, frozen = self._random.choice(self._look()), self._random.random() < 1 / 3
        if frozen:
            victim.freeze()
        else:
            victim.kill()
        return victim, frozen

    async def revive(self) -> None:
        """See `Target`: another server is the primary then, and this one follows it."""
        await asyncio.to_thread(self._heal)

    def _heal(self) -> None:
        if self._victim is None:
            return
        victim, frozen = self._victim
        self._servers.failed_over(victim, 90)
        if frozen:
            victim.thaw()
        self._primaries = self._look()
        self._servers.revive()
        self._primaries = self._look()
        self._victim = None

    async def stop(self) -> None:
        """See `Target`."""
        for client in self._clients.values():
            await client.aclose()
        await asyncio.to_thread(self._servers.stop)
