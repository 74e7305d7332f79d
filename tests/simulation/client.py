"""redis-py's asyncio client over the simulated network: its commands and parsers are the real ones, pool and sockets are not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from redis import Redis as SyncRedis
from redis import exceptions as redis_errors
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from tests.simulation.network import PATIENCE, Network
from tests.simulation.server import Link

__all__ = ["SimClients", "SimPipe"]

_template: Any = Redis(protocol=2)
_CALLBACKS: dict[str, Callable[..., Any]] = dict(_template.response_callbacks)


def _packed(args: tuple[Any, ...]) -> list[bytes]:
    packed: list[bytes] = []
    for arg in args:
        kind = type(arg)
        if kind is bytes:
            packed.append(arg)
        elif kind is str:
            packed.append(arg.encode())
        else:
            packed.append(str(arg).encode())
    if b" " in packed[0]:
        packed[:1] = packed[0].split()
    return packed


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


class _Commands:
    """What client and pipeline share: no connection pool."""

    wire: _Wire
    response_callbacks: Any

    def parsed(self, name: str, answer: Any, options: dict[str, Any]) -> Any:
        callback = _CALLBACKS.get(name)
        return answer if callback is None or isinstance(answer, Exception) else callback(answer, **options)

    def __del__(self, *_: Any) -> None:
        pass


class SimRedis(_Commands, Redis):  # type: ignore[misc]  # redis-py's own mixins disagree
    """A client whose requests travel over the simulated network."""

    def __init__(self, wire: _Wire) -> None:
        self.wire = wire
        self.response_callbacks = _CALLBACKS

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        (answer,) = await self.wire.exchange([_packed(args)])
        if isinstance(answer, Exception):
            raise answer
        options.pop("keys", None)
        return self.parsed(args[0], answer, options)

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> SimPipeline:
        return SimPipeline(self.wire)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        self.wire.close()


class SimPipeline(_Commands, Pipeline):  # type: ignore[misc]  # as above
    """A pipeline without transaction."""

    def __init__(self, wire: _Wire) -> None:
        self.wire = wire
        self.command_stack: list[Any] = []
        self.response_callbacks = _CALLBACKS

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self.command_stack.append((args, options))
        return self

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        stack, self.command_stack = self.command_stack, []
        if not stack:
            return []
        answers = await self.wire.exchange([_packed(args) for args, _ in stack])
        found = []
        for (args, options), answer in zip(stack, answers, strict=True):
            if raise_on_error and isinstance(answer, redis_errors.ResponseError):
                raise answer
            options.pop("keys", None)
            found.append(self.parsed(args[0], answer, options))
        return found


class SimPipe:
    """Implements `Requests`: what scripts and blocking reads go over."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    async def request(self, *request: Any) -> Any:
        """See `Requests`."""
        (answer,) = await self._wire.exchange([_packed(request)])
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        """See `Requests`."""
        self._wire.close()


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
        return SimRedis(_Wire(self._network, self._owner, PATIENCE))

    def pipe(self, block: float = 0.0) -> SimPipe:
        """See `ClientFactory`."""
        return SimPipe(_Wire(self._network, self._owner, block + PATIENCE))

    def thread(self, patience: float) -> SyncRedis:
        """An asynchronous one here: the thread is simulated as a task."""
        return cast("SyncRedis", SimRedis(_Wire(self._network, self._owner, patience)))
