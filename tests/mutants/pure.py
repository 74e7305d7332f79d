"""Mutates the pure modules with mutmut: those that `[tool.mutmut]` in pyproject.toml lists, against their unit tests.

mutmut works in a folder of its own, so that the checkout stays as it is.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.mutants.hunt import ROOT

PLACE = ROOT / "build" / "mutmut"
LINKED = ("command_bus", "examples", "scripts", "tests", "pyproject.toml")
MUTMUT = (sys.executable, "-m", "mutmut")
_MODULE = re.compile(r"(.+)\.x[_ǁ]")
_RESULT = re.compile(r"^ +(\S+__mutmut_\d+): (.+)$", re.MULTILINE)


def is_installed() -> bool:
    return importlib.util.find_spec("mutmut") is not None


def mutate(jobs: int) -> int:
    """Run mutmut afresh, and print what survives; return its exit code."""
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    for name in LINKED:
        (PLACE / name).symlink_to(ROOT / name)
    run = subprocess.run(
        [*MUTMUT, "run", "--max-children", str(jobs)],
        cwd=PLACE,
        env={**os.environ, "CI": "true"},  # property tests repeat the same examples
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    results = subprocess.run([*MUTMUT, "results", "--all", "true"], cwd=PLACE, check=False, text=True, stdout=subprocess.PIPE)
    verdicts = dict(_RESULT.findall(results.stdout))
    if run.returncode or not verdicts:
        print(f"mutmut failed:\n{run.stdout[-3000:]}")
        return 1
    report(verdicts, PLACE / "survivors.txt")
    return 0


def report(verdicts: dict[str, str], survivors: Path) -> None:
    """Print how many mutants of each module survive, and write their names to a file."""
    counts: dict[str, Counter[str]] = {}
    for name, verdict in verdicts.items():
        counts.setdefault(_MODULE.match(name)[1], Counter())[verdict] += 1  # type: ignore[index]  # each name has one
    for module, found in sorted(counts.items()):
        rest = ", ".join(f"{number} {verdict}" for verdict, number in sorted(found.items()) if verdict != "killed")
        print(f"{module}: {found['killed']} of {found.total()} mutants are dead{rest and f'; {rest}'}")
    living = sorted(f"{name}: {verdict}\n" for name, verdict in verdicts.items() if verdict in ("survived", "no tests"))
    survivors.write_text("".join(living), encoding="utf-8")
    print(f"{len(living)} survive: {survivors} names them, and `mutmut show NAME` in that folder shows one")
