"""Decisions about schedules: which tick fires next, what was missed, clocks that jump. No server, no clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from command_bus import InvalidSettings, cron, every
from command_bus.clock import milliseconds_of
from command_bus.messages.schedule_declarations import DeclaredSchedule, checked_name
from command_bus.messages.schedule_specs import SchedulePolicy, ScheduleSpec, latest_ticks
from command_bus.scheduling.planning import MOST_CAUGHT_UP, first_tick, plan, present, set_back, unpin
from command_bus.scheduling.record import ScheduleRecord, firing_id, spread

NOON = milliseconds_of("noon", datetime(2026, 12, 1, 12, tzinfo=UTC))
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def record(spec: ScheduleSpec | None = None, *, now: int = NOON, **policy: Any) -> ScheduleRecord:
    """Return a new schedule that was put at a time, by default each minute."""
    made = ScheduleRecord("s", b"template", spec or every(60), SchedulePolicy(**policy), 0, True, "i", 0, now, None)
    return replace(made, next=first_tick(made, now))


def run(schedule: ScheduleRecord, now: int) -> tuple[ScheduleRecord, list[int]]:
    """Fire all that is due at a time; return the ticks."""
    ticks: list[int] = []
    while (after := plan(schedule, now)) is not None:
        if after.pinned:
            ticks.append(after.pinned)
            after = after.finished(now)
        schedule = after
    return schedule, ticks


def minutes(*numbers: int) -> list[int]:
    return [NOON + number * MINUTE for number in numbers]


def test_ticks_are_planned_from_the_planned_ones() -> None:
    schedule, fired = record(), []
    for late in (0, 59_999, 20_000, 1):
        assert schedule.next is not None
        schedule, ticks = run(schedule, schedule.next + late)
        fired += ticks
    assert fired == minutes(1, 2, 3, 4)
    assert (schedule.fired, schedule.runs, schedule.late, schedule.missed) == (4, 4, 2, 0)


def test_nothing_fires_before_its_time_or_twice() -> None:
    schedule = record()
    assert plan(schedule, NOON + MINUTE - 1) is None
    pinned = plan(schedule, NOON + MINUTE)
    assert pinned is not None
    assert plan(pinned, NOON + 10 * MINUTE) == pinned, "what is pinned is what fires"
    assert plan(pinned.finished(NOON + MINUTE), NOON + MINUTE) is None


@pytest.mark.parametrize(
    ("missed", "fired", "left_out"),
    [("one", minutes(5), 4), ("all", minutes(1, 2, 3, 4, 5), 0), ("skip", minutes(5), 4)],
)
def test_missed_ticks(missed: Any, fired: list[int], left_out: int) -> None:
    schedule, ticks = run(record(missed=missed), NOON + 5 * MINUTE + 30_000)
    assert ticks == fired
    assert schedule.missed == left_out
    assert schedule.next == NOON + 6 * MINUTE


@pytest.mark.parametrize(("missed", "fires"), [("one", True), ("all", True), ("skip", False)])
def test_a_daily_tick_that_was_missed_by_an_hour(missed: Any, fires: bool) -> None:
    schedule, ticks = run(record(every(86_400), missed=missed), NOON + DAY + HOUR)
    assert ticks == ([NOON + DAY] if fires else [])
    assert schedule.next == NOON + 2 * DAY
    assert schedule.missed == (not fires)


@pytest.mark.parametrize("missed", ["one", "all", "skip"])
def test_nothing_older_than_catch_up_fires(missed: Any) -> None:
    schedule, ticks = run(record(missed=missed, catch_up=150), NOON + 10 * MINUTE)
    assert ticks == (minutes(8, 9, 10) if missed == "all" else minutes(10))
    schedule, ticks = run(record(every(3600), missed=missed, catch_up=60), NOON + 3 * HOUR + 2 * MINUTE)
    assert ticks == []
    assert schedule.missed == 3
    assert schedule.next == NOON + 4 * HOUR


@pytest.mark.parametrize("missed", ["one", "all", "skip"])
@pytest.mark.parametrize(("spec", "jitter"), [(every(86_400), 600), (every(2), 1.9), (cron("* * * * *"), 200)])
def test_a_tick_that_its_jitter_holds_back_is_not_missed(missed: Any, spec: ScheduleSpec, jitter: float) -> None:
    """It counts from the moment when it is due; also if the next tick comes before that."""
    schedule, fired = record(spec, missed=missed, jitter=jitter), list[int]()
    first = schedule.next
    for _ in range(50):
        assert schedule.due is not None
        assert plan(schedule, schedule.due - 1) is None
        schedule, ticks = run(schedule, schedule.due + 5)
        fired += ticks
    assert fired == sorted(set(fired))
    passed = latest_ticks(spec, (first or 0) - 1, (schedule.next or 0) - 1, schedule.origin, 1000)
    assert len(passed) == len(fired) + schedule.missed, "none is lost"
    assert jitter == 200 or schedule.missed == 0


def test_ticks_that_are_too_old_leave_those_that_their_jitter_holds_back() -> None:
    schedule = record(every(100), missed="skip", catch_up=30, jitter=99)
    now = NOON + 10 * 100_000 + 40_000
    before = schedule.next
    schedule, ticks = run(schedule, now)
    assert before is not None
    assert schedule.due is not None
    assert schedule.due > now
    passed = range(before, schedule.next or 0, 100_000)
    assert len(passed) == len(ticks) + schedule.missed
    assert [tick for tick in passed if now - 30_000 <= schedule.at(tick)] == ticks


def test_65_a_jitter_as_long_as_the_period_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="less than the 30 s between two ticks, not 30"):
        DeclaredSchedule("poll", None, every(30), SchedulePolicy(jitter=30.0), 1)


def test_all_catches_up_with_the_last_thousand() -> None:
    schedule, ticks = run(record(every(1), missed="all"), NOON + DAY)
    assert len(ticks) == MOST_CAUGHT_UP
    assert ticks[-1] == NOON + DAY
    assert ticks == sorted(set(ticks))
    assert not schedule.catching_up


def test_the_window_of_a_schedule() -> None:
    start, end = (datetime(2026, 12, 1, 13, minute, tzinfo=UTC) for minute in (0, 2))
    schedule = record(cron("* * * * *"), start=start, end=end)
    assert run(schedule, NOON + DAY)[1] == [milliseconds_of("end", end)]
    assert run(replace(schedule, policy=replace(schedule.policy, missed="all")), NOON + DAY)[1] == [
        milliseconds_of("start", start) + each * MINUTE for each in (0, 1, 2)
    ]
    assert run(schedule, NOON + DAY)[0].next is None


def test_no_more_runs_than_max_runs() -> None:
    schedule, ticks = run(record(missed="all", max_runs=3), NOON + HOUR)
    assert ticks == minutes(1, 2, 3)
    assert schedule.next is None
    assert schedule.due is None


def test_a_tick_that_is_taken_back_is_the_next_one_again() -> None:
    schedule = record(max_runs=1)
    pinned = plan(schedule, NOON + MINUTE)
    assert pinned is not None
    back = unpin(pinned)
    assert (back.next, back.runs, back.pinned) == (NOON + MINUTE, 0, 0)
    again = plan(back, NOON + MINUTE)
    assert again is not None
    assert again.seq == pinned.seq + 1, "its number is used up"
    dropped = unpin(pinned, drop=True)
    assert (dropped.next, dropped.runs, dropped.skipped) == (NOON + 2 * MINUTE, 0, 1)


def test_firings_by_hand_come_first_also_while_it_is_paused() -> None:
    schedule = replace(record(), paused=NOON, triggers=(NOON + 5, NOON + 9))
    after, ticks = run(schedule, NOON + HOUR)
    assert ticks == [NOON + 5, NOON + 9]
    assert after.last_id == firing_id("s", NOON + 9, manual=True) == "s@2026-12-01T12:00:00.009Z!"
    assert (after.runs, after.fired, after.last) == (0, 2, 0)


def test_jitter_is_the_same_for_every_worker_and_changes_no_tick() -> None:
    schedule = record(jitter=10)
    assert schedule.next == NOON + MINUTE
    assert schedule.due == NOON + MINUTE + spread("s", NOON + MINUTE, 10)
    spreads = {spread("s", NOON + each * MINUTE, 10) for each in range(100)}
    assert len(spreads) > 90
    assert all(0 <= each <= 10_000 for each in spreads)


def test_a_server_clock_that_is_far_ahead_is_not_followed() -> None:
    assert present(NOON + 59_000, NOON) == NOON + 59_000, "clocks differ"
    assert present(NOON + DAY, NOON) == NOON
    assert present(NOON - DAY, NOON) == NOON - DAY


@pytest.mark.promise("Clocks jump ahead and back")
@pytest.mark.parametrize("missed", ["one", "all", "skip"])
def test_clocks_a_day_ahead_and_back_lose_no_tick_and_repeat_none(missed: Any) -> None:
    fired: list[int] = []
    schedule = record(every(3600), missed=missed)
    for now in (NOON + HOUR, NOON + 2 * HOUR, NOON + DAY + 10_000):  # both clocks jump ahead
        schedule, ticks = run(schedule, now)
        fired += ticks
    assert fired[-1] == NOON + DAY
    for hour in range(2, 40):
        now = NOON + hour * HOUR + 20_000
        schedule = set_back(schedule, now) or schedule
        schedule, ticks = run(schedule, now)
        fired += ticks
    assert len(fired) == len(set(fired)), "no tick twice"
    assert set(fired) == {NOON + hour * HOUR for hour in range(1, 40)}, "none lost"


def test_a_clock_that_goes_back_repeats_nothing() -> None:
    schedule, fired = record(), []
    for minute in range(1, 31):
        schedule, ticks = run(schedule, NOON + minute * MINUTE)
        fired += ticks
    for minute in range(10, 61):
        now = NOON + minute * MINUTE + 1
        schedule = set_back(schedule, now) or schedule
        schedule, ticks = run(schedule, now)
        fired += ticks
    assert fired == minutes(*range(1, 61))


def test_a_schedule_that_is_as_it_ought_to_be_is_not_set_back() -> None:
    for spec in (every(60), cron("*/5 2,3 * * *", tz="Europe/Berlin")):
        schedule = record(spec)
        for now in range(NOON, NOON + 3 * DAY, 7 * HOUR + 11):
            assert set_back(schedule, now) is None or schedule.next is None or schedule.next <= now
            schedule, _ = run(schedule, now)
            assert set_back(schedule, now) is None


def test_a_record_is_what_was_stored() -> None:
    policy: dict[str, Any] = {
        "missed": "all",
        "catch_up": 5,
        "overlap": "cancel",
        "jitter": 0.5,
        "max_runs": 7,
        "immediately": True,
    }
    moments: dict[str, Any] = {"start": datetime(2026, 1, 1, tzinfo=UTC), "end": datetime(2027, 1, 1, tzinfo=UTC)}
    packed = b""
    for spec in (every(0.5), cron("0 2 * * MON#1", tz="America/New_York")):
        stored = replace(record(spec, **policy, **moments), triggers=(1, 2), ahead=(3, 4), reason="a|b", last_id="x", late=3)
        packed = stored.pack()
        assert ScheduleRecord.unpack(stored.name, packed) == stored
        assert ScheduleRecord.unpack(stored.name, packed).pack() == packed  # type: ignore[union-attr]
    for broken in (b"", b"\xc0", b"\x92\x02\x01", packed[:-5], b"\x96" + packed[1:-1]):
        assert ScheduleRecord.unpack("s", broken) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"missed": "some"}, "missed: one of one, all, skip"),
        ({"overlap": "drop"}, "overlap: one of queue, skip, replace, cancel"),
        ({"jitter": -1}, "jitter is a non-negative number"),
        ({"catch_up": 0}, "catch_up is a positive number"),
        ({"start": datetime(2026, 1, 1)}, "start: a datetime with a time zone"),
        ({"end": "tomorrow"}, "end: a datetime"),
        ({"max_runs": 0}, "max_runs must be a whole number"),
        ({"max_runs": True}, "max_runs must be a whole number"),
        ({"start": datetime(2026, 1, 2, tzinfo=UTC), "end": datetime(2026, 1, 1, tzinfo=UTC)}, "end: behind start"),
    ],
)
def test_wrong_rules_are_refused(options: Any, words: str) -> None:
    with pytest.raises(InvalidSettings, match=words):
        SchedulePolicy(**options)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 201, "ä" * 101, None, 5, "\ud800"])
def test_wrong_names_are_refused(name: Any) -> None:
    with pytest.raises(InvalidSettings, match="name:"):
        checked_name(name)


def test_local_moments_are_the_same_moment() -> None:
    assert milliseconds_of("at", datetime(2026, 12, 1, 13, tzinfo=UTC) - timedelta(hours=1)) == NOON
