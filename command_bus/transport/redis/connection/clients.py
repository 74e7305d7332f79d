"""`clients_of`: clients for a URL of one server, of the primary behind Sentinels, or of a Redis Cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from redis import Redis as SyncRedis
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.connection import Connection, SSLConnection
from redis.exceptions import RedisError, ResponseError

from command_bus.errors import InvalidSettings
from command_bus.server_urls import SCHEMES_OF_SEVERAL, url_fault, with_taken_options
from command_bus.transport.redis.connection.factory import (
    SOCKET_TIMEOUT,
    ClientFactory,
    PooledClients,
    UrlClients,
    packing,
    pool_options,
    thread_options,
)
from command_bus.transport.redis.connection.failover import following, following_pool
from command_bus.transport.redis.connection.pipe import Requests
from command_bus.transport.redis.connection.topology import (
    ClusterMap,
    Locator,
    SentinelPrimary,
    TopologyUrl,
)


def clients_of(url: str, options: Mapping[str, Any] | None = None) -> ClientFactory:
    """Return the clients of a URL; nothing is connected yet.

    Args:
        url: Address of the server or servers.
        options: Further arguments of the connections (see `credentials`); the URL's own parts come before them.

    Raises:
        InvalidSettings: It is no URL of a server.
    """
    if (fault := url_fault(url)) is not None:
        raise InvalidSettings(f"url: {fault}")
    url = with_taken_options(url)
    if url.startswith(SCHEMES_OF_SEVERAL):
        parsed = TopologyUrl.parse(url).filled(options or {})
        if parsed.kind == "sentinel":
            return _tried(FollowingClients(parsed, SentinelPrimary(parsed)))
        return _tried(FollowingClients(parsed, None, ClusterMap(parsed)))
    return _tried(UrlClients(url, options))


def _tried(clients: ClientFactory) -> ClientFactory:
    """Make a connection without connecting it, to check its options. redis-py's error is not shown, because it may quote a password.

    Raises:
        InvalidSettings: A connection has no such option, or the option takes no such value.
    """
    try:
        clients.thread(SOCKET_TIMEOUT).connection_pool.make_connection()
    except (TypeError, ValueError, RedisError):
        raise InvalidSettings(
            "url: its options behind the ? are not all options of a connection, or one has a value that it cannot have"
        ) from None
    return clients


class FollowingClients(PooledClients):
    """Clients whose connections find their server themselves.

    Args:
        url: Address of the servers.
        locator: Finds the primary; None for that of slot 0, where any primary will do.
        cluster: Map with a locator for each shard; None without a cluster.
    """

    def __init__(self, url: TopologyUrl, locator: Locator | None, cluster: ClusterMap | None = None) -> None:
        self._url = url
        self._cluster = cluster
        self._locator = locator or (cluster or ClusterMap(url)).shard("")
        self.label = url.label
        self.cluster = cluster is not None

    def at(self, tag: str) -> ClientFactory:
        """Return its own client: behind Sentinels, all keys are in one place."""
        if self._cluster is None or (locator := self._cluster.shard(tag)) == self._locator:
            return self
        return FollowingClients(self._url, locator, self._cluster)

    def pool(self, connections: int) -> BlockingConnectionPool:
        options = {**self._url.options, **pool_options(connections), "locator": self._locator}
        kind = packing(following(SSLConnection if self._url.tls else Connection))
        return BlockingConnectionPool(connection_class=kind, **options)  # pyright: ignore[reportArgumentType]

    def thread(self, patience: float) -> SyncRedis:
        return SyncRedis(connection_pool=following_pool(self._url, self._locator, **thread_options(patience)))


_template: Any = Redis(protocol=2)
_PARSERS: Any = dict(_template.response_callbacks)


def _words(request: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a request as it goes over the wire: redis-py's 'CLIENT ID' are two words."""
    name = request[0]
    return (*name.split(), *request[1:]) if type(name) is str and " " in name else request


def _parsed(name: str, answer: Any, options: dict[str, Any]) -> Any:
    options.pop("keys", None)
    parse: Callable[..., Any] | None = _PARSERS.get(name)
    return answer if parse is None else parse(answer, **options)


class PipeRedis(Redis):
    """A client without a pool: it sends its requests over a pipe, and does not close it."""

    def __init__(self, pipe: Requests) -> None:
        self._pipe = pipe
        self.response_callbacks = _PARSERS

    def __del__(self, *_: Any) -> None:
        """Do nothing: there is no connection to close."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """See redis-py."""
        return _parsed(args[0], await self._pipe.request(*_words(args)), options)

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> _PipedPipeline:  # noqa: FBT002 - redis-py's
        """Return a pipeline, whose requests are sent together; never a transaction."""
        return _PipedPipeline(self._pipe)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """See redis-py; the pipe stays."""


class _PipedPipeline(Pipeline):
    def __init__(self, pipe: Requests) -> None:
        self._pipe = pipe
        self.command_stack: list[Any] = []
        self.response_callbacks = _PARSERS

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self.command_stack.append((args, options))
        return self

    async def execute(self, raise_on_error: bool = True) -> list[Any]:  # noqa: FBT002 - redis-py's
        stack, self.command_stack = self.command_stack, []
        answers = await asyncio.gather(*(self._pipe.request(*_words(args)) for args, _ in stack), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and (raise_on_error or not isinstance(answer, ResponseError)):
                raise answer
        return [
            answer if isinstance(answer, RedisError) else _parsed(args[0], answer, options)
            for (args, options), answer in zip(stack, answers, strict=True)
        ]
