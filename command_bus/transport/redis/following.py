"""Connections that follow their server: they find it when they connect, and break when it says that it is not the primary (any more).

Once for asyncio and once for threads, as redis-py has its connections.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar, cast

from redis import RedisError
from redis.connection import Connection as SyncConnection
from redis.connection import ConnectionPool as SyncPool
from redis.connection import SSLConnection as SyncTLSConnection
from redis.exceptions import AskError, MovedError, ReadOnlyError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from command_bus.transport.redis.discovery import Locator, TopologyUrl

__all__ = ["following", "following_pool"]

T = TypeVar("T")


class _Following:
    """An asyncio connection that finds its server when it connects, and leaves it when it is no primary any more."""

    def __init__(self, *, locator: Locator, **options: Any) -> None:
        self._locator = locator
        super().__init__(**options)

    async def _connect(self) -> None:
        connection: Any = self
        connection.host, connection.port = await _in_thread(self._locator.locate)
        try:
            await super()._connect()  # type: ignore[misc]
        except (OSError, RedisError, TimeoutError):
            self._locator.moved()
            raise

    async def read_response(self, *args: Any, **options: Any) -> Any:
        """As redis-py, but an answer from the wrong server breaks the connection."""
        connection: Any = self
        try:
            return await super().read_response(*args, **options)  # type: ignore[misc]
        except (OSError, RedisError, TimeoutError) as error:
            fatal = self.left(error)
            if fatal is None or fatal is error:
                raise
            await connection.disconnect()
            raise fatal from error

    def left(self, error: Exception) -> Exception | None:
        """What ends the connection, if this error does: it failed, or its server is not the primary any more."""
        if isinstance(error, ResponseError) and not _wrong_server(error):
            return None
        self.lost()
        if not isinstance(error, ResponseError):
            return error
        connection: Any = self
        return RedisConnectionError(f"{connection.host}:{connection.port} is not the primary any more: {error}")

    def lost(self) -> None:
        """The connection is of no use any more: whoever connects next must look for the primary."""
        self._locator.moved()


async def _in_thread(look: Callable[[], T]) -> T:
    """What a blocking call gives, in a thread of its own: the default executor may be full of the application's work, and stays behind in a fork."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[T] = loop.create_future()

    def tell(value: T | None, error: Exception | None) -> None:
        if found.done():  # whoever waited was cancelled
            return
        if error is None:
            found.set_result(cast("T", value))
        else:
            found.set_exception(error)

    def run() -> None:
        value, failure = None, None
        try:
            value = look()
        except Exception as error:  # noqa: BLE001 - whoever waits must learn of it, whatever it is
            failure = error
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(tell, value, failure)

    threading.Thread(target=run, name="command_bus.locate", daemon=True).start()
    return await found


class _SyncFollowing:
    """The same for a thread."""

    def __init__(self, *, locator: Locator, **options: Any) -> None:
        self._locator = locator
        super().__init__(**options)

    def _connect(self) -> Any:
        connection: Any = self
        connection.host, connection.port = self._locator.locate()
        try:
            return super()._connect()  # type: ignore[misc]
        except (OSError, RedisError):
            self._locator.moved()
            raise

    def read_response(self, *args: Any, **options: Any) -> Any:
        """See `_Following`."""
        connection: Any = self
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]
        except ResponseError as error:
            if not _wrong_server(error):
                raise
            self._locator.moved()
            connection.disconnect()
            raise RedisConnectionError(f"{connection.host}:{connection.port} is not the primary any more: {error}") from error
        except (OSError, RedisError):
            self._locator.moved()
            raise


def _wrong_server(error: ResponseError) -> bool:
    """Whether a server says that it does not serve this; before Redis 7, inside of the text of a script's error.

    UNBLOCKED is what whoever waits there is told when the primary becomes a replica.
    """
    return (
        isinstance(error, ReadOnlyError | MovedError | AskError)
        or "-READONLY" in str(error)
        or "instance state changed" in str(error)
    )


@lru_cache
def following(kind: Any) -> Any:
    """The class of asyncio connections, made to follow its server."""
    return type(f"Following{kind.__name__}", (_Following, kind), {})


def following_pool(url: TopologyUrl, locator: Locator, **options: Any) -> Any:
    """A pool of synchronous connections that follow their server."""
    kind = SyncTLSConnection if url.tls else SyncConnection
    made = type(f"Following{kind.__name__}", (_SyncFollowing, kind), {})
    return SyncPool(connection_class=cast("Any", made), locator=locator, **{**url.options, **options})
