"""The ground of the measurements: one private server, and what it spends."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from benchmarks.programs import Program, python
from command_bus.embedded import EmbeddedServer
from command_bus.embedded.binary import find_server_binary

__all__ = ["NAMESPACE", "Ground", "Spent", "ground"]

NAMESPACE = "bench"

_SCRIPTS = ("cmdstat_eval", "cmdstat_evalsha", "cmdstat_fcall")
_SETTLING = 0.05


@dataclass(slots=True)
class Spent:
    """Processor time that the server spent while a block ran, and its calls.

    Attributes:
        cpu: Processor seconds of its process: commands, and the reading and writing of sockets.
        scripts: Seconds inside scripts.
        calls: Calls by command name, those inside scripts included.
    """

    cpu: float = 0.0
    scripts: float = 0.0
    calls: dict[str, int] = field(default_factory=dict[str, int])

    def per(self, count: int) -> dict[str, float]:
        """Return it in µs a command."""
        return {"server_us": self.cpu / count * 1e6, "script_us": self.scripts / count * 1e6}


class Ground:
    """The server of a run, and how large the cases shall be."""

    def __init__(self, url: str, scale: float = 1.0) -> None:
        self.url = url
        self.scale = scale
        self.client = redis.Redis.from_url(url, decode_responses=True)

    def count(self, full: int, least: int = 200) -> int:
        """Return how many commands a case has that has `full` of them at scale 1."""
        return max(int(full * self.scale), min(full, least))

    def clear(self) -> None:
        """Empty the server."""
        self.client.flushall(asynchronous=False)  # else freeing goes on while the next case is measured

    def ours(self, role: str, count: int, **options: Any) -> Program:
        """Start the bus in a process of its own."""
        return Program(python("benchmarks.cases.program", role, url=self.url, count=count, **options))

    @contextlib.contextmanager
    def spending(self) -> Generator[Spent]:
        """Measure what the server spends in the block; the result is complete after it."""
        spent = Spent()
        self.client.config_resetstat()
        before = self._cpu()
        yield spent
        time.sleep(_SETTLING)  # the last acknowledgements are on their way
        spent.cpu = self._cpu() - before
        stats: dict[str, Any] = self._info("commandstats")
        spent.calls = {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}
        spent.scripts = sum(stats[name]["usec"] for name in _SCRIPTS if name in stats) / 1e6

    def server_version(self) -> str:
        """Return its name, version and allocator."""
        info: dict[str, Any] = self._info("server")
        valkey = info.get("valkey_version")
        name = f"Valkey {valkey}" if valkey else f"Redis {info['redis_version']}"
        return f"{name} ({self._info('memory').get('mem_allocator', 'unknown allocator')})"

    def _cpu(self) -> float:
        info = self._info("cpu")
        return float(info["used_cpu_sys"]) + float(info["used_cpu_user"])

    def _info(self, section: str) -> dict[str, Any]:
        found: Any = self.client.info(section)
        return dict(found)


@contextlib.contextmanager
def ground(server: str, scale: float) -> Generator[Ground]:
    """Start a private server (`embedded`, or `redis` of PATH, `auto` the first that is there), or flush the one at a URL.

    `auto` does not try the embedded one first: its build has the C library's allocator, which costs a drain a third more once memory
    was used and given back. Those of the distributions have jemalloc.
    """
    if "://" in server:
        yield Ground(server, scale)
        return
    with EmbeddedServer.start(tcp=True, binary=_binary(server)) as started:
        made = Ground(started.url, scale)
        yield made
        made.client.close()


def _binary(server: str) -> Path:
    found = shutil.which("redis-server")
    if server == "embedded" or (server == "auto" and found is None):
        return find_server_binary()
    if found is None:
        raise SystemExit("benchmarks: no redis-server on PATH; --server embedded needs none")
    return Path(found)
