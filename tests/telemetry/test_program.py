"""`command-bus worker --health-port`: one process, several, and logs as JSON."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command_bus import CommandBus, HandlerRegistry
from command_bus.cli.process.health import ProbedProcess, _liveness_page, _ProbeAnswer, _readiness_page
from command_bus.embedded import EmbeddedServer
from tests.telemetry.conftest import Answer, fetched

pytestmark = pytest.mark.server
parser = pytest.importorskip("prometheus_client.parser")

ROOT = Path(__file__).parents[2]
APP = """
import os, time
from command_bus import Command, CommandBus, EntityId, handles

class Work(Command[int], entity="line"):
    line: EntityId
    secret: str = "hidden-payload"

@handles(Work)
async def work(command: Work) -> int:
    return os.getpid()

class Fail(Command[int], entity="line"):
    line: EntityId
    secret: str = "hidden-payload"

@handles(Fail)
async def fail(command: Fail) -> int:
    raise ValueError("no such shelf")

bus = CommandBus()
"""


class Program:
    def __init__(self, folder: Path, environment: dict[str, str], *arguments: str) -> None:
        (folder / "app.py").write_text(APP)
        self.log = folder / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "command_bus", "worker", "app", "--health-host", "127.0.0.1", *arguments],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                stderr=log,
            )

    @property
    def text(self) -> str:
        return self.log.read_text()

    def wait_for(self, condition: Callable[[], bool], within: float = 30.0) -> None:
        until = time.monotonic() + within
        while not condition():
            assert time.monotonic() < until, self.text
            time.sleep(0.02)

    @property
    def port(self) -> int:
        """Return the port of the first process that logged one, which is the supervisor if there is one."""
        self.wait_for(lambda: "health on port" in self.text or self.process.poll() is not None)
        [number] = re.findall(r"health on port (\d+)", self.text)[:1] or pytest.fail(self.text)
        return int(number)

    def get(self, path: str) -> Answer:
        return fetched(self.port, path)


Start = Callable[..., Program]


@pytest.fixture
def environment(server: EmbeddedServer) -> dict[str, str]:
    return {"COMMAND_BUS_URL": server.url, "COMMAND_BUS_NAMESPACE": f"p-{secrets.token_hex(4)}", "COMMAND_BUS_LEASE": "3"}


@pytest.fixture
def start(tmp_path: Path, environment: dict[str, str]) -> Iterator[Start]:
    started: list[Program] = []

    def begin(*arguments: str) -> Program:
        started.append(Program(tmp_path, environment, *arguments))
        return started[-1]

    yield begin
    for program in started:
        program.process.kill()
        program.process.wait()


@pytest.fixture
def sender(server: EmbeddedServer, environment: dict[str, str]) -> CommandBus:
    return CommandBus(server.url, namespace=environment["COMMAND_BUS_NAMESPACE"], registry=HandlerRegistry(), lease=3)


def samples(text: str, name: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels.values()): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


@pytest.mark.parametrize("processes", ["1", "2"])
def test_systemd_is_told_when_all_processes_run(start: Start, environment: dict[str, str], processes: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        environment["NOTIFY_SOCKET"] = f"@command-bus-{secrets.token_hex(8)}"
        manager.bind(f"\0{environment['NOTIFY_SOCKET'][1:]}")
        manager.settimeout(30)
        program = start("--processes", processes)
        assert manager.recv(100) == b"READY=1"
        assert program.text.count("handles 2 types of commands") == int(processes)
        program.process.send_signal(signal.SIGTERM)
        assert program.process.wait(20) == 0
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):  # once, and not by each of several
            manager.recv(100)


async def test_one_process(start: Start, sender: CommandBus) -> None:
    program = start("--health-port", "0")
    program.wait_for(lambda: program.get("/readyz").status == 200)
    assert program.get("/healthz").status == 200
    async with sender:
        await sender.dispatch_raw("line", "a-17", "Work", {"line": "a-17"})
        await sender.wait_idle(10)
    metrics = program.get("/metrics")
    assert metrics.headers["Content-Type"].startswith("text/plain; version=")
    assert samples(metrics.text, "command_bus_commands_handled_total") == {("Work", "completed"): 1.0}
    assert "a-17" not in metrics.text
    program.process.terminate()
    assert program.process.wait(20) == 0


@pytest.mark.slow
async def test_of_several_processes_the_supervisor_answers_for_all(start: Start, sender: CommandBus) -> None:
    program = start("--health-port", "0", "--processes", "2", "--concurrency", "1")
    assert program.get("/healthz").status == 200  # at once: nothing is stuck
    assert program.get("/readyz").status == 503
    program.wait_for(lambda: program.get("/readyz").status == 200)
    async with sender:
        for line in range(20):
            await sender.dispatch_raw("line", f"a-{line}", "Work", {"line": f"a-{line}"})
        await sender.wait_idle(10)
        handled = samples(program.get("/metrics").text, "command_bus_commands_handled_total")
        assert sum(handled.values()) == 20
        assert {process for *_, process in handled} <= {"0", "1"}
        pids = {worker.pid for worker in (await sender.stats()).workers}
        assert len(pids) == 2
        os.kill(min(pids), signal.SIGSTOP)  # it says nothing: not live, not ready
        program.wait_for(lambda: program.get("/healthz").status == 503)  # a signal may take a moment
        assert f"process {min(pids)}: it does not answer" in program.get("/readyz").text
        os.kill(min(pids), signal.SIGCONT)
        program.wait_for(lambda: program.get("/readyz").status == 200)
        os.kill(min(pids), signal.SIGKILL)  # it is gone: live, and not ready until another one is
        program.wait_for(lambda: program.get("/readyz").status == 503)
        assert program.get("/healthz").status == 200
        program.wait_for(lambda: program.get("/readyz").status == 200)
    program.process.terminate()
    assert program.process.wait(20) == 0


def test_a_server_that_is_away_at_the_start(start: Start, server: EmbeddedServer) -> None:
    server.kill()
    program = start("--health-port", "0")
    assert program.get("/healthz").status == 200
    assert program.get("/readyz").status == 503
    server.restart()
    program.wait_for(lambda: program.get("/readyz").status == 200)


def test_of_several_processes_a_dead_one_is_not_stuck() -> None:
    processes = [ProbedProcess(place, 100 + place, 40000 + place, ready=True) for place in range(2)]
    good, gone = _ProbeAnswer(processes[0], 200, "live"), _ProbeAnswer(processes[1], 0, "it is gone")
    stuck = _ProbeAnswer(processes[1], 503, "the event loop has been stuck for 12 s")
    assert _liveness_page([good, gone]).status == 200
    assert (
        _liveness_page([good, stuck]).status
        == _readiness_page([good, stuck], 2).status
        == _readiness_page([good, gone], 2).status
        == 503
    )
    assert _liveness_page([good, stuck]).body == b"process 101: the event loop has been stuck for 12 s\n"
    assert _readiness_page([good], 2).body == b"1 of 2 processes are not started\n"
    assert _readiness_page([good, good], 2).status == 200


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_port_that_is_taken(start: Start, server: EmbeddedServer, processes: str) -> None:
    port = str(start("--health-port", "0").port)
    second = start("--health-port", port, "--processes", processes)
    assert second.process.wait(20) == 1
    assert f"cannot answer probes on 127.0.0.1:{port}" in second.text
    assert "Traceback" not in second.text
