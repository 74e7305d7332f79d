"""Events and a chord, as a user runs it, but shorter: workers are killed, and everything must agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.program import run_example


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(150)
def test_everything_agrees_although_workers_are_killed(tmp_path: Path) -> None:
    printed = run_example("together", "--seconds", "6", "--out", str(tmp_path), timeout=140)
    assert "Everything agrees." in printed
