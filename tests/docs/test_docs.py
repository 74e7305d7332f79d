"""The documentation is true: its links lead somewhere, its tables are those of the code. Its code: test_examples.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import command_bus
from tests.docs import cli_transcripts as cli_page
from tests.docs.settings_page import PAGE, rendered

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
_LINK = re.compile(r"(?:\]\(|^\[[^\]]+\]: )([^)#\s]+)", re.MULTILINE)
_PATH = re.compile(r"`((?:command_bus|tests|examples|docs|benchmarks)/[\w./-]+)`")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


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
    numbers = [int(number) for number, _ in rows]
    assert numbers == sorted({*numbers})
    elsewhere = {"32", "43", "47", *map(str, range(49, 54))}  # by their subject's own tests, which bear no number
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


def test_every_command_has_its_options_on_the_site() -> None:
    typer = pytest.importorskip("typer")
    from command_bus.cli.app import app
    from scripts.cli_help import helps

    group = typer.main.get_command(app)
    text = helps()
    names = []
    for name, command in group.commands.items():
        names += [f"{name} {each}" for each in command.commands] if hasattr(command, "commands") else [name]
    assert [name for name in names if f"$ command-bus {name} --help" not in text] == []
