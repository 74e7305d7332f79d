"""Fixtures of the promises: a separate namespace on a server, buses, and workers that can lose their connections."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from command_bus.admin.info import DeadLetter
from command_bus.bus import CommandBus
from command_bus.handlers.registry import HandlerRegistry
from command_bus.testing.conformance.cut_connections import Severable
from command_bus.transport.redis.connection.factory import ClientFactory

__all__ = ["LEASE", "PromiseSandbox", "expect", "until"]

LEASE = 1.0
"""Seconds; short, because some promises are about what happens after it."""
_PATIENCE = 20.0
_TURN = 0.01


def expect(found: object, wanted: object, what: str) -> None:
    """Raise `AssertionError` unless both are equal. `python -O` would remove `assert`."""
    if found != wanted:
        raise AssertionError(f"{what}: {found!r}, not {wanted!r}")


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


class PromiseSandbox:
    """A namespace of one promise, with buses and workers.

    Args:
        clients: Make clients of the server; without them, the settings need `open_transport`, which opens another transport.
        **settings: Settings of every bus.

    Attributes:
        registry: Handlers of its workers.
    """

    def __init__(self, clients: ClientFactory | None = None, **settings: Any) -> None:
        self.clients = clients
        self.registry = HandlerRegistry()
        self._settings: dict[str, Any] = {
            "namespace": f"conformance-{secrets.token_hex(4)}",
            "lease": LEASE,
            "grace": 2.0,
            "max_depth": 100,
            "unknown_grace": 0.2,
            **settings,
        }

    def bus(self, clients: ClientFactory | None = None) -> CommandBus:
        """Return a bus that is not open yet."""
        return CommandBus("redis://conformance", registry=self.registry, clients=clients or self.clients, **self._settings)

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
    async def worker_to_lose(self) -> AsyncGenerator[Severable]:
        """Run a worker on separate connections, which the test can sever.

        Raises:
            ValueError: The sandbox has no clients.
        """
        if self.clients is None:
            raise ValueError("a worker is lost by its clients: give the sandbox some")
        line = Severable(self.clients)
        async with self.bus(line) as bus, bus.worker(concurrency=20):
            try:
                yield line
            finally:
                line.heal()

    @staticmethod
    async def letters(bus: CommandBus) -> list[DeadLetter]:
        """Return all dead letters."""
        return [letter async for letter in bus.dead_letters.list()]
