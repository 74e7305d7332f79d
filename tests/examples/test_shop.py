"""The shop of the page on structure: its own tests, and its web and worker as processes over a real server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from command_bus import CommandBus
from command_bus.embedded import EmbeddedServer
from examples.shop.commands import PlaceOrder

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]
SHOP = ROOT / "examples" / "shop"
_WORKER = ("worker", "examples.shop.bus:bus", "--include", "examples.shop.orders", "--include", "examples.shop.stock")


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    with EmbeddedServer.start() as server:
        yield {**os.environ, "PYTHONPATH": str(ROOT), "COMMAND_BUS_URL": server.url}


def run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=50, check=False
    )


@pytest.mark.slow
def test_its_own_tests_pass(environment: dict[str, str]) -> None:
    installed = any(point.value == "command_bus.testing.plugin" for point in entry_points(group="pytest11"))
    loaded = [] if installed else ["-p", "command_bus.testing.plugin"]
    quiet = ["-W", "ignore:Using `httpx` with"]
    done = run(
        environment,
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        str(SHOP),
        "-p",
        "no:cacheprovider",
        *loaded,
        *quiet,
        str(SHOP),
    )
    assert re.search(r"3 passed|2 passed, 1 skipped", done.stdout), done.stdout + done.stderr


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_worker_process_runs_its_handlers(environment: dict[str, str], processes: str) -> None:
    command = [sys.executable, "-m", "command_bus", *_WORKER, "--processes", processes]
    worker = subprocess.Popen(command, cwd=ROOT, env=environment)
    try:
        async with CommandBus(environment["COMMAND_BUS_URL"], namespace="shop") as bus:
            states = [
                await bus.call(PlaceOrder(order_id=f"o-{number}", article="lamp", pieces=3), timeout=40) for number in (1, 2)
            ]
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    assert states[0] == "placed"
    assert states[1] in ("sold out", "placed")  # each process has a table of its own


@pytest.mark.slow
def test_what_is_missing_is_named(environment: dict[str, str]) -> None:
    """Without --include the worker says what to add; a wrong name is explained."""
    environment["PYTHONWARNINGS"] = ""
    for words, said in {
        (): "examples.shop.bus:bus has no handler: name the modules with @handles, `--include shop.tasks`",
        ("--include", "examples.shop.nothing"): "there is no module 'examples.shop.nothing'",
        ("--include", "examples/shop/orders.py"): "name the module as in an import, --include examples.shop.orders",
        ("--include", "examples.shop.web_of_lies:x"): "--include examples.shop.web_of_lies",
        ("--include", "examples.shop.commands"): "registers no handler of this bus",
    }.items():
        done = run(environment, "command_bus", "worker", "examples.shop.bus:bus", *words)
        assert done.returncode == 1, done.stderr
        assert said in done.stderr, done.stderr


def test_the_page_shows_the_files_as_they_are() -> None:
    page = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r'^```python title="examples/shop/([^"]+)"\n(.*?)^```', page, re.MULTILINE | re.DOTALL))
    files = {path.name: path.read_text(encoding="utf-8") for path in SHOP.glob("*.py") if path.name != "__init__.py"}
    assert shown == files
