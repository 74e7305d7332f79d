"""Real worker processes, a real server, and somebody who kills and stops them."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from command_bus.embedded import EmbeddedServer
from tests.docs.trouble import Trouble
from tests.integration.embedded_programs import Program
from tests.integration.history import History, Pause
from tests.topologies import ClusterServers, SentinelServers

ROOT = Path(__file__).parents[2]


class Fleet:
    """Worker processes of one namespace, and what was done to them."""

    def __init__(self, url: str, log: Path, *, lease: float, concurrency: int = 20) -> None:
        self.url = url
        self.log = log
        self.lease = lease
        self.concurrency = concurrency
        self.namespace = f"f-{secrets.token_hex(4)}"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.pauses: list[Pause] = []

    def start(self, count: int = 1) -> None:
        for _ in range(count):
            command = [sys.executable, "-m", "tests.integration.fault_app", self.url, self.namespace, str(self.log)]
            command += [str(self.lease), str(self.concurrency)]
            with self.log.with_suffix(".err").open("ab") as errors:
                self.processes.append(subprocess.Popen(command, cwd=ROOT, env=os.environ, stderr=errors))

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        self.pauses.append(Pause(process.pid, time.monotonic()))
        process.kill()
        process.wait()
        self.processes.remove(process)

    async def freeze(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        began = time.monotonic()
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        process.send_signal(signal.SIGCONT)
        # Awake, it needs a moment to learn that its lease is lost: its handler is cancelled then.
        self.pauses.append(Pause(process.pid, began, time.monotonic()))

    def stop(self) -> list[int]:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(20) for process in self.processes]
        self.processes.clear()
        return codes

    def history(self) -> History:
        return History.read(self.log, self.pauses)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start() as running:
        yield running


@pytest.fixture(scope="module")
def troubled_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trouble]:
    """Yield a bus with trouble, one for all tests of a module."""
    troubled_shop = Trouble(tmp_path_factory.mktemp("shop"))
    asyncio.run(troubled_shop.__aenter__())
    yield troubled_shop
    asyncio.run(troubled_shop.__aexit__())


@pytest.fixture
async def fleet(server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Fleet]:
    fleet = Fleet(server.url, tmp_path / "events.log", lease=1.5)
    yield fleet
    for process in fleet.processes:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def sentinel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelServers]:
    servers = SentinelServers(tmp_path_factory.mktemp("sentinel"))
    try:
        yield servers.start()
    finally:
        servers.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterServers]:
    servers = ClusterServers(tmp_path_factory.mktemp("cluster"))
    try:
        yield servers.start()
    finally:
        servers.stop()


@pytest.fixture
def run() -> Iterator[Callable[..., Program]]:
    """Start programs that start servers; they end with the test."""
    programs: list[Program] = []

    def start(code: str, *arguments: str, cwd: Path | None = None, **environment: str) -> Program:
        programs.append(Program(code, *arguments, cwd=cwd, **environment))
        return programs[-1]

    yield start
    for program in programs:
        program.kill()
        for stream in (program.process.stdin, program.process.stdout, program.process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
