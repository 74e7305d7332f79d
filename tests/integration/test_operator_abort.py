"""Handlers that hang in worker processes, ended from the command line: what is asked, printed and settled, and the exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")

from command_bus import SyncCommandBus
from command_bus.embedded import EmbeddedServer
from tests.program import run_program

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
APP = """
import asyncio
import time

from command_bus import Command, CommandBus, EntityId, HandlerRegistry, RetryPolicy

registry = HandlerRegistry()


class Transfer(Command[str], entity="account", retry=RetryPolicy(attempts=2, delay=0.01)):
    account: EntityId


class Print(Command[None], entity="account"):
    account: EntityId


class Reckon(Command[None], entity="account"):
    account: EntityId


class Wire(Command[None], entity="account", delivery="at_most_once"):
    account: EntityId


@registry.handles(Transfer)
async def transfer(command: Transfer) -> str:
    await asyncio.Event().wait()


@registry.handles(Wire)
async def wire(command: Wire) -> None:
    await asyncio.Event().wait()


@registry.handles(Print)
def print_out(command: Print) -> None:
    time.sleep(600)


@registry.handles(Reckon)
async def reckon(command: Reckon) -> None:
    time.sleep(600)


bus = CommandBus(registry=registry, lease=3.0, grace=0.2)
"""


class Shop:
    """A server, worker processes, and the program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "shop.py").write_text(APP)
        self.server = EmbeddedServer.start()
        hidden = {"COMMAND_BUS_EMBEDDED_URL"}
        self.environment = {name: value for name, value in os.environ.items() if name not in hidden} | {
            "COMMAND_BUS_URL": self.server.url,
            "COMMAND_BUS_NAMESPACE": "hung",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "140",
        }
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as out:
            command = [sys.executable, "-m", "command_bus", "worker", "shop"]
            self.workers.append(subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=out, stderr=out))
        return self.workers[-1]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_program(*arguments, cwd=self.folder, env=self.environment)

    @property
    def log(self) -> str:
        log = self.folder / "log"
        return log.read_text() if log.exists() else ""

    def close(self) -> None:
        for process in self.workers:
            process.kill()
            process.wait()
        self.server.stop()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    print(shop.log)
    shop.close()


@pytest.fixture
def bus(shop: Shop) -> Iterator[SyncCommandBus]:
    with SyncCommandBus(shop.server.url, namespace="hung") as bus:
        yield bus


def eventually(condition: Callable[[], object], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


def running(bus: SyncCommandBus, account: str, attempt: int = 1) -> bool:
    entity = bus.entity("account", account).show().entity
    return (entity.state, entity.attempt) == ("running", attempt)


def abort(shop: Shop, account: str, *options: str) -> tuple[int, dict[str, Any]]:
    done = shop.run("entity", "account", account, "abort", "--yes", "--json", *options)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.promise("A handler hangs")
def test_a_hung_handler_harms_neither_worker_nor_other_entities(shop: Shop, bus: SyncCommandBus) -> None:
    worker = shop.start()
    bus.dispatch_raw("account", "a", "Transfer", {"account": "a"}, command_id="t-1")
    bus.dispatch_raw("account", "n", "Transfer", {"account": "n"}, command_id="t-2")
    eventually(lambda: running(bus, "a") and running(bus, "n"))
    asked = shop.run("entity", "account", "a", "abort")
    assert (asked.returncode, "End attempt 1 of Transfer t-1, which has run for" in asked.stderr) == (2, True)
    assert "There is no terminal to ask on: pass --yes" in asked.stderr
    done = shop.run("entity", "account", "a", "abort", "--yes", "-m", "the ledger hangs")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("account:a: ended attempt 1 of Transfer t-1, which had run for ")
    assert f"process {worker.pid}). It is started again, as its next attempt" in done.stdout
    eventually(lambda: running(bus, "a", 2))
    code, report = abort(shop, "a", "-m", "the ledger hangs")
    assert (code, report["result"], report["attempt"], report["again"], report["pid"]) == (0, "ended", 2, False, worker.pid)
    (letter,) = bus.dead_letters.list()
    assert (letter.reason, letter.command_id, letter.attempts) == ("interrupted", "t-1", 2)
    assert "aborted by " in letter.error_message
    assert ": the ledger hangs; it may have run not at all, partly or fully" in letter.error_message
    assert running(bus, "n")
    assert abort(shop, "a")[0] == 1
    assert "account:a: nothing runs, so nothing was ended" in shop.run("entity", "account", "a", "abort").stderr
    assert shop.run("entity", "account", "a", "pause", "--force").returncode == 2
    assert worker.poll() is None


@pytest.mark.promise("A handler hangs")
def test_a_hung_thread_gets_context_cancelled_and_is_left(shop: Shop, bus: SyncCommandBus) -> None:
    shop.start()
    bus.dispatch_raw("account", "a", "Print", {"account": "a"}, command_id="p-1")
    eventually(lambda: running(bus, "a"))
    done = shop.run("entity", "account", "a", "abort", "--yes", "--wait", "2")
    assert done.returncode == 1
    assert "its handler is in a thread, which nothing can stop. context.cancelled is set" in done.stderr
    code, report = abort(shop, "a", "--force")
    assert (code, report["result"], report["again"]) == (0, "ended", True)
    eventually(lambda: running(bus, "a", 2))
    assert "account:a is abandoned, its handler goes on" in shop.log


@pytest.mark.slow
def test_where_nothing_answers(shop: Shop, bus: SyncCommandBus) -> None:
    """A blocked event loop says where, by another thread; a process that was stopped says nothing."""
    worker = shop.start()
    bus.dispatch_raw("account", "w", "Wire", {"account": "w"}, command_id="w-1")
    eventually(lambda: running(bus, "w"))
    bus.dispatch_raw("account", "a", "Reckon", {"account": "a"}, command_id="r-1")
    eventually(lambda: running(bus, "a"))
    code, report = abort(shop, "a", "--wait", "8")
    assert (code, report["result"], report["where"].endswith("in reckon")) == (1, "blocked", True)
    text = shop.run("entity", "account", "a", "abort", "--yes", "--wait", "4").stderr
    assert "the event loop of its worker is blocked at" in text
    assert f"process {worker.pid})" in text
    worker.send_signal(signal.SIGSTOP)
    code, report = abort(shop, "w", "--wait", "0.5")
    assert (code, report["result"]) == (3, "unanswered")
    worker.kill()
