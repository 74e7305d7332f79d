"""Tables of the command line: alignment, folding, and the width of characters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("typer")

from command_bus.cli.output import format_fields, format_table, full_screen


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("COLUMNS", "24")
    return monkeypatch


def lines(text: str) -> list[str]:
    return re.sub(r"\x1b\[\d*m", "", text).split("\n")


def test_numbers_line_up_at_the_right_and_nothing_trails() -> None:
    assert lines(format_table(["entity", "depth#"], [("a", 5), ("account:b", 12_000), (None, 1)])) == [
        "ENTITY      DEPTH",
        "a               5",
        "account:b  12,000",
        "-               1",
    ]


def test_in_a_pipe_nothing_is_folded_below_140_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert lines(format_table(["x", "y"], [("a", "word " * 25)]))[1] == f"a  {'word ' * 25}".rstrip()


@pytest.mark.usefixtures("columns")
def test_the_widest_column_gives_way_and_goes_on_below() -> None:
    assert lines(format_table(["id", "error"], [("7", "the card reader does not answer")])) == [
        "ID  ERROR",
        "7   the card reader does",
        "    not answer",
    ]
    found = lines(format_table(["id", "error"], [("7", "x" * 30)]))
    assert found[1:] == [f"7   {'x' * 20}", f"    {'x' * 10}"]


@pytest.mark.usefixtures("columns")
def test_wide_letters_take_two_columns() -> None:
    found = lines(format_table(["id", "n#"], [("注文", 1), ("ab", 2), ("e\u0301", 3)]))
    assert found[1:] == ["注文  1", "ab    2", "e\u0301     3"]
    assert all(len(line) <= 12 for line in lines(format_table(["id"], [("注" * 30,)])))


def test_fields_leave_out_what_is_not_there() -> None:
    assert lines(format_fields([("state", "idle"), ("worker", None), ("depth", 0)])) == ["state  idle", "depth  0"]
    assert format_fields([]) == ""


def test_only_the_module_that_escapes_prints() -> None:
    folder = Path(__file__).parents[2] / "command_bus" / "cli"
    printing = re.compile(r"\b(typer\.(echo|secho|confirm|prompt)|print|sys\.std(out|err)\.write)\(")
    found = {str(path.relative_to(folder)) for path in folder.rglob("*.py") if printing.search(path.read_text(encoding="utf-8"))}
    assert found == {"__init__.py", "terminal.py"}  # the first prints this program's own words only


def test_a_whole_screen_obeys_nothing_but_this_program(capsys: pytest.CaptureFixture[str]) -> None:
    """Shows a text that may be an error's, as `top` does while its server is away."""
    with full_screen() as show:
        show("no answer from \x1b]0;owned\x07\u009b2J\nroot")
    assert "no answer from \\x1b]0;owned\\x07\\x9b2J\\nroot" in capsys.readouterr().out


def test_a_cell_is_one_line() -> None:
    assert lines(format_table(["id"], [("a\nforged",)]))[1:] == ["a\\nforged"]
