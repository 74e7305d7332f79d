"""The server under attack, behind a small seam, so that other topologies can take its place."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from pathlib import Path
from typing import Protocol

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from command_bus.embedded import EmbeddedServer, find_server_binary
from tests.chaos.preload import compiled, cut_to_synced
from tests.chaos.several import Several

__all__ = ["NAMES", "PROCESS_FAULTS", "SERVER_FAULTS", "Preloaded", "Single", "Target", "start"]

NAMES = ("valkey", "redis", "sentinel", "cluster")
"""What `start` knows."""

PROCESS_FAULTS = ("kill", "stop", "clock", "deploy")
"""What needs nothing of the server."""
SERVER_FAULTS = ("net", "client_kill", "script_flush", "oom", "server", "power")


class Target(Protocol):
    """A server or a topology under test.

    Attributes:
        name: Name in the report.
        url: URL for clients without faults, and for processes if there is no `address`.
        address: Address for a proxy; None if processes connect directly (a cluster, sentinels).
        supports: Families of faults that can be injected here.
        missing: Other families, with the reason.
    """

    name: str
    url: str
    address: tuple[str, int] | None
    supports: frozenset[str]
    missing: dict[str, str]

    def admins(self) -> list[Redis]:
        """Return a client of each primary, for `CLIENT KILL` and the like, and for the survey."""
        ...

    async def kill(self, *, power: bool = False) -> None:
        """SIGKILL a server (the primary); with `power` what was not synced is lost as well."""
        ...

    async def revive(self) -> None:
        """Bring it back; returns when it answers."""
        ...

    async def stop(self) -> None:
        """End everything."""
        ...


class Single:
    """One server with an append-only file.

    The file is kept in memory if possible: `everysec` loses nothing at a SIGKILL as long as the disk keeps up, and a shared machine's disk
    does not always. `preload` simulates power losses, on any disk.
    """

    def __init__(self, name: str, binary: Path, durability: str, folder: Path) -> None:
        self.name = name
        self._data = _data_folder(folder)
        self._preload = compiled("power", folder) if durability == "always" else None
        self.missing = {}
        supports = {*PROCESS_FAULTS, *SERVER_FAULTS}
        if self._preload is None:
            supports.discard("power")
            self.missing["power"] = "no C compiler" if durability == "always" else "only `always` promises to survive it"
        with Preloaded(self._preload):
            config = {
                "appendfsync": "always" if durability == "always" else "everysec",
                "auto-aof-rewrite-min-size": "32mb",
                "maxclients": "1000",
            }
            self._server = EmbeddedServer.start(binary=binary, tcp=True, persistence=self._data, config=config)
        self.supports = frozenset(supports)
        self.url = self._server.url
        host, _, port = self.url.removeprefix("redis://").partition(":")
        self.address: tuple[str, int] | None = (host, int(port))
        self._admin = Redis.from_url(self.url, socket_timeout=5.0, retry=Retry(NoBackoff(), 0))

    def admins(self) -> list[Redis]:
        """See `Target`."""
        return [self._admin]

    async def kill(self, *, power: bool = False) -> None:
        """See `Target`."""
        await asyncio.to_thread(self._server.kill)
        if power:
            await asyncio.to_thread(cut_to_synced, self._data)

    async def revive(self) -> None:
        """See `Target`."""
        await asyncio.to_thread(self._restart)

    def _restart(self) -> None:
        with Preloaded(self._preload):
            self._server.restart()

    async def stop(self) -> None:
        """See `Target`."""
        await self._admin.aclose()
        await asyncio.to_thread(self._server.kill)
        await asyncio.to_thread(self._server.stop)
        shutil.rmtree(self._data, ignore_errors=True)


def start(name: str, durability: str, folder: Path, seed: int = 1) -> Target:
    """Start the server of this name.

    Raises:
        FileNotFoundError: It is not installed.
    """
    if name in ("sentinel", "cluster"):
        if shutil.which("redis-server") is None or shutil.which("redis-cli") is None:
            raise FileNotFoundError("there is no redis-server or redis-cli on PATH: install Redis, or take --server valkey")
        return Several(name, folder, seed)
    if name == "redis":
        found = shutil.which("redis-server")
        if found is None:
            raise FileNotFoundError("there is no redis-server on PATH: install it, or take --server valkey")
        return Single(name, Path(found), durability, folder)
    return Single(name, find_server_binary(), durability, folder)


class Preloaded:
    """Sets LD_PRELOAD while the server is started; no other process is started in that time."""

    lock = threading.Lock()

    def __init__(self, library: Path | None) -> None:
        self._library = library

    def __enter__(self) -> None:
        self.lock.acquire()
        if self._library is not None:
            os.environ["LD_PRELOAD"] = str(self._library)

    def __exit__(self, *_: object) -> None:
        if self._library is not None:
            del os.environ["LD_PRELOAD"]
        self.lock.release()


def _data_folder(folder: Path) -> Path:
    shared = Path("/dev/shm")
    data = (shared if os.access(shared, os.W_OK) else folder) / f"chaos-{os.getpid()}-{folder.name}"
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    return data
