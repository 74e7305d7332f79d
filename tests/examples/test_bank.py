"""The bank example, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.server
def test_it_prints_what_happens():
    done = subprocess.run(
        [sys.executable, "-m", "examples.bank"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "deposit of 100 under the same id: accepted",
        "deposit of 100 under the same id: duplicate",
        "balance after a withdrawal of 30: 70",
        "withdrawal of 1000 refused: insufficient funds (insufficient_funds)",
        "balance, after the statement in line before it: 70",
        "dead letter: PrintStatement of account:a-1: no paper for a-1 (2 attempts)",
    ]


def test_it_stays_small():
    assert len((ROOT / "examples/bank/__main__.py").read_text().splitlines()) < 80
