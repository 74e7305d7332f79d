"""Attempts that fail are logged once a minute for each command and type of error."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from command_bus.worker import run_ends
from command_bus.worker.run_ends import FailureLog, failure_of


def run(name: str = "Work") -> Any:
    return SimpleNamespace(envelope=SimpleNamespace(name=name, command_id="c-1"), started=SimpleNamespace(attempt=2))


def test_a_storm_is_one_line_a_minute(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(run_ends, "mono", lambda: now)
    caplog.set_level(logging.INFO, "command_bus.worker")
    log = FailureLog("w-1")
    for _ in range(1000):
        log.log("account:a", run(), OSError("down"))
    log.log("account:a", run(), ValueError("other"))
    log.log("account:a", run("Other"), OSError("down"))
    assert [each.getMessage() for each in caplog.records] == [
        "Work c-1 failed (attempt 2): OSError: down",
        "Work c-1 failed (attempt 2): ValueError: other",
        "Other c-1 failed (attempt 2): OSError: down",
    ]
    now += 60
    log.log("account:b", run(), OSError("still down"))
    assert (
        caplog.messages[-1] == "Work c-1 failed (attempt 2): OSError: still down (999 more OSError of Work since the last line)"
    )


def test_types_of_errors_that_are_made_without_end_are_forgotten() -> None:
    log = FailureLog("w-1")
    for number in range(5000):
        log.log("account:a", run(f"Work{number}"), OSError("down"))
    assert len(log._told) <= 1000


def test_an_error_is_cut() -> None:
    assert failure_of(OSError("x" * 1000)) == f"OSError: {'x' * 191}"
