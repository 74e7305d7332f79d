"""The synchroniser, as a user runs it, but smaller: workers are killed, and everything must agree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(150)
def test_everything_agrees_although_workers_are_killed(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "examples.synchroniser",
            "--shops",
            "80",
            "--pages",
            "3",
            "--period",
            "1.2",
            "--out",
            str(tmp_path),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=140,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Everything agrees." in done.stdout
