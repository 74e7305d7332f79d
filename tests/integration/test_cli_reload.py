"""`worker --reload` and `dev`: processes that are restarted when the application's files change."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("typer")

from command_bus.embedded import EmbeddedServer
from tests.docs.trouble import APP, ROOT
from tests.selection import quick

pytestmark = pytest.mark.server


def environment(**values: str) -> dict[str, str]:
    """Return the environment of a program that names no server but what is given."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **values}


def eventually(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


@pytest.mark.parametrize("processes", quick(["1", "2"], ["1"]))
def test_a_changed_file_restarts_the_workers(server: EmbeddedServer, tmp_path: Path, processes: str) -> None:
    log, app = tmp_path / "log", tmp_path / "app.py"
    source = APP.replace("grace=0.2", 'grace=0.2, namespace="reload"')
    app.write_text(source)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "command_bus", "worker", "app", "--reload", "--processes", processes],
            cwd=tmp_path, env=environment(COMMAND_BUS_URL=server.url), stdout=out, stderr=out,
        )  # fmt: skip
    try:
        count = int(processes)
        eventually(lambda: log.read_text().count("handles 5 types of commands") == count)
        app.write_text("this is no Python")
        eventually(lambda: "it is started again when a file changes" in log.read_text())
        app.write_text(source)
        eventually(lambda: log.read_text().count("handles 5 types of commands") == 2 * count)
        assert "app.py changed" in log.read_text()
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def test_dev_runs_a_server_and_a_worker(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "app.py").write_text(APP)
    log = tmp_path / "log"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "command_bus", *arguments], cwd=tmp_path, env=environment(), capture_output=True, text=True,
            input="", check=False,
        )  # fmt: skip

    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "command_bus", "dev", "app"], cwd=tmp_path, env=environment(), stdout=out, stderr=out
        )
    try:
        eventually(lambda: "handles 5 types of commands" in log.read_text())
        assert run("call", "Deposit", '{"account_id": "a", "amount": 3}').stdout == "3\n"
        assert run("workers").returncode == 0
        process.terminate()
        assert process.wait(20) == 0
        assert run("stats").returncode == 2
    finally:
        process.kill()
        process.wait()
