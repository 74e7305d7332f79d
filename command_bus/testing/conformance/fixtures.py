"""Fixtures of the promises: a separate namespace on a server, buses, and workers that can be cut off, as behind a broken network."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from redis import Redis as SyncRedis
from redis import exceptions as redis_errors
from redis.asyncio import Redis

from command_bus.admin.info import DeadLetter
from command_bus.bus import CommandBus
from command_bus.handlers.registry import HandlerRegistry
from command_bus.session import TransportOpener
from command_bus.transport.redis.connection.factory import ClientFactory
from command_bus.transport.redis.connection.pipe import Requests


class _Cut:
    """A switch, shared by all clients: whether their connections are severed."""

    on = False

    def check(self) -> None:
        if self.on:
            raise redis_errors.ConnectionError("severed by the test")


class _SeverablePipe(Requests):
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


E = TypeVar("E", bound=Exception)
LEASE = 1.0
"""Seconds; short, because some promises are about what happens after it."""
_PATIENCE = 20.0
_TURN = 0.01


def expect(found: object, wanted: object, what: str) -> None:
    """Raise `AssertionError` unless both are equal. `python -O` would remove `assert`."""
    if found != wanted:
        raise AssertionError(f"{what}: {found!r}, not {wanted!r}")


async def raised(kind: type[E], doing: Awaitable[object], otherwise: str) -> E:
    """Return the error that an awaitable raises.

    Raises:
        AssertionError: It raised none, which broke what `otherwise` says.
    """
    try:
        await doing
    except kind as error:
        return error
    raise AssertionError(otherwise)


async def until(condition: Callable[[], Any | Awaitable[Any]], what: str) -> Any:
    """Wait until a condition is true, and return its value.

    Raises:
        AssertionError: It was not true in time.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + _PATIENCE
    while True:
        value = condition()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        if loop.time() > end:
            raise AssertionError(f"waited {_PATIENCE:g} s in vain: {what}")
        await asyncio.sleep(_TURN)


class Line(Protocol):
    """The connection of a worker, which a promise can cut."""

    def sever(self) -> None:
        """Cut the worker off: drop its requests from now on, and the answers of those under way."""
        ...

    def heal(self) -> None:
        """Let its requests through again."""
        ...


class PromiseSandbox:
    """A namespace of one promise, with buses and workers.

    Args:
        clients: Make clients of the server; or None, and `open_transport` is given.
        open_transport: Opens another transport, as `CommandBus(open_transport=…)`. All that it opens share one store.
        open_severable: Returns an opener of the same transport, and the line that cuts off what it opens. Not needed with `clients`.
        **settings: Those of every bus.

    Attributes:
        registry: Handlers of its workers.
    """

    def __init__(
        self,
        clients: ClientFactory | None = None,
        *,
        open_transport: TransportOpener | None = None,
        open_severable: Callable[[], tuple[TransportOpener, Line]] | None = None,
        **settings: Any,
    ) -> None:
        self.clients = clients
        self._open_transport = open_transport
        self._open_severable = open_severable
        self.registry = HandlerRegistry()
        self._settings: dict[str, Any] = {
            "namespace": f"conformance-{secrets.token_hex(4)}",
            "lease": LEASE,
            "grace": 2.0,
            "max_depth": 100,
            "unknown_grace": 0.2,
            **settings,
        }

    def bus(self) -> CommandBus:
        """Return a bus that is not open yet."""
        return self._bus(self.clients, self._open_transport)

    @property
    def can_lose_workers(self) -> bool:
        """Whether `worker_to_lose` can be used."""
        return self.clients is not None or self._open_severable is not None

    @asynccontextmanager
    async def working(self, workers: int = 1) -> AsyncGenerator[CommandBus]:
        """Open a bus with running workers."""
        async with self.bus() as bus:
            running = [bus.worker(concurrency=20) for _ in range(workers)]
            try:
                for worker in running:
                    await worker.start()
                yield bus
            finally:
                for worker in running:
                    await worker.stop()

    @asynccontextmanager
    async def worker_to_lose(self) -> AsyncGenerator[Line]:
        """Run a worker on a line of its own, which the test can sever.

        Raises:
            ValueError: The sandbox has neither clients nor `open_severable`.
        """
        bus, line = self._severable_bus()
        async with bus, bus.worker(concurrency=20):
            try:
                yield line
            finally:
                line.heal()

    def _severable_bus(self) -> tuple[CommandBus, Line]:
        if self._open_severable is not None:
            opener, line = self._open_severable()
            return self._bus(None, opener), line
        if self.clients is None:
            raise ValueError("a worker is lost by its clients or its transport: give the sandbox clients or open_severable")
        clients = Severable(self.clients)
        return self._bus(clients, None), clients

    def _bus(self, clients: ClientFactory | None, open_transport: TransportOpener | None) -> CommandBus:
        return CommandBus(
            "redis://conformance", registry=self.registry, clients=clients, open_transport=open_transport, **self._settings
        )

    @staticmethod
    async def letters(bus: CommandBus) -> list[DeadLetter]:
        """Return all dead letters."""
        return [letter async for letter in bus.dead_letters.list()]
