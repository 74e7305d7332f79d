"""One server process with a folder of its own."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redis import Redis, RedisError

__all__ = ["HOST", "Node", "free_ports", "until"]

HOST = "127.0.0.1"
_CLUSTER_BUS = 10_000  # a node's second port is that far above its first


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on, nor on those of a cluster's own traffic."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 50_000)
        if port not in found and all(_is_free(each) for each in (port, port + _CLUSTER_BUS)):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def until(true: Callable[[], Any], what: str, seconds: float = 30.0) -> Any:
    """Wait for it; what it gave."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if value := true():
                return value
            problem: Exception | None = None
        except (RedisError, OSError) as error:
            problem = error
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s ({problem})")
        time.sleep(0.02)


class Node:
    """A server that can be killed, stopped and started again with its data.

    Args:
        binary: Of the server.
        port: On the loopback.
        folder: Its own; made if it is not there.
        config: Lines of its configuration.
        sentinel: Whether it is a Sentinel.
    """

    def __init__(self, binary: Path, port: int, folder: Path, config: dict[str, Any], *, sentinel: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = port
        self.folder = folder
        self._config = folder / "server.conf"
        lines = {"port": port, "bind": HOST, "dir": folder, "save": '""', **config}
        if sentinel:
            lines.pop("save")
        self._config.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        self._command = [str(binary), str(self._config), *(["--sentinel"] if sentinel else [])]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self._process is not None
        return self._process.pid

    def client(self, timeout: float = 1.0) -> Redis:
        """Return a client of this very node."""
        return Redis(host=HOST, port=self.port, socket_timeout=timeout, protocol=2)

    def ask(self, *words: Any) -> Any:
        """Send one request; return it as it is answered."""
        with self.client() as client:
            connection: Any = client.connection_pool.make_connection()
            try:
                connection.send_command(*words)
                return connection.read_response()
            finally:
                connection.disconnect()

    def info(self, section: str) -> dict[str, Any]:
        """Return what it says of itself."""
        with self.client() as client:
            return dict(client.info(section))

    def start(self) -> None:
        """Start it, and wait until it answers."""
        log = (self.folder / "server.log").open("ab")
        self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        log.close()
        until(lambda: self.ask("PING") == b"PONG", f"the server at port {self.port}")

    def kill(self) -> None:
        """SIGKILL."""
        self._signal(signal.SIGKILL)

    def freeze(self) -> None:
        """SIGSTOP: it answers nobody, and its connections stay."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        if number is signal.SIGKILL:
            self._process.wait()

    def stop(self) -> None:
        """End it; idempotent."""
        if self.alive:
            self.kill()
