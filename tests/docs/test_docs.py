"""The documentation is true: its code runs, its links lead somewhere, its tables are those of the code."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import command_bus
from command_bus.embedded import EmbeddedServer
from command_bus.registry import default_registry
from tests.docs import cli_transcripts as cli_page
from tests.docs.settings_page import PAGE, rendered

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
_BLOCK = re.compile(r"^```python\n(?!# test_)(.*?)^```", re.MULTILINE | re.DOTALL)  # a test of the README: test_readme.py
_LINK = re.compile(r"(?:\]\(|^\[[^\]]+\]: )([^)#\s]+)", re.MULTILINE)
_PRINTED = re.compile(r"print\(.*\)  # ([^,\n]+)")  # what a comment beside a print says, up to a comma
_MAIN = 'if __name__ == "__main__":'
_PATH = re.compile(r"`((?:command_bus|tests|examples|docs|benchmarks)/[\w./-]+)`")

TESTED = "testing.md"  # is run by a pytest of its own
TAUGHT = [
    page for page in PAGES if not page.name.startswith("spark") and page.name != TESTED
]  # Spark's: tests/spark/test_quickstart.py
NEEDS = {"fastapi.md": ("fastapi", "httpx"), "observability.md": ("prometheus_client", "opentelemetry.sdk")}

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    with EmbeddedServer.start() as running:
        monkeypatch.setenv("COMMAND_BUS_URL", running.url)
        yield running
    default_registry.clear()  # what a page registered goes with its module


def _run(source: str, names: dict[str, Any], where: str, runner: asyncio.Runner) -> None:
    """Run a block; it may await at its top level, in one loop with the page's other blocks, and may bring its own `asyncio.run`."""
    code = compile(source, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    result = eval(code, names)
    if inspect.iscoroutine(result):
        runner.run(result)


@pytest.mark.parametrize("page", TAUGHT, ids=lambda page: page.name)
def test_code_runs_and_prints_what_its_comments_say(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in NEEDS.get(page.name, ()):
        pytest.importorskip(name)
    monkeypatch.chdir(ROOT)
    text = page.read_text(encoding="utf-8")
    module = ModuleType(f"docs_{page.stem.replace('-', '_')}")  # models are defined in a module that exists
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names = module.__dict__
    with asyncio.Runner() as runner:
        for block in _BLOCK.finditer(text):
            line = text[: block.start()].count("\n") + 1
            _run("\n" * line + block.group(1).replace(_MAIN, "if True:"), names, str(page), runner)
            assert capsys.readouterr().out.splitlines() == _PRINTED.findall(block.group(1)), f"{page.name}, line {line}"


def test_the_page_on_testing_is_a_test_module(tmp_path: Path) -> None:
    text = (ROOT / "docs" / TESTED).read_text(encoding="utf-8")
    source = "\n".join(block.group(1) for block in _BLOCK.finditer(text))
    (tmp_path / "test_page.py").write_text(source, encoding="utf-8")
    options = ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"]
    installed = any(point.value == "command_bus.testing.plugin" for point in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "command_bus.testing.plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *plugin, *options, "test_page.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "25 passed" in done.stdout, done.stdout


@every_page
def test_links_and_paths_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link for link in _LINK.findall(text) if not link.startswith(("http:", "https:", "mailto:"))]
    missing = [link for link in links if not (page.parent / link).exists()]
    missing += [path for path in _PATH.findall(text) if not (ROOT / path).exists()]
    assert not missing


def test_the_settings_page_is_that_of_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == rendered(), "run `python -m tests.docs.settings_page`"


def test_every_bad_input_has_a_line_and_a_test() -> None:
    text = (ROOT / "docs" / "bad-input.md").read_text(encoding="utf-8")
    links = dict(re.findall(r"^\[([^\]]+)\]: (\S+)", text, re.MULTILINE))
    rows = re.findall(r"^\| (\d+) \|.*\| ([^|]*) \|$", text, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 49))
    elsewhere = {"32", "43", "47"}  # by their subject's own tests, which bear no number
    for number, tests in rows:
        sources = [(ROOT / "docs" / links[name]).read_text(encoding="utf-8") for name in re.findall(r"\[([^\]]+)\]", tests)]
        assert sources
        assert number in elsewhere or any(f"def test_{int(number):02d}_" in source for source in sources), number


def test_the_errors_that_callers_meet_are_explained() -> None:
    text = (ROOT / "docs" / "calls.md").read_text(encoding="utf-8")
    outcomes = [
        name
        for name in command_bus.__all__
        if isinstance(kind := getattr(command_bus, name), type) and issubclass(kind, command_bus.errors.CommandOutcomeError)
    ]
    assert [name for name in outcomes if f"`{name}`" not in text] == []


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_the_transcripts_of_the_command_line_are_what_it_prints(tmp_path: Path) -> None:
    """Now and then a look falls into the moment in which a worker finds out that it does not know a command: such blocks get another try."""
    page = cli_page.words(cli_page.PAGE.read_text(encoding="utf-8"))
    differ = dict(enumerate(page))
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        now = cli_page.words(await cli_page.rendered(folder))
        assert len(now) == len(page)
        differ = {number: said for number, said in differ.items() if now[number] != said}
        if not differ:
            return
    pytest.fail(f"run `python -m tests.docs.cli_transcripts`: {differ}")


def test_every_command_has_its_options_in_the_docs() -> None:
    typer = pytest.importorskip("typer")
    from command_bus.cli.app import app

    group = typer.main.get_command(app)
    text = cli_page.PAGE.read_text(encoding="utf-8")
    names = []
    for name, command in group.commands.items():
        names += [f"{name} {each}" for each in command.commands] if hasattr(command, "commands") else [name]
    assert [name for name in names if f"$ command-bus {name} --help" not in text] == []
