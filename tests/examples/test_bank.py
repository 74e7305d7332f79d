"""The bank example, as a user runs it."""

from __future__ import annotations

import pytest

from tests.examples.program import ROOT, run_example


@pytest.mark.server
def test_it_prints_what_happens():
    printed = run_example("bank")
    assert printed.splitlines() == [
        "deposit of 100 under the same id: accepted",
        "deposit of 100 under the same id: duplicate",
        "balance after a withdrawal of 30: 70",
        "withdrawal of 1000 refused: insufficient funds (insufficient_funds)",
        "balance, after the statement in line before it: 70",
        "dead letter: PrintStatement of account:a-1: no paper for a-1 (2 attempts)",
    ]


def test_it_stays_small():
    assert len((ROOT / "examples/bank/__main__.py").read_text().splitlines()) < 80
