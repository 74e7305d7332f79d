"""Command lines in the docs are valid: the commands, their options, and in the runbook their values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

typer = pytest.importorskip("typer")

ROOT = Path(__file__).parents[2]
RUNBOOK = ROOT / "docs" / "runbook.md"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
_INLINE = re.compile(r"`command-bus ([^`]*)`")
_LINE = re.compile(r"^(?:\$ )?command-bus (.*)$", re.MULTILINE)
_BLOCK = re.compile(r"^```(?:bash|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_OPTION = re.compile(r"(?<!\S)(--[a-z][a-z-]*|-[a-zA-Z])(?=[=\s]|$)")
_SYMPTOMS = ("Unknown commands", "/healthz answers 503", "The server is out of memory", "Failover or restart of the server")
_NARROW = 47  # characters of a line of code that a phone shows


def quoted_lines(text: str) -> Iterator[str]:
    """Yield the command lines of a page, without `command-bus`."""
    blocks = "".join(_BLOCK.findall(text))
    for line in [*_INLINE.findall(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)), *_LINE.findall(blocks)]:
        yield re.split(r"\s(?:[|;#>]|&&)", line)[0].strip()


def parse(line: str) -> tuple[Any, list[str]]:
    """Return the command that a line names, and the words after its name."""
    from command_bus.cli.app import app

    command, words = typer.main.get_command(app), line.split(" ")
    while words and words[0] and not words[0].startswith(("-", "…")) and hasattr(command, "commands"):
        assert words[0] in command.commands, f"there is no command-bus {line}"
        command = command.commands[words.pop(0)]
    return command, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page: Path) -> None:
    for line in quoted_lines(page.read_text(encoding="utf-8")):
        command, words = parse(line)
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
        quoted = re.sub(r"'[^']*'|\"[^\"]*\"", "", " ".join(words))
        assert set(_OPTION.findall(quoted)) <= known, f"command-bus {line}"


def test_the_runbook_s_commands_are_valid() -> None:
    runbook = RUNBOOK.read_text(encoding="utf-8")
    assert [symptom for symptom in _SYMPTOMS if f"\n## {symptom}\n" not in runbook] == []
    lines = list(quoted_lines(runbook))
    assert len(lines) > 30
    for line in lines:
        command, words = parse(line)
        command.make_context(command.name, shlex.split(" ".join(words)))  # raises on wrong usage


def test_the_runbook_fits_a_phone() -> None:
    runbook = RUNBOOK.read_text(encoding="utf-8")
    assert "\n|" not in runbook, "a table is wider than a phone"
    wide = [line for block in _BLOCK.findall(runbook) for line in block.splitlines() if len(line) > _NARROW]
    assert wide == []


def test_the_runbook_s_metrics_exist() -> None:
    names = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    asked = set(re.findall(r"(?:command_bus_|…_)[a-z_]+", RUNBOOK.read_text(encoding="utf-8")))
    assert asked
    assert [name for name in sorted(asked) if name.replace("…_", "_") not in names] == []
