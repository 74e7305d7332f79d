"""The README is true: its test passes, its figures stand on the pages that tell how they were measured, its transcript is the command line's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

from tests.docs import cli_transcripts as cli_page
from tests.docs.examples import blocks, saved
from tests.mutants.breakages import MUTANTS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
_FIGURE = re.compile(r"\d[\d,.]*\d")
_BUGS = re.compile(r"more than (\d+) (?:deliberate bugs|ways)")
_CHAOS = re.compile(r"^\| `--server .*?\| ([\d,]+) \| ([\d,]+)[ ,](.*?)\| clean \|$", re.MULTILINE)


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_the_program_passes_the_test_that_is_shown(tmp_path: Path) -> None:
    saved(blocks(README), tmp_path)
    installed = any(point.value == "command_bus.testing.plugin" for point in entry_points(group="pytest11"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_bank.py"]  # as printed: without any setting
    command += [] if installed else ["-p", "command_bus.testing.plugin"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_the_figures_of_the_evidence_stand_on_the_pages_that_it_names() -> None:
    evidence = README[README.index("## Evidence") : README.index("## Documentation")]
    told = {number(figure) for figure in _FIGURE.findall(re.sub(r"`[^`]*`|\(.*?\)", "", evidence)) if "." not in figure}
    pages = page("guarantees.md") + page("performance.md") + page("spark.md")
    measured = {number(figure) for figure in _FIGURE.findall(pages) if "." not in figure.rstrip(",.")}
    runs = _CHAOS.findall(pages)
    assert len(runs) == 8
    failovers = sum(int(found[1]) for found in re.finditer(r"(\d+) failovers", "".join(rest for _, _, rest in runs)))
    added = {sum(number(commands) for commands, _, _ in runs), sum(number(faults) for _, faults, _ in runs), failovers}
    assert added <= told
    assert told <= measured | added
    assert "takes 0.80 ms" in evidence
    assert "p50 0.80 ms" in pages


def test_the_number_of_deliberate_bugs_is_that_of_the_list() -> None:
    told = {int(figure) for text in (README, page("guarantees.md")) for figure in _BUGS.findall(text)}
    assert len(told) == 1
    assert told.pop() in range(len(MUTANTS) - 10, len(MUTANTS))


def test_the_transcript_is_that_of_the_command_line() -> None:
    (said,) = cli_page.words(README)
    printed = {word for block in cli_page.words(page("cli.md")) for word in block}
    assert set(said) <= printed
