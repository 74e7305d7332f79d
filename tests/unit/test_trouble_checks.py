"""The checks of `doctor` on what is tried again and again, and on schedules whose ticks are skipped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("typer")

from command_bus.doctor.diagnosis import command_line
from command_bus.doctor.stored_checks import check_retries, check_schedules
from command_bus.transport.records import Failure


def retrying(text: str | None) -> Any:
    return SimpleNamespace(failure=None if text is None else Failure(1, text))


def test_equal_errors_of_many_entities_are_a_storm() -> None:
    storm = [retrying(f"TimeoutError: the ledger did not answer order {number}\nmore") for number in range(12)]
    others = [retrying(f"ValueError: {letter}") for letter in "abcdefghij"] + [retrying(None)] * 20
    (found,) = check_retries([*others, *storm])
    assert (found.about, found.grade) == ("retry storm", "warning")
    assert found.found == "12 entities: TimeoutError: the ledger did not answer order 0"
    assert "entities --state retrying" in found.advice
    assert check_retries(others) == []


@pytest.mark.parametrize(("runs", "skipped", "left_out", "warns"), [(10, 4, 5, False), (2, 2, 2, False), (4, 3, 2, True)])
def test_schedules_that_skip_most_ticks(runs: int, skipped: int, left_out: int, warns: bool) -> None:
    schedule: Any = SimpleNamespace(
        name="poll", command="Poll", state="active", next_at_ms=None, jitter=0.0, runs=runs, skipped=skipped, left_out=left_out
    )
    found = [each.about for each in check_schedules([schedule], {}, ["Poll"], 0.0, command_line)]
    assert found == (["schedules skip"] if warns else ["schedules"])
