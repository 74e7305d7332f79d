"""Clients whose connections can be severed: their user is alive, but cut off, as behind a broken network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis import Redis as SyncRedis
from redis import exceptions as redis_errors
from redis.asyncio import Redis

from command_bus.transport.redis.connection.factory import ClientFactory
from command_bus.transport.redis.connection.pipe import Requests, TaskRequests


class _Cut:
    """A switch, shared by all clients: whether their connections are severed."""

    on = False

    def check(self) -> None:
        if self.on:
            raise redis_errors.ConnectionError("severed by the test")


class _SeverablePipe(TaskRequests):
    """Implements `Requests`."""

    def __init__(self, pipe: Requests, cut: _Cut) -> None:
        super().__init__()
        self._pipe = pipe
        self._cut = cut

    async def close(self) -> None:
        await super().close()
        await self._pipe.close()

    async def request(self, *request: Any) -> Any:
        self._cut.check()
        answer = await self._pipe.request(*request)
        self._cut.check()
        return answer


class Severable(ClientFactory):
    """Implements `ClientFactory` over another one."""

    def __init__(self, clients: ClientFactory, cut: _Cut | None = None) -> None:
        self.label = clients.label
        self.cluster = getattr(clients, "cluster", False)  # an attribute of a Redis Cluster's factory
        self._clients = clients
        self._cut = cut or _Cut()

    def sever(self) -> None:
        """Drop all requests from now on, and the answers of those under way."""
        self._cut.on = True

    def heal(self) -> None:
        """Let requests through again."""
        self._cut.on = False

    def at(self, tag: str) -> ClientFactory:
        clients = self._clients.at(tag)
        return self if clients is self._clients else Severable(clients, self._cut)

    def commands(self) -> Redis:
        client: Redis = self._guarded(self._clients.commands(), self._awaited)
        return client

    def pipe(self, block: float = 0.0) -> Requests:
        return _SeverablePipe(self._clients.pipe(block), self._cut)

    def thread(self, patience: float) -> SyncRedis:
        client: SyncRedis = self._guarded(self._clients.thread(patience), self._called)
        return client

    def _guarded(self, client: Any, guarded: Callable[[Any], Any]) -> Any:
        """Return a client whose requests and pipelines are guarded."""
        pipeline = client.pipeline

        def guarded_pipeline(*arguments: Any, **options: Any) -> Any:
            pipe = pipeline(*arguments, **options)
            pipe.execute = guarded(pipe.execute)
            return pipe

        client.execute_command, client.pipeline = guarded(client.execute_command), guarded_pipeline
        return client

    def _called(self, function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self._cut.check()
            answer = function(*arguments, **options)
            self._cut.check()
            return answer

        return call

    def _awaited(self, function: Any) -> Any:
        async def call(*arguments: Any, **options: Any) -> Any:
            self._cut.check()
            answer = await function(*arguments, **options)
            self._cut.check()
            return answer

        return call
