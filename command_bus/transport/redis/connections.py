"""Connections: one client for commands, one for each blocking read.

redis-py 8 repeats a request up to ten times when a reply is lost, and its default socket timeout (5 s) is shorter than a blocking
read: one cut reply made two entries of one XADD, and `XREADGROUP BLOCK 7000` failed after a minute. So connections here never retry
by themselves, and a blocking read has a connection of its own whose timeout is longer than its block. RESP2 everywhere: replies have
one shape on every server.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable
from functools import lru_cache
from random import Random
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

import hiredis
from redis import Redis as SyncRedis
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError
from redis.retry import Retry as SyncRetry

from command_bus.clock import mono
from command_bus.errors import TransportUnavailable
from command_bus.randomness import JITTER
from command_bus.settings import redacted
from command_bus.transport.redis.errors import CONNECTION_ERRORS, translated
from command_bus.transport.redis.scripts import Script

__all__ = ["Backoff", "ClientFactory", "Connections", "UrlClients"]

P = ParamSpec("P")
T = TypeVar("T")

SOCKET_TIMEOUT = 5.0
CONNECT_TIMEOUT = 5.0


class ClientFactory(Protocol):
    """Makes clients of one server; the seam where fakeredis, or a client for another topology, is put in."""

    label: str

    def commands(self) -> Redis:
        """A client for short requests."""
        ...

    def blocking(self, block: float) -> Redis:
        """A client with one connection for reads that block up to `block` seconds."""
        ...

    def thread(self, patience: float) -> SyncRedis:
        """A synchronous client for the thread that renews leases; it waits `patience` seconds for an answer."""
        ...


class UrlClients:
    """Clients of the server behind a URL."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.label = redacted(url).split("?", maxsplit=1)[0]

    def commands(self) -> Redis:
        """See `ClientFactory`."""
        return self._client(SOCKET_TIMEOUT, 16)

    def blocking(self, block: float) -> Redis:
        """See `ClientFactory`."""
        return self._client(block + SOCKET_TIMEOUT, 2)

    def _client(self, socket_timeout: float, connections: int) -> Redis:
        pool = BlockingConnectionPool.from_url(
            self._url,
            protocol=2,
            decode_responses=False,
            socket_timeout=socket_timeout,
            socket_connect_timeout=CONNECT_TIMEOUT,
            max_connections=connections,
            timeout=SOCKET_TIMEOUT,  # who finds all connections in use waits for one
            health_check_interval=0,
            retry=Retry(NoBackoff(), 0),
        )
        pool.connection_class = _fast(cast("Any", pool.connection_class))
        return Redis.from_pool(pool)

    def thread(self, patience: float) -> SyncRedis:
        """See `ClientFactory`."""
        client: SyncRedis = SyncRedis.from_url(
            self._url,
            protocol=2,
            decode_responses=False,
            socket_timeout=patience,
            socket_connect_timeout=patience,
            max_connections=2,
            health_check_interval=0,
            retry=SyncRetry(NoBackoff(), 0),
        )
        return client


class _Packing:
    """Packs requests in C: redis-py's asyncio connections do it in Python, which takes six times as long."""

    def pack_command(self, *args: Any) -> list[bytes]:
        """The request as it goes over the wire."""
        name, *rest = args
        words = name.split() if isinstance(name, str) else (name,)  # 'CLIENT SETINFO' are two
        request: Any = (*words, *rest)
        return [hiredis.pack_command(request)]


@lru_cache
def _fast(kind: Any) -> Any:
    """The class of connections that the URL asks for (plain, TLS, socket file), with fast packing."""
    return type(f"Fast{kind.__name__}", (_Packing, kind), {})


class Backoff:
    """Capped exponential backoff with full jitter: 20 ms, doubling, to 2 s."""

    __slots__ = ("_delay", "_random")

    def __init__(self, random: Random | None = None) -> None:
        self._random = random or JITTER
        self._delay = 0.02

    def next(self) -> float:
        """Seconds to wait before the next try."""
        delay, self._delay = self._delay, min(self._delay * 2, 2.0)
        return delay * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start again: something worked."""
        self._delay = 0.02


class Connections:
    """The clients of one bus in one process, opened lazily and closed together."""

    def __init__(self, factory: ClientFactory) -> None:
        self.factory = factory
        self.label = factory.label
        self._pid = os.getpid()
        self._commands: Redis | None = None
        self._owned: list[Redis] = []
        self.reconnects = 0

    @property
    def commands(self) -> Redis:
        """The client for short requests."""
        if self._commands is None:
            self._commands = self.factory.commands()
            self._owned.append(self._commands)
        return self._commands

    def blocking(self, block: float) -> Redis:
        """A new client for one blocking reader."""
        client = self.factory.blocking(block)
        self._owned.append(client)
        return client

    async def close(self) -> None:
        """Close every client; idempotent."""
        owned, self._owned, self._commands = self._owned, [], None
        for client in owned:
            try:
                await client.aclose()
            except CONNECTION_ERRORS:  # a connection that is broken already is closed enough
                continue

    async def run(self, script: Script, keys: list[str], args: list[Any]) -> Any:
        """Run a script once; load it where the server does not know it.

        Raises:
            CommandBusError: As `translated` decides.
        """
        client = self.commands
        try:
            try:
                return await client.execute_command("EVALSHA", script.sha, len(keys), *keys, *args)  # type: ignore[no-untyped-call]
            except NoScriptError:
                return await client.execute_command("EVAL", script.text, len(keys), *keys, *args)  # type: ignore[no-untyped-call]
        except CONNECTION_ERRORS as error:
            raise translated(error, self.label) from error

    async def ask(self, request: Callable[Concatenate[Redis, P], Any], *args: P.args, **options: P.kwargs) -> Any:
        """Send a plain request once, with its errors translated: `request(client, *args)`.

        Raises:
            CommandBusError: As `translated` decides.
        """
        try:
            answer = request(self.commands, *args, **options)
            return await answer if inspect.isawaitable(answer) else answer
        except CONNECTION_ERRORS as error:
            raise translated(error, self.label) from error

    async def insist(self, attempt: Callable[[], Awaitable[T]], deadline: float) -> T:
        """Repeat an idempotent request until it has an answer, with backoff; `deadline` is monotonic.

        Raises:
            TransportUnavailable: The deadline passed; `outcome_unknown` if any try may have been applied.
        """
        backoff = Backoff()
        unknown = False
        while True:
            try:
                async with asyncio.timeout(max(deadline - mono(), 0.001)):
                    return await attempt()
            except TimeoutError as error:
                raise TransportUnavailable(f"no answer from {self.label} in time", outcome_unknown=True) from error
            except TransportUnavailable as error:
                unknown = unknown or error.outcome_unknown
                self.reconnects += 1
                pause = backoff.next()
                if mono() + pause >= deadline:
                    raise TransportUnavailable(error.message, outcome_unknown=unknown) from error
                await asyncio.sleep(pause)
