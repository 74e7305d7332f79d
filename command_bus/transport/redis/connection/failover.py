"""Connections that leave a server that is not the primary any more, and connections that find the primary themselves.

A primary that becomes a replica closes nothing, so a connection that stayed would be refused for as long as both live. `leaving`
connections break when their server says that it is not the primary: a name or a balancer may lead to another server by then, and the
next connection to it. `following` connections look up the primary whenever they connect. Each exists for asyncio and for threads, as
redis-py has its connections.
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
from redis.exceptions import ResponseError

from command_bus.transport.redis.connection.errors import NotPrimary, is_read_only, is_redirect, was_unblocked
from command_bus.transport.redis.connection.topology import Locator, TopologyUrl

T = TypeVar("T")


class _LeavingBase:
    """The part that connections for asyncio and for threads share."""

    def left(self, error: Exception) -> Exception | None:
        """Return the error that ends the connection: it failed, or its server is not the primary any more. None if it goes on."""
        fatal: Exception = error
        if isinstance(error, ResponseError):
            if not self._is_of_another(error):
                return None
            fatal = NotPrimary(error)
        self.lost()
        return fatal

    def lost(self) -> None:
        """Take note that the connection is of no use any more."""

    def _is_of_another(self, error: ResponseError) -> bool:
        """Return whether a server answered that another is the primary."""
        return is_read_only(error) or was_unblocked(error)


class _Leaving(_LeavingBase):
    """An asyncio connection that breaks when its server is not the primary any more."""

    async def read_response(self, *args: Any, **options: Any) -> Any:
        """Read a response; an answer from the wrong server breaks the connection."""
        connection: Any = self
        try:
            return await super().read_response(*args, **options)  # type: ignore[misc]
        except (OSError, RedisError, TimeoutError) as error:
            fatal = self.left(error)
            if fatal is None or fatal is error:
                raise
            await connection.disconnect()
            raise fatal from error


class _SyncLeaving(_LeavingBase):
    """A synchronous connection that breaks when its server is not the primary any more."""

    def read_response(self, *args: Any, **options: Any) -> Any:
        connection: Any = self
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]
        except (OSError, RedisError) as error:
            fatal = self.left(error)
            if fatal is None or fatal is error:
                raise
            connection.disconnect()
            raise fatal from error


@lru_cache
def leaving(kind: Any) -> Any:
    """Return a class of asyncio connections that break when their server is not the primary any more."""
    return type(f"Leaving{kind.__name__}", (_Leaving, kind), {})


@lru_cache
def sync_leaving(kind: Any) -> Any:
    """Return a class of synchronous connections that break when their server is not the primary any more."""
    return type(f"Leaving{kind.__name__}", (_SyncLeaving, kind), {})


class _FollowingBase:
    """The part that connections for asyncio and for threads share: they have a locator."""

    _locator: Locator

    def lost(self) -> None:
        """Make the next connection look for the primary."""
        self._locator.moved()

    def _is_of_another(self, error: ResponseError) -> bool:
        """Return whether a server answered that another is the primary, or has the slot."""
        return is_redirect(error) or bool(super()._is_of_another(error))  # type: ignore[misc]


class _Following(_FollowingBase, _Leaving):
    """An asyncio connection that looks for the primary when it connects, and breaks when its server is not the primary any more."""

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


async def _in_thread(look: Callable[[], T]) -> T:
    """Run a blocking call in a thread of its own, and return its result.

    The default executor may be full of the application's work, and its threads do not exist in a forked process.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[T] = loop.create_future()

    def report(value: T | None, error: Exception | None) -> None:
        if found.done():  # the caller was cancelled
            return
        if error is None:
            found.set_result(cast("T", value))
        else:
            found.set_exception(error)

    def run() -> None:
        value, failure = None, None
        try:
            value = look()
        except Exception as error:  # noqa: BLE001 - the caller must get it, whatever it is
            failure = error
        with suppress(RuntimeError):  # the loop was closed in between
            loop.call_soon_threadsafe(report, value, failure)

    threading.Thread(target=run, name="command_bus.locate", daemon=True).start()
    return await found


class _SyncFollowing(_FollowingBase, _SyncLeaving):
    """A synchronous connection that looks for the primary when it connects."""

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


@lru_cache
def following(kind: Any) -> Any:
    """Return a class of asyncio connections that find the primary."""
    return type(f"Following{kind.__name__}", (_Following, kind), {})


def following_pool(url: TopologyUrl, locator: Locator, **options: Any) -> Any:
    """Return a pool of synchronous connections that find the primary."""
    kind = SyncTLSConnection if url.tls else SyncConnection
    made = type(f"Following{kind.__name__}", (_SyncFollowing, kind), {})
    return SyncPool(connection_class=cast("Any", made), locator=locator, **{**url.options, **options})
