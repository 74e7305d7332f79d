"""The example of workers from zero, as a user runs it."""

from __future__ import annotations

import pytest

from tests.examples.program import run_example


@pytest.mark.slow
@pytest.mark.server
def test_workers_come_with_work_and_go_without():
    printed = run_example("scaler")
    assert printed.splitlines() == [
        "workers before: 0",
        "orders packed: 20",
        "workers before: 0",
        "orders packed: 1",
        "workers at the end: 0",
    ]
