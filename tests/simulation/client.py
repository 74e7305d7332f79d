"""The clients of a simulated process: their requests travel over the simulated network."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from redis import Redis as SyncRedis
from redis.asyncio import Redis

from command_bus.testing.simulated.client import WiredPipe, WiredRedis
from command_bus.testing.simulated.server import Link
from tests.simulation.network import PATIENCE, Network

__all__ = ["SimClients"]


class _Wire:
    """The connections of one client."""

    def __init__(self, network: Network, owner: str, patience: float) -> None:
        self.network = network
        self.owner = owner
        self.patience = patience
        self.idle: list[Link] = []

    async def exchange(self, requests: list[list[bytes]]) -> list[Any]:
        link = self.idle.pop() if self.idle else Link(self.owner)
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self.network.send(link, requests, future, self.patience)
        try:
            answers = await future
        except BaseException:
            self.network.close(link, noticed_after=self.network.notice())
            raise
        self.idle.append(link)
        return answers

    def close(self) -> None:
        for link in self.idle:
            self.network.close(link, noticed_after=0.0)
        self.idle = []


class SimClients:
    """Implements `ClientFactory` for one process."""

    label = "simulated server"

    def __init__(self, network: Network, owner: str) -> None:
        self._network = network
        self._owner = owner

    def at(self, tag: str) -> SimClients:
        """See `ClientFactory`."""
        return self

    def commands(self) -> Redis:
        """See `ClientFactory`."""
        return WiredRedis(_Wire(self._network, self._owner, PATIENCE))

    def pipe(self, block: float = 0.0) -> WiredPipe:
        """See `ClientFactory`."""
        return WiredPipe(_Wire(self._network, self._owner, block + PATIENCE))

    def thread(self, patience: float) -> SyncRedis:
        """An asynchronous one here: the thread is simulated as a task."""
        return cast("SyncRedis", WiredRedis(_Wire(self._network, self._owner, patience)))
