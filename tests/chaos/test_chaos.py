"""A short run with a fixed seed. `make chaos` runs ten minutes of it; its command line says how to have more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(300)]  # beside other tests, nothing starts in time

ROOT = Path(__file__).parents[2]


@pytest.mark.promise("Accepted is stored", "A thread starts nothing late", "Hot entities hold up no others")
@pytest.mark.parametrize(
    "arguments",
    [pytest.param("--server valkey --seed 1 --seconds 16 --durability always", id="valkey, power loss as well")],
)
def test_no_promise_is_broken(arguments: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.chaos", *arguments.split(), "--out", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-3000:]
    figures = json.loads((tmp_path / "report.json").read_text())
    assert figures["verdict"] == "clean"
    assert figures["faults"] >= 12, figures["faults_by_kind"]
    assert figures["commands"] >= 500, "so few prove little"
    assert set(figures["not_injected"]) <= {"clock", "power"}, "what is missing must be missing for want of a compiler"
    assert "<svg" in (tmp_path / "report.html").read_text()
