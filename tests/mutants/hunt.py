"""Breaks a copy of the package and asks for the verdict on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutant import SIMULATION, Mutant

__all__ = ["ROOT", "Verdict", "broken_copy", "broken_texts", "hunt"]

ROOT = Path(__file__).resolve().parents[2]
_LONGEST = 900


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of one mutant."""

    mutant: Mutant
    dead: bool
    by: str
    output: str


@contextmanager
def broken_copy(mutant: Mutant) -> Iterator[Path]:
    """Make a folder with the broken package and the unchanged tests.

    Raises:
        LookupError: The text that it replaces is not there, or not once.
    """
    with tempfile.TemporaryDirectory(prefix="command-bus-mutant-") as folder:
        place = Path(folder)
        shutil.copytree(ROOT / "command_bus", place / "command_bus", ignore=shutil.ignore_patterns("__pycache__", "cli"))
        for name in ("tests", "scripts", "examples", "pyproject.toml"):
            (place / name).symlink_to(ROOT / name)
        for file, text in broken_texts(mutant).items():
            (place / "command_bus" / file).write_text(text, encoding="utf-8")
        yield place


def broken_texts(mutant: Mutant) -> dict[str, str]:
    """Return the files that it changes, with their new texts.

    Raises:
        LookupError: The text that it replaces is not there, or not once.
    """
    texts: dict[str, str] = {}
    for file, old, new in ((mutant.file, mutant.old, mutant.new), *mutant.more):
        text = texts.get(file) or (ROOT / "command_bus" / file).read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise LookupError(f"{mutant.name}: {file} has its text {text.count(old)} times: rewrite the mutant")
        texts[file] = text.replace(old, new)
    return texts


def hunt(mutant: Mutant, seeds: int, jobs: int = 1) -> Verdict:
    """Run the tests on a mutant; return whether one fails, and which."""
    with broken_copy(mutant) as place:
        if mutant.seen_by == SIMULATION:
            command = ["-m", "tests.simulation", "--seeds", str(seeds), "--first", "--jobs", str(jobs)]
        else:
            command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--import-mode=importlib", mutant.seen_by]
        environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                [sys.executable, *command],
                cwd=place,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=_LONGEST,
            )
        except subprocess.TimeoutExpired:  # a bus that never ends is found, too
            return Verdict(mutant, True, f"it did not end within {_LONGEST} s", "")
    by = mutant.seen_by
    if mutant.seen_by == SIMULATION:
        found = re.search(r"^(seed \d+) .*breaks:\n  (.*)$", done.stdout, re.MULTILINE)
        if found is None:  # an error that the simulator does not expect ends it
            found = re.search(r"^command_bus\.errors\.(\w+): (.*)$", done.stderr, re.MULTILINE)
        by = f"{found[1]}: {found[2]}" if found else ""
        return Verdict(mutant, found is not None, by, done.stdout + done.stderr)
    return Verdict(mutant, done.returncode == 1, by, done.stdout + done.stderr)
