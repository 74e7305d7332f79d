"""The plugin as other projects load it: in a pytest of its own, under each way of running async tests."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).resolve().parents[2]
_TESTS = """
from __future__ import annotations
import pytest
from command_bus import Command, EntityId, HandlerRegistry

registry = HandlerRegistry()

class Add(Command[int], entity="cart"):
    cart_id: EntityId
    pieces: int

@registry.handles(Add)
async def add(command: Add) -> int:
    return command.pieces + 1

@pytest.fixture
def command_bus_registry():
    return registry

{mark}
async def test_add(command_bus):
    command_bus.crash_after("handled")
    await command_bus.dispatch(Add(cart_id="c", pieces=1), delay=60)
    await command_bus.run_until_idle()
    assert command_bus.replies == [2]
    assert command_bus.crashed == 1

{mark}
async def test_call(command_bus):
    assert await command_bus.call(Add(cart_id="c", pieces=2)) == 3
    await command_bus.dispatch(Add(cart_id="c", pieces=2))  # left as it is

def test_without_async(command_bus):
    command_bus.assert_not_dispatched(Add)
"""


_INSTALLED = any(point.value == "command_bus.testing.plugin" for point in entry_points(group="pytest11"))
_LOADED = () if _INSTALLED else ("-p", "command_bus.testing.plugin")
_ENVIRONMENT = {"PYTHONPATH": str(ROOT), "PATH": ""}
_SCOPE = ("-o", "asyncio_default_fixture_loop_scope=function")  # unset, pytest-asyncio warns


def _pytest(tmp_path: Path, *options: str, source: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (tmp_path / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *_LOADED, *options]
    return subprocess.run(command, cwd=tmp_path, env=_ENVIRONMENT, capture_output=True, text=True, timeout=50, check=False)


@pytest.mark.parametrize(
    ("options", "mark"),
    [
        pytest.param((*_SCOPE, "-o", "asyncio_mode=strict"), "@pytest.mark.asyncio", id="strict", marks=pytest.mark.slow),
        pytest.param((*_SCOPE, "-o", "asyncio_mode=auto"), "", id="auto"),
        pytest.param(("-p", "no:asyncio", "-k", "asyncio or without"), "@pytest.mark.anyio", id="anyio"),
        pytest.param((*_SCOPE, "-o", "asyncio_mode=strict"), "", id="unmarked"),
        pytest.param(
            (*_SCOPE, "-o", "asyncio_mode=strict", "-p", "no:anyio"), "", id="unmarked without anyio", marks=pytest.mark.slow
        ),
        pytest.param(
            (*_SCOPE, "-k", "asyncio or without"), "@pytest.mark.anyio", id="anyio beside asyncio", marks=pytest.mark.slow
        ),
    ],
)
def test_every_way_of_running_async_tests(tmp_path: Path, options: tuple[str, ...], mark: str) -> None:
    if "anyio" in mark and importlib.util.find_spec("anyio") is None:
        pytest.skip("anyio is not installed")
    done = _pytest(tmp_path, *options, source=_TESTS.format(mark=mark))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


@pytest.mark.slow
def test_marks_of_a_user_s_own_stay_as_they_are(tmp_path: Path) -> None:
    source = """
import asyncio, pytest
pytestmark = pytest.mark.asyncio(loop_scope="module")
loops = set()

@pytest.mark.parametrize("time", [1, 2])
async def test_it(command_bus, time):
    loops.add(asyncio.get_running_loop())
    assert len(loops) == 1

async def helper(command_bus): ...

class TestMore:
    async def test_in_a_class(self, command_bus):
        await command_bus.run_until_idle()
