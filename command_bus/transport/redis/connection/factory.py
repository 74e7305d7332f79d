"""`ClientFactory`: makes the clients of one server; `UrlClients` makes them from a URL.

redis-py 8 repeats a request up to ten times when a reply is lost, and its default socket timeout (5 s) is shorter than a blocking
read: one cut reply made two entries of one XADD, and `XREADGROUP BLOCK 7000` failed after a minute. So clients here never retry by
themselves, and a blocking read has a connection of its own whose timeout is longer than its block. RESP2 everywhere: replies have
one shape on every server.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Protocol, cast

import hiredis
from redis import Redis as SyncRedis
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.retry import Retry as SyncRetry

from command_bus.server_urls import redacted
from command_bus.transport.redis.connection.failover import leaving, sync_leaving
from command_bus.transport.redis.connection.pipe import Pipe, Requests

SOCKET_TIMEOUT = 5.0
CONNECT_TIMEOUT = 5.0


class ClientFactory(Protocol):
    """Makes clients of one server; implement it for fakeredis or for another topology."""

    label: str

    def at(self, tag: str) -> ClientFactory:
        """Return clients of the server that has the keys with a hash tag; itself, if one server has all."""
        ...

    def commands(self) -> Redis:
        """Return a client for short requests."""
        ...

    def pipe(self, block: float = 0.0) -> Requests:
        """Return a connection of its own for scripts, or for reads that block up to `block` seconds."""
        ...

    def thread(self, patience: float) -> SyncRedis:
        """Return a synchronous client for the thread that renews leases; it waits `patience` seconds for an answer."""
        ...


def pool_options(connections: int) -> dict[str, Any]:
    """Return the arguments of a pool of so many connections; if all are in use, it waits for one."""
    return {
        **_options(SOCKET_TIMEOUT, CONNECT_TIMEOUT, connections),
        "timeout": SOCKET_TIMEOUT,
        "retry": Retry(NoBackoff(), 0),
    }


def thread_options(patience: float) -> dict[str, Any]:
    """Return the arguments of a synchronous client that waits so many seconds for an answer."""
    return {**_options(patience, patience, 2), "retry": SyncRetry(NoBackoff(), 0)}


def _options(socket_timeout: float, connect_timeout: float, connections: int) -> dict[str, Any]:
    return {
        "protocol": 2,
        "decode_responses": False,
        "socket_timeout": socket_timeout,
        "socket_connect_timeout": connect_timeout,
        "max_connections": connections,
        "health_check_interval": 0,
    }


class PooledClients(ClientFactory):
    """Asynchronous clients that have their connections from pools."""

    def pool(self, connections: int) -> BlockingConnectionPool:
        """Return a pool of so many connections."""
        raise NotImplementedError

    def commands(self) -> Redis:
        return Redis.from_pool(self.pool(16))

    def pipe(self, block: float = 0.0) -> Pipe:
        return Pipe(Redis.from_pool(self.pool(1)), block + SOCKET_TIMEOUT)


class UrlClients(PooledClients):
    """Clients of the server behind a URL.

    Args:
        url: Address of the server.
        options: Further arguments of its connections (see `credentials`); the URL's own parts come before them.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._url = url
        self._options = dict(options or {})
        self.label = redacted(url).split("?", maxsplit=1)[0]

    def at(self, tag: str) -> ClientFactory:
        return self

    def pool(self, connections: int) -> BlockingConnectionPool:
        pool = BlockingConnectionPool.from_url(self._url, **self._options, **pool_options(connections))
        pool.connection_class = packing(leaving(cast("Any", pool.connection_class)))
        return pool

    def thread(self, patience: float) -> SyncRedis:
        client: SyncRedis = SyncRedis.from_url(self._url, **self._options, **thread_options(patience))
        pool: Any = client.connection_pool
        pool.connection_class = sync_leaving(pool.connection_class)
        return client


class _Packing:
    """Packs requests in C: redis-py's asyncio connections do it in Python, which takes six times as long."""

    def pack_command(self, *args: Any) -> list[bytes]:
        """Return the request as it goes over the wire."""
        name, *rest = args
        words = name.split() if isinstance(name, str) else (name,)  # 'CLIENT SETINFO' are two
        request: Any = (*words, *rest)
        return [hiredis.pack_command(request)]


@lru_cache
def packing(kind: Any) -> Any:
    """Return a class of connections (plain, TLS, socket file) with fast packing."""
    return type(f"Fast{kind.__name__}", (_Packing, kind), {})
