"""The check of `doctor` about the history, on what shards keep."""

from __future__ import annotations

import pytest

pytest.importorskip("typer")

from command_bus.doctor.stored_checks import check_history
from command_bus.transport.records import EndBounds, HistoryExtent

DAY = 86_400_000
NOW = 100 * DAY


def extent(ends: int, *oldest: tuple[float, float, int], shard: int = 0) -> HistoryExtent:
    """Return what a shard keeps; of its oldest ends the days since they were settled, their age in days and their number."""
    bounds = (EndBounds(int(NOW - days * DAY), int(age * DAY), number) for days, age, number in oldest)
    return HistoryExtent(shard, NOW, ends, tuple(bounds))


def found(*extents: HistoryExtent) -> list[tuple[str, str, str]]:
    return [(each.about, each.grade, each.found) for each in check_history(extents)]


def test_what_keeps_up_is_fine() -> None:
    assert found(extent(0)) == []
    assert found(extent(90_000, (7.0, 7, 100_000)), extent(100_000, (1, 7, 100_000), shard=1)) == [
        ("history", "ok", "190,000 ends")
    ]


def test_a_history_beyond_its_number() -> None:
    assert found(extent(105_000, (1, 7, 100_000)), extent(500_000, (1, 7, 100_000), shard=1)) == [
        ("history number", "warning", "shard 1 keeps 500,000 ends, of 100,000")
    ]


@pytest.mark.parametrize("oldest", [[(10, 7, 10**6)], [(10, 30, 10**6), (10, 7, 10**6)]], ids=["over", "held by one behind it"])
def test_ends_that_are_kept_far_beyond_their_age(oldest: list[tuple[float, float, int]]) -> None:
    assert found(extent(5000, *oldest)) == [("history age", "warning", "shard 0 keeps ends whose age was over 3 d ago")]


def test_few_ends_and_a_quiet_night_are_no_matter() -> None:
    assert found(extent(900, (50, 7, 10))) == [("history", "ok", "900 ends")]
    assert found(extent(5000, (7.9, 7, 10_000))) == [("history", "ok", "5,000 ends")]
