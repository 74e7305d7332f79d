"""Runs an example as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_example(name: str, *words: str, timeout: float = 50) -> str:
    """Run `python -m examples.…` to its end, which has to be good; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{name}", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "140"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