"""
    done = _pytest(tmp_path, *_SCOPE, source=source)
    assert "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("more", [("-p", "no:anyio"), ()], ids=["nothing", "anyio"])
def test_without_what_runs_coroutines_it_says_what_to_install(tmp_path: Path, more: tuple[str, ...]) -> None:
    done = _pytest(tmp_path, "-p", "no:asyncio", *more, source=_TESTS.format(mark=""))
    assert "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "pip install pytest-asyncio" in done.stdout


def test_loading_it_imports_nothing_of_the_package_but_its_door(tmp_path: Path) -> None:
    """Or coverage, which begins later, would find every line of the package unvisited."""
    source = "import sys\n\ndef test_it():\n    print(sorted(name for name in sys.modules if name.startswith('command_bus')))\n"
    done = _pytest(tmp_path, "-s", *_SCOPE, source=source)
    assert "['command_bus', 'command_bus.testing', 'command_bus.testing.plugin']" in done.stdout, done.stdout + done.stderr


def test_pytest_finds_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"command_bus": "command_bus.testing.plugin"}


def test_the_real_server(tmp_path: Path) -> None:
    source = "def test_it(command_bus_server):\n    assert command_bus_server.url\n"
    done = _pytest(tmp_path, *_SCOPE, source=source)
    assert done.returncode == 0, done.stdout + done.stderr


_CERTIFIED = """
from command_bus import Command, CommandContext, EntityId, HandlerRegistry

registry, seen, ids = HandlerRegistry(), [], set()

class Pay(Command[None], entity="order"):
    order: EntityId
    well: bool

def charge(order, key):
    if key not in ids:
        ids.add(key)
        seen.append(f"charge <{order}>")

@registry.handles(Pay)
async def pay(command: Pay, context: CommandContext) -> None:
    charge(command.order, context.command_id if command.well else object())

def clear():
    seen.clear()
    ids.clear()

def certified(certificate, well):
    async def scenario(bus):
        await bus.dispatch(Pay(order="o-1", well=well))
    return certificate(registry, scenario, effects=seen, reset=clear)

def test_well(crash_certificate):
    assert certified(crash_certificate, True).clean

def test_asserted(crash_certificate):
    verdict = certified(crash_certificate, False)
    assert verdict.clean, verdict

def test_forgotten(crash_certificate):
    certified(crash_certificate, False)

def test_allowed(crash_certificate):
    assert certified(crash_certificate, False).allows("charge", repeated=True)
"""


@pytest.mark.parametrize("suffix", [".md", pytest.param(".html", marks=pytest.mark.slow)])
def test_certificates_are_a_page_a_junit_file_and_annotations(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_ENVIRONMENT, "GITHUB_ACTIONS", "true")
    page, junit = tmp_path / f"page{suffix}", tmp_path / "junit.xml"
    done = _pytest(tmp_path, *_SCOPE, f"--crash-certificate={page}", f"--junitxml={junit}", source=_CERTIFIED)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 2 passed" in done.stdout
    assert re.search(r"certificates in .*: 4", done.stdout)
    assert done.stdout.count("::error file=test_it.py,line=17,title=crash certificate::") == 2
    written = page.read_text()
    assert "test_well: clean" in written
    assert "Allowed" in written
    assert ("charge &lt;o-1&gt;" if suffix == ".html" else "charge <o-1>") in written
    cases = {case.attrib["name"]: case for case in ET.parse(junit).iter("testcase")}
    assert "test_it.py:17" in "".join(cases["test_forgotten"].itertext())
    (value,) = [each.attrib["value"] for each in cases["test_asserted"].iter("property")]
    assert json.loads(value)["findings"][0]["kind"] == "repeated"


def test_without_the_option_only_an_assertion_fails(tmp_path: Path) -> None:
    done = _pytest(tmp_path, *_SCOPE, source=_CERTIFIED)
    assert "1 failed, 3 passed" in done.stdout
    assert "Pay: repeated 'charge <o-1>' by " in done.stdout


def test_a_page_of_another_kind_is_refused(tmp_path: Path) -> None:
    done = _pytest(tmp_path, *_SCOPE, "--crash-certificate=page.pdf", source=_CERTIFIED)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "writes .html or .md, not 'page.pdf'" in done.stderr
