"""Some of the larger proofs, on a standalone cluster: the package as a zip, joins, streams. `make proofs` runs all, at full size."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.spark.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param("ship zip", id="zip"),
        pytest.param("order --rows 40000", id="order"),
        pytest.param("batches", id="batches"),
    ],
)
def test_the_proof_holds(arguments: str) -> None:
    command = [sys.executable, "-m", "tests.spark.proofs", *arguments.split()]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=380)
    assert run.returncode == 0, run.stdout + run.stderr[-3000:]
    assert run.stdout.rstrip().endswith("proved")
