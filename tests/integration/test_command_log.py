"""`command-bus worker --command-log`: a line for each command that a worker has settled, and no harm from a full disk."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")

from command_bus import Command, CommandBus, EntityId, HandlerRegistry, InvalidSettings, Reject, RetryPolicy
from command_bus.cli.process.command_log import CommandLog
from command_bus.embedded import EmbeddedServer, find_server_binary
from command_bus.worker.lifecycle import SettledCommand
from tests.program import run_program

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
APP = """
from command_bus import Command, CommandBus, EntityId, Reject

class Add(Command[int], entity="box"):
    box: EntityId
    n: int

bus = CommandBus()

from command_bus import handles

@handles(Add)
async def add(command: Add) -> int:
    if command.n == 0:
        raise Reject("nothing to add")
    return command.n
"""


class Add(Command[int], entity="box", retry=RetryPolicy(attempts=2, delay=0.01)):
    box: EntityId
    n: int


class Keep(Command[int], entity="box", retry=RetryPolicy(attempts=1), on_poison="park"):
    box: EntityId


def handlers() -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handles(Add)
    async def add(command: Add) -> int:
        if command.n == 0:
            raise Reject("nothing to add")
        if command.n < 0:
            raise ValueError("below\nzero")
        return command.n

    @registry.handles(Keep)
    async def keep(command: Keep) -> int:
        raise KeyError(command.box)

    return registry


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = EmbeddedServer.start(binary=find_server_binary())
    yield server.url
    server.stop()


async def test_each_command_that_was_settled_is_told_once(url: str) -> None:
    settled: list[SettledCommand] = []
    async with CommandBus(url, namespace=f"log-{secrets.token_hex(4)}", registry=handlers()) as bus:
        await bus.dispatch(Add(box="a", n=1), command_id="c-1")
        await bus.dispatch(Add(box="a", n=0), command_id="c-2")
        await bus.dispatch(Add(box="a", n=-1), command_id="c-3")
        await bus.dispatch(Keep(box="b"), command_id="c-4")
        worker = bus.worker()
        worker.on_settled = settled.append
        async with worker:
            async with asyncio.timeout(20):
                while len(settled) < 4:
                    await asyncio.sleep(0.01)
    told = {each.command_id: each for each in settled}
    assert {name: (each.status, each.attempt, each.reason) for name, each in told.items()} == {
        "c-1": ("completed", 1, ""),
        "c-2": ("rejected", 1, ""),
        "c-3": ("dead_lettered", 2, "failed"),
        "c-4": ("parked", 1, "failed"),
    }
    first = told["c-1"]
    assert (first.name, first.entity_type, first.entity_id, first.error) == ("Add", "box", "a", "")
    assert 0 < first.accepted_ms <= first.started_ms <= first.settled_ms + 1
    assert "below" in told["c-3"].error


def settled(number: int) -> SettledCommand:
    return SettledCommand(f"c-{number}", "Add", "box", "ä\n", "completed", 1, 7, 1_000, 2_000, 3_000)


def test_a_line_each_flushed_and_in_order(tmp_path: Path) -> None:
    log = CommandLog(tmp_path / "a" / "b", "w-1")
    for number in range(100):
        log.write(settled(number))
    log.close()
    (path,) = (tmp_path / "a" / "b").iterdir()
    assert path.name == f"commands-{os.getpid()}.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["command_id"] for line in lines] == [f"c-{number}" for number in range(100)]
    assert lines[0] == {
        "command_id": "c-0",
        "name": "Add",
        "entity_type": "box",
        "entity_id": "ä\n",
        "status": "completed",
        "attempt": 1,
        "fence": 7,
        "reason": "",
        "error": "",
        "worker": "w-1",
        "accepted_at": "1970-01-01T00:00:01.000Z",
        "started_at": "1970-01-01T00:00:02.000Z",
        "settled_at": "1970-01-01T00:00:03.000Z",
    }


def test_122_a_full_disk_is_said_once_and_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / f"commands-{os.getpid()}.jsonl").symlink_to("/dev/full")
    with caplog.at_level(logging.ERROR, "command_bus.cli"):
        log = CommandLog(tmp_path, "w-1")
        for number in range(50):
            log.write(settled(number))
        log.close()
    (record,) = caplog.records
    assert "No space left" in record.getMessage()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidSettings, match="--command-log"):
        CommandLog(tmp_path / "file", "w-1")


async def test_the_program_writes_it(url: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    namespace = f"log-{secrets.token_hex(4)}"
    environment: Any = {**os.environ, "PYTHONPATH": str(ROOT), "COMMAND_BUS_URL": url, "COMMAND_BUS_NAMESPACE": namespace}
    async with CommandBus(url, namespace=namespace, registry=handlers()) as bus:
        for number in range(3):
            await bus.dispatch(Add(box="a", n=number), command_id=f"c-{number}")
    words = ("worker", "app", "--burst", "--command-log", "log", "--processes", "2")
    done = await asyncio.to_thread(run_program, *words, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for path in (tmp_path / "log").iterdir() for line in path.read_text().splitlines()]
    assert [(line["command_id"], line["status"]) for line in lines] == [
        ("c-0", "rejected"),
        ("c-1", "completed"),
        ("c-2", "completed"),
    ]
    assert datetime.fromisoformat(lines[0]["settled_at"]).year >= 2020
