"""The prose is plain: function docstrings begin with a verb, and words that readers halt at are not used."""

from __future__ import annotations

import ast
import gc
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "command_bus").rglob("*.py"))
TEXTS = sorted(
    [
        *(ROOT / "command_bus").rglob("*.py"),
        *(ROOT / "command_bus").rglob("*.lua"),
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
    ]
)
ODD = re.compile(r"\b(whoever|nobody|anew|likewise|for want of|from near|by and by|what becomes of)\b", re.IGNORECASE)
NO_VERB = {"A", "All", "An", "As", "How", "The", "What", "Whether", "Which", "Who", "Whose", "Why"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def parsed(path: Path) -> ast.Module:
    """Parse a file. The garbage collector rests, because it makes `ast.parse` fail now and then (python/cpython#106905)."""
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.enable()


def openings(tree: ast.Module) -> list[tuple[int, str]]:
    """Return line and first word of each function's docstring, without properties."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if not isinstance(node, Function) or any("property" in ast.unparse(each) for each in node.decorator_list):
            continue
        text = ast.get_docstring(node)
        if text:
            found.append((node.lineno, re.split(r"\W", text, maxsplit=1)[0]))
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_function_docstrings_begin_with_a_verb(path: Path) -> None:
    tree = parsed(path)
    assert not [f"line {line}: {word} …" for line, word in openings(tree) if word in NO_VERB]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_odd_words(path: Path) -> None:
    if path.name == "CHANGELOG.md":
        pytest.skip("it keeps the words of its time")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert not [f"line {number}: {found[0]}" for number, line in enumerate(lines, 1) if (found := ODD.search(line))]


def test_both_checks_can_fail() -> None:
    assert openings(ast.parse('def f():\n    """What it does."""')) == [(1, "What")]
    assert openings(ast.parse('@property\ndef f(self):\n    """What it is."""')) == []
    assert ODD.search("Nobody reads this.")
