"""The place of a run: a server, a namespace of its own, a bus in it.

Everything of a run bears its namespace, so that runs do not disturb each other or anything else on the server; all of it is
removed at the end.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as ConnectionLost

from command_bus import BusSettings, CommandBus
from command_bus.embedded import EmbeddedServer

__all__ = ["Stage", "Stalled", "open_stage"]

_SHARED = ("namespace", "lease", "dedup_window", "max_total_depth")  # settings that the workers must have too


class Stalled(RuntimeError):
    """The bus completes nothing any more."""


@dataclass(frozen=True, slots=True)
class Stage:
    """An open place for a run.

    Attributes:
        client: To the same server, for what the example stores beside the bus.
        server: Its name and version, and those of the libraries.
    """

    settings: BusSettings
    client: Redis
    bus: CommandBus
    server: str

    @property
    def url(self) -> str:
        """Of the server."""
        return self.settings.server_url or ""

    @property
    def environment(self) -> dict[str, str]:
        """The same settings for worker processes."""
        own = {f"COMMAND_BUS_{name.upper()}": str(getattr(self.settings, name)) for name in _SHARED}
        return {**own, "COMMAND_BUS_URL": self.url}


@asynccontextmanager
async def open_stage(name: str, url: str | None, *, lease: float, backlog: int) -> AsyncGenerator[Stage]:
    """Open a stage on the server at `url`, else on the one that the environment names, else on an embedded one of its own.

    `CommandBus()` would join the development server that all programs of this project share, and that one ends with the
    program that started it.

    Args:
        name: The namespace begins with it.
        url: The server; None looks in the environment.
        lease: Seconds after which a killed worker's entities are taken over.
        backlog: Commands that may wait.
    """
    async with AsyncExitStack() as stack:
        settings = BusSettings(
            url=url or BusSettings().server_url or stack.enter_context(_embedded()).url,
            namespace=f"{name}-{os.urandom(4).hex()}",
            lease=lease,
            max_total_depth=backlog,
            dedup_window=120.0,
        )
        client = await stack.enter_async_context(Redis.from_url(settings.server_url or ""))
        stack.push_async_callback(_remove_keys, client, settings.namespace)
        bus = await stack.enter_async_context(CommandBus(settings=settings))
        yield Stage(settings, client, bus, await _server_name(client))


@contextmanager
def _embedded() -> Generator[EmbeddedServer]:
    """Start a server for this run alone. It keeps nothing on disk on purpose, so its warning about that is dropped."""
    log = logging.getLogger("command_bus")
    log.addFilter(_is_news)
    try:
        with EmbeddedServer.start() as server:
            yield server
    finally:
        log.removeFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return "append-only file" not in record.getMessage()


async def _server_name(client: Redis) -> str:
    about = await client.info("server")
    name = f"Valkey {about['valkey_version']}" if "valkey_version" in about else f"Redis {about['redis_version']}"
    return f"{name}, redis-py {version('redis')}, command_bus {_own_version()}"


def _own_version() -> str:
    try:
        return version("command-bus")
    except PackageNotFoundError:
        return "from its source folder"


async def _remove_keys(client: Redis, namespace: str) -> None:
    """Remove what the run left on the server: the states, and what the bus keeps for a while (dedup marks, outcomes, counters)."""
    with suppress(ConnectionLost):  # a server that is gone has its own error, or none if it was embedded
        for pattern in (f"{namespace}.*", f"{{{namespace}:*"):
            names = [name async for name in client.scan_iter(match=pattern, count=2000)]
            for start in range(0, len(names), 2000):
                await client.unlink(*names[start : start + 2000])
