"""The clients of a simulated process: their requests travel over the simulated network."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from redis import Redis as SyncRedis
from redis.asyncio import Redis

from command_bus.testing.clock import TaskLeaseKeeper
from command_bus.testing.simulated.live import Wire, WirePipe, WireRedis
from command_bus.testing.simulated.server import Link
from tests.simulation.loop import LANE, SimLoop
from tests.simulation.network import PATIENCE, Network

__all__ = ["SimClients"]


class _Connections:
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

    def wire(self) -> Wire:
        return Wire(self.exchange, self.close)


class _HandlersLoop:
    """The event loop as the renewing thread sees it: callbacks run in the main lane."""

    def __init__(self, loop: SimLoop, context: Any) -> None:
        self._loop = loop
        self._context = context

    def is_closed(self) -> bool:
        return False

    def call_soon_threadsafe(self, callback: Any, *args: Any) -> None:
        self._loop.call_soon(callback, *args, context=self._context)


class LaneLeaseKeeper(TaskLeaseKeeper):
    """The lease keeper as a task of the process's second lane, which runs on while the loop is blocked."""

    def begin(self) -> tuple[Any, asyncio.Task[None]]:
        loop: Any = asyncio.get_running_loop()
        lane = LANE.get()
        assert lane is not None
        process = lane.process
        task = loop.create_task(self.renewing(), name="command_bus.leases", context=process.thread_context.copy())
        return _HandlersLoop(loop, process.context), task


class SimClients:
    """Implements `ClientFactory` for one process."""

    label = "simulated server"
    lease_keeper = LaneLeaseKeeper

    def __init__(self, network: Network, owner: str) -> None:
        self._network = network
        self._owner = owner

    def at(self, tag: str) -> SimClients:
        """See `ClientFactory`."""
        return self

    def commands(self) -> Redis:
        """See `ClientFactory`."""
        return WireRedis(_Connections(self._network, self._owner, PATIENCE).wire())

    def pipe(self, block: float = 0.0) -> WirePipe:
        """See `ClientFactory`."""
        return WirePipe(_Connections(self._network, self._owner, block + PATIENCE).wire())

    def thread(self, patience: float) -> SyncRedis:
        """Return an asynchronous client, because the thread is simulated as a task."""
        return cast("SyncRedis", WireRedis(_Connections(self._network, self._owner, patience).wire()))
