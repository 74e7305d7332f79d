"""The checks of `doctor` on what is tried again and again, on schedules whose ticks are skipped, and on subscriptions that fall behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("typer")

from command_bus.admin.subscriptions import SubscriptionInfo
from command_bus.doctor.diagnosis import command_line
from command_bus.doctor.stored_checks import check_retries, check_schedules, check_subscriptions
from command_bus.transport.records import Failure, HoldInfo


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


@pytest.mark.parametrize(("command", "about"), [("Poll", "schedules unhandled"), ("command_bus.Publish", "schedules")])
def test_a_schedule_that_publishes_needs_no_handler(command: str, about: str) -> None:
    schedule: Any = SimpleNamespace(
        name="pay", command=command, state="active", next_at_ms=None, jitter=0.0, runs=1, skipped=0, left_out=0
    )
    assert [each.about for each in check_schedules([schedule], {}, [], 0.0, command_line)] == [about]


def subscription(**facts: Any) -> SubscriptionInfo:
    given = {"name": "ledger", "events": ("account.*",), "delivery": "at_least_once", "revision": 1, "since_ms": 0}
    return SubscriptionInfo(**{**given, "workers": ("w-1",), **facts})


HOUR = 3_600_000
CASES = [
    ({}, ["ok"], "1"),
    ({"waiting": 10_000, "oldest_ms": HOUR}, ["ok"], "1"),
    ({"workers": ()}, ["warning"], "ledger: no live worker handles it"),
    ({"workers": (), "waiting": 3}, ["bad"], "ledger: no live worker handles it, and 3 deliveries wait"),
    ({"workers": (), "waiting": 3, "paused": ""}, ["warning"], "ledger: no live worker handles it, and 3 deliveries wait"),
    ({"waiting": 10_001, "entities": 2}, ["warning"], "ledger: 10,001 deliveries wait for 2 entities"),
    ({"waiting": 1, "oldest_ms": 1}, ["warning"], "ledger: the oldest delivery was accepted 120 min ago"),
    ({"oldest_ms": 1, "paused": "late"}, ["warning"], "ledger: the oldest delivery was accepted 120 min ago; it is paused: late"),
    ({"oldest_ms": 1, "workers": ()}, ["warning", "warning"], "ledger: no live worker handles it"),
]


@pytest.mark.parametrize(("facts", "grades", "text"), CASES)
def test_subscriptions_that_fall_behind(facts: dict[str, Any], grades: list[str], text: str) -> None:
    found = check_subscriptions([subscription(**facts)], 2 * HOUR)
    assert ([each.grade for each in found], found[0].found) == (grades, text)


def test_a_hold_names_its_subscription() -> None:
    kinds = ("@ledger", "account@ledger", "account", None)
    assert [HoldInfo("", kind, "paused", 0, "").subscription for kind in kinds] == ["ledger", "", "", ""]
