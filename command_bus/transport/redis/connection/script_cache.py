"""`ScriptCache`: keeps all scripts in the server's script cache, which a restart and SCRIPT FLUSH empty."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from command_bus.clock import mono
from command_bus.errors import TransportUnavailable, UnsuitableServer
from command_bus.transport.redis.connection.errors import CONNECTION_ERRORS, translated
from command_bus.transport.redis.scripts import SCRIPTS, Script

_EVERY = 1.0


class Asking(Protocol):
    """The connections to the server."""

    label: str

    @property
    def commands(self) -> Redis:
        """The client for short requests."""
        ...

    async def ask(self, request: Callable[[Redis], Any]) -> Any:
        """Return the answer to a request."""
        ...


class ScriptCache:
    """The scripts of one server.

    Args:
        connections: To the server.
    """

    def __init__(self, connections: Asking) -> None:
        self._connections = connections
        self._seen = 0.0

    async def load(self, wanted: Script | None = None) -> None:
        """Load all scripts, `wanted` last: if loading breaks off, that one is missing again and loading is repeated.

        All are loaded because a producer may lack the right: after a restart the first worker that misses one loads them for all clients.

        Raises:
            TransportUnavailable: The server cannot be reached, or this user may not load scripts.
        """
        label = self._connections.label
        try:
            for script in (*(script for script in SCRIPTS if script is not wanted), *([wanted] if wanted else [])):
                await self._connections.commands.script_load(script.text)
        except NoPermissionError as error:
            raise TransportUnavailable(
                f"{label} lacks this version's scripts, and this user may not load them: start a worker of this version, which loads them "
                "as it starts, and within a second after the server lost them"
            ) from error
        except CONNECTION_ERRORS as error:
            raise translated(error, label) from error

    async def keep(self) -> None:
        """Check about once a second whether the server has all scripts; load them if it lost them (a restart, SCRIPT FLUSH)."""
        now = mono()
        if now - self._seen < _EVERY:
            return
        self._seen = now
        try:
            there = await self._connections.ask(lambda client: client.script_exists(*(script.sha for script in SCRIPTS)))
        except UnsuitableServer:  # a user of the application's own making, which may not ask
            return
        if not all(there):
            with suppress(TransportUnavailable):
                await self.load()
