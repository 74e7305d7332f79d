"""A server in this process: the bus's own code over fakeredis, for unit tests without a server.

Two faults of fakeredis 2.40 in blocking reads are corrected here:

- A read goes on waiting after its connection was closed, and swallows the next message. Here closing a connection ends its blocked read.
  (Cause: `AsyncFakeSocket._blocking` starts a task that is never ended.)
- `XREADGROUP … COUNT … BLOCK` returns at once when there is nothing to read. A reader that asks again then spins. Since Python 3.12, whose
  `wait_for` does not yield to the event loop for an answer that is there, nothing else runs any more. Here the read blocks, and ends with
  the next write once its group is deleted. (Cause: `_xreadgroup` returns an empty dict where `_blocking` expects None.)
"""

from __future__ import annotations

import asyncio
from typing import Any

from redis import Redis as SyncRedis
from redis.asyncio import Redis

from command_bus.errors import MissingExtra
from command_bus.transport.redis.connection.factory import ClientFactory
from command_bus.transport.redis.connection.pipe import ClientRequests

try:
    import fakeredis
    from fakeredis import aioredis as fake_async
    from fakeredis.aioredis import AsyncFakeSocket, FakeAsyncRedisConnection
except ImportError as error:  # pragma: no cover - depends on the environment
    raise MissingExtra("CommandBus.in_memory() needs fakeredis with Lua: pip install 'command-bus[testing]'") from error


class _Socket(AsyncFakeSocket):
    """A socket whose reads block until there is something to read, and that knows the task of its blocked read."""

    blocked: asyncio.Task[Any] | None = None

    def _xreadgroup(self, consumer_name: bytes, group_params: list[tuple[Any, bytes, bytes]], *args: Any, **options: Any) -> Any:
        if not all(self._has(stream, group) for group, stream, _ in group_params):
            return {}  # gone while it waited: the read ends, and the next says so
        return super()._xreadgroup(consumer_name, group_params, *args, **options) or None

    def _has(self, stream: bytes, group: Any) -> bool:
        item = self._db.get(stream)
        return item is not None and item.value is group.stream and group.stream.group_get(group.name) is group

    async def _async_blocking(self, *args: Any, **options: Any) -> None:
        self.blocked = asyncio.current_task()
        try:
            await super()._async_blocking(*args, **options)
        finally:
            self.blocked = None


class _Connection(FakeAsyncRedisConnection):
    """A connection that ends its blocked read when it is closed."""

    async def _connect(self) -> None:
        await super()._connect()
        if self._sock is not None:
            self._sock.__class__ = _Socket

    async def disconnect(self, nowait: bool = False, **options: Any) -> None:  # type: ignore[override]  # noqa: FBT002 - fakeredis's signature
        blocked = getattr(self._sock, "blocked", None)
        if blocked is not None:
            blocked.cancel()
        await super().disconnect(nowait=nowait, **options)


class MemoryClients(ClientFactory):
    """Clients of one fake server; buses that share a `MemoryClients` share its data."""

    label = "in-memory server"

    def __init__(self) -> None:
        self._server = fakeredis.FakeServer(version=(7,))

    def at(self, tag: str) -> MemoryClients:
        return self

    def commands(self) -> Redis:
        return self._client()

    def pipe(self, block: float = 0.0) -> ClientRequests:
        """Return None: there is no socket."""
        return ClientRequests(self._client())

    def thread(self, patience: float) -> SyncRedis:
        client: SyncRedis = fakeredis.FakeRedis(server=self._server, protocol=2)
        return client

    def _client(self) -> Redis:
        client: Redis = fake_async.FakeRedis(
            server=self._server, connection_class=_Connection, protocol=2, max_connections=100_000
        )
        return client
