"""The Python of the pages, as a reader takes it: files to save, programs to save and run, sessions to type.

# shop.py               a first line like this names the file; `title="shop/views.py"` on the fence does, too
# shop.py, continued    what follows belongs at the end of that file
(no name)               a program by itself; or, on a page that has `SESSION`, a part of one session, in the order of the page
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PAGES", "PROGRAM", "ROOT", "SESSION", "Block", "blocks", "files", "in_session", "printed", "run", "saved", "session"]

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
SESSION = "The examples of this page run one after another in `python -m asyncio` or in a notebook."
PROGRAM = "example.py"

_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')
_NAME = re.compile(r"# ([\w/]+\.py)(, continued)?\n")
_COMMENT = re.compile(r"\)*  # ([^,]+)")
_BETWEEN = "-- next block --"
_DRIVER = f"""import ast, asyncio, inspect, json, sys

async def typed(sources):
    names = {{"__name__": "__main__", "asyncio": asyncio}}
    for source in sources:
        print({_BETWEEN!r})
        result = eval(compile(source, "<page>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        if inspect.iscoroutine(result):
            await result

asyncio.run(typed(json.load(sys.stdin)))
"""  # what `python -m asyncio` does; itself it reads a pipe line by line since Python 3.13


@dataclass(frozen=True)
class Block:
    """A block of Python on a page: where it begins, what it says, and the file that it is or goes on with."""

    line: int
    language: str
    source: str
    name: str | None
    continued: bool


def blocks(text: str) -> list[Block]:
    """Return the blocks of a page whose fence says Python, in any spelling."""
    found: list[Block] = []
    for fence in _FENCE.finditer(text):
        language, source = fence[1].partition(" ")[0], fence[2]
        if language.lower() in {"py", "python", "python3", "pycon", "ipython"}:
            title, first = _TITLE.search(fence[1]), _NAME.match(source)
            name = title[1] if title else first[1] if first else None
            line = text[: fence.start()].count("\n") + 1
            found.append(Block(line, language, source, name, continued=bool(first and first[2])))
    return found


def files(page: list[Block]) -> dict[str, str]:
    """Return the files of a page, whole, in the order in which they begin."""
    whole: dict[str, str] = {}
    for block in page:
        if block.name:
            before = whole.get(block.name, "") + "\n\n" if block.continued else ""
            whole[block.name] = before + block.source
    return whole


def saved(page: list[Block], folder: Path) -> dict[str, str]:
    """Write the files of a page to a folder."""
    whole = files(page)
    for name, source in whole.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return whole


def in_session(text: str) -> bool:
    """Return whether a page says that its blocks without a name are one session."""
    return SESSION in " ".join(text.split())


def printed(source: str) -> list[str]:
    """Return what comments behind its prints, up to a comma, say that it prints."""
    lines = source.splitlines()
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"]
    ends = sorted((call.end_lineno or 0, (call.end_col_offset or 0) - 1) for call in calls)
    told = [_COMMENT.match(lines[line - 1].encode()[column:].decode()) for line, column in ends]
    return [comment[1] for comment in told if comment]


def run(
    arguments: list[str], folder: Path, environment: Mapping[str, str], given: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, as a reader does who has the package installed."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", **environment},
        input=given,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )


def session(sources: list[str], folder: Path, environment: Mapping[str, str]) -> list[list[str]]:
    """Run blocks one after another as `python -m asyncio` does, in one event loop; the lines that each of them printed."""
    done = run(["-c", _DRIVER], folder, environment, json.dumps(sources))
    assert done.returncode == 0, done.stderr
    return [part.strip().splitlines() for part in done.stdout.split(_BETWEEN)[1:]]
