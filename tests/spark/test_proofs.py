"""The larger proofs, at a size that a test run can bear; see `python -m tests.spark.proofs --help` for the whole ones."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.spark.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param("million --rows 20000 --entities 2000", id="cluster"),
        pytest.param("speculation --rows 10000", id="speculation"),
        pytest.param("lost-executor --rows 100000", id="lost-executor"),
        pytest.param("ship zip", id="zip"),
        pytest.param("connect", id="connect"),
    ],
)
def test_it_is_proved(arguments: str) -> None:
    command = [sys.executable, "-m", "tests.spark.proofs", *arguments.split()]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=380)
    assert run.returncode == 0, run.stdout + run.stderr[-3000:]
    assert run.stdout.rstrip().endswith("proved")
