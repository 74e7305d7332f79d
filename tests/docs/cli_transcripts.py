"""The transcripts in docs/cli.md: every block of the page is run, in order, on a live bus with real trouble in it.

    python -m tests.docs.cli_transcripts          writes them again

The page is its own script. A block marked `console` is a session: a shell runs its lines with `$`, and the other lines are the output.
Ids of dead letters differ between runs; in the lines to run they are replaced by those of this run.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path

from tests.docs.trouble import ROOT, Trouble

__all__ = ["PAGE", "rendered", "words"]

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LETTER = re.compile(r"\b\d+-\d{13}-\d+\b")
_VARYING = (
    (re.compile(r"\b[0-9a-f]{16}-[0-9a-f]+\b"), "ID"),
    (re.compile(r"\b[0-9a-f]{12}\b"), "WORKER"),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\dZ?( (Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b)?"), "TIME"),
    (re.compile(r"[+-]?\d[\d.,]*( (s|min|h|d|ms)\b( \d+ min)?)?"), "N"),
)


class _Letters:
    """Ids of dead letters: the first of an old transcript is the first of the new one, and so on."""

    def __init__(self) -> None:
        self.old: list[str] = []
        self.new: list[str] = []

    @staticmethod
    def note(known: list[str], text: str) -> None:
        known += [found for found in dict.fromkeys(_LETTER.findall(text)) if found not in known]

    def now(self, line: str) -> str:
        def put(found: re.Match[str]) -> str:
            place = self.old.index(found[0]) if found[0] in self.old else -1
            return self.new[place] if 0 <= place < len(self.new) else found[0]

        return _LETTER.sub(put, line)


async def rendered(folder: Path) -> str:
    """Return the page with new transcripts."""
    text = PAGE.read_text(encoding="utf-8")
    letters = _Letters()
    async with Trouble(folder) as trouble:

        def session(block: re.Match[str]) -> str:
            lines: list[str] = []
            for line in block[1].splitlines():
                letters.note(letters.old, line)
                if line.startswith("$ "):
                    lines += _run(trouble, letters.now(line[2:]))
                    letters.note(letters.new, "\n".join(lines))
            return "```console\n" + "\n".join(lines) + "\n```"

        return await asyncio.to_thread(_BLOCK.sub, session, text)


def words(text: str) -> list[list[str]]:
    """Return the words of each block, without values that differ between runs, and without the folding of lines."""
    found: list[list[str]] = []
    for block in _BLOCK.findall(text):
        plain = _LETTER.sub("LETTER", block)
        for varying, name in _VARYING:
            plain = varying.sub(name, plain)
        found.append(sorted(plain.split()))
    return found


def _run(trouble: Trouble, line: str) -> list[str]:
    done = trouble.shell(line)
    out = done.stdout.replace(trouble.url, "redis://127.0.0.1:6379").rstrip()
    out = out.replace(str(trouble.folder), "/srv/shop").replace(f"{ROOT}/", "/srv/lib/")
    lines = [f"$ {line}", *(each.rstrip() for each in out.splitlines())]
    return [*lines, f"[exit code {done.returncode}]"] if done.returncode else lines


def main() -> None:
    """Write the page with new transcripts."""
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(asyncio.run(rendered(Path(folder))), encoding="utf-8")


if __name__ == "__main__":
    main()
