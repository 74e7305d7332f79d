"""The example of workers from zero, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.server
def test_workers_come_with_work_and_go_without():
    done = subprocess.run(
        [sys.executable, "-m", "examples.scaler"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "workers before: 0",
        "orders packed: 20",
        "workers before: 0",
        "orders packed: 1",
        "workers at the end: 0",
    ]
