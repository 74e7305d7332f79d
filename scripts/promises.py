"""Lists the tests of each promise: `python -m scripts.promises`, and on the site at the end of Contributing.

docs/guarantees.md says what is promised, each promise under a title. The mark `promise` of a test names the titles that it proves.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["index", "proofs", "titles"]

ROOT = Path(__file__).resolve().parent.parent
SECTIONS = ("## Each promise\n", "## Faults\n")
_TITLE = re.compile(r"^- \*\*(.+?)\.\*\*", re.MULTILINE | re.DOTALL)


def titles() -> list[str]:
    """Return the titles of the promises and faults, in the order of the page."""
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    sections = [page[page.index(name) :].partition("\n## ")[0] for name in SECTIONS]
    return [" ".join(title.split()) for section in sections for title in _TITLE.findall(section)]


def proofs() -> Iterator[tuple[str, str, str]]:
    """Yield each title that a test names, with the test's file and name."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.promise(" not in text:
            continue
        for test in ast.walk(ast.parse(text)):
            if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef):
                for mark in test.decorator_list:
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.promise":
                        yield from ((ast.literal_eval(each), path.relative_to(ROOT).as_posix(), test.name) for each in mark.args)


def index() -> str:
    """Return the tests of each promise, as a section of a page."""
    tests: dict[str, list[str]] = {}
    for title, file, test in proofs():
        tests.setdefault(title, []).append(f"    - `{test}` in `{file}`")
    lines = ["## The tests of each promise", "", "`python -m pytest FILE -k NAME` runs one.", ""]
    for title in titles():
        lines += [f"- {title}", *tests.get(title, [])]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(index())
