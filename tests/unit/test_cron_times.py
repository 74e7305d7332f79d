"""Cron patterns, compared with Debian's cron, minute by minute, in four zones around both switches of their clocks.

Debian's rules, from cron(8) and `cron.c`: a job whose minute or hour begins with `*` runs by real time. Any other job that a clock set
forward has skipped runs right after the switch. While a clock that was set back repeats an hour, such a job does not run again.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from command_bus import InvalidSettings, cron, every
from command_bus.clock import milliseconds_of, time_of
from command_bus.errors import MissingExtra
from command_bus.messages import schedule_specs as specs
from command_bus.messages.schedule_specs import latest_ticks

MINUTE = timedelta(minutes=1)

# The moment of each switch, in UTC: forward, then back.
SWITCHES = {
    "Europe/Berlin": (datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)),
    "America/New_York": (datetime(2026, 3, 8, 7, tzinfo=UTC), datetime(2026, 11, 1, 6, tzinfo=UTC)),
    "Australia/Melbourne": (datetime(2026, 10, 3, 16, tzinfo=UTC), datetime(2026, 4, 4, 16, tzinfo=UTC)),
    "Australia/Lord_Howe": (datetime(2026, 10, 3, 15, 30, tzinfo=UTC), datetime(2026, 4, 4, 15, tzinfo=UTC)),
}

PATTERNS = (
    "30 2 * * *",
    "0 2 * * *",
    "15 2 * * *",
    "45 1 * * *",
    "30 1 * * *",
    "0 3 * * *",
    "0,30 2,3 * * *",
    "5-50/15 1-3 * * *",
    "0 0 * * *",
    "*/10 * * * *",
    "0 * * * *",
    "*/20 2 * * *",
    "30 */2 * * *",
    "0 */2 * * *",
    "*/5 3 * * *",
    "*/15 1 * * SUN",
    "59 1 * * 1-7",
)


def field(text: str, low: int, high: int) -> set[int]:
    """Read a field of numbers: `*`, lists, ranges, steps."""
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        start, end = (low, high) if span == "*" else (int(first), int(last if dash else first))
        found |= set(range(start, end + 1, int(step or 1)))
    return found


def debian(pattern: str, zone: ZoneInfo, begin: datetime, end: datetime) -> Iterator[datetime]:
    """Yield the moments at which Debian's cron runs a daily job, as its main loop does, from minute to minute of real time."""
    minute, hour, *_ = pattern.split()
    minutes, hours = field(minute, 0, 59), field(hour, 0, 23)
    by_real_time = minute.startswith("*") or hour.startswith("*")

    def matches(local: datetime) -> bool:
        weekday = pattern.split()[4]
        return local.minute in minutes and local.hour in hours and (weekday != "SUN" or local.weekday() == 6)

    at = begin
    virtual = at.astimezone(zone).replace(tzinfo=None)
    while (at := at + MINUTE) < end:
        local = at.astimezone(zone).replace(tzinfo=None)
        if by_real_time:
            runs = matches(local)
            virtual = local
        else:
            runs = False
            while virtual < local:  # a clock set back: nothing until it has caught up; set forward: all that was skipped
                virtual += MINUTE
                runs = runs or matches(virtual)
        if runs:
            yield at


@pytest.mark.promise("Each tick fires once")
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("switch", ["forward", "back"])
@pytest.mark.parametrize("tz", SWITCHES)
def test_ticks_are_those_of_debians_cron(tz: str, switch: str, pattern: str) -> None:
    zone, moment = ZoneInfo(tz), SWITCHES[tz][switch == "back"]
    offsets = [(moment + shift).astimezone(zone).utcoffset() or timedelta() for shift in (-MINUTE, MINUTE)]
    assert (offsets[0] < offsets[1]) is (switch == "forward"), "the table names the switch"
    begin, end = moment - timedelta(hours=40), moment + timedelta(hours=40)
    expected = list(debian(pattern, zone, begin, end))
    spec, found = cron(pattern, tz=tz), []
    tick = spec.after(milliseconds_of("begin", begin), 0)
    while tick is not None and time_of(tick) < end:
        found.append(time_of(tick))
        tick = spec.after(tick, 0)
    assert found == expected
    assert len(expected) >= 3 or "SUN" in pattern.split()[4]


def test_every_moment_has_the_same_next_tick() -> None:
    """The next tick depends on the time alone, not on where one began to count."""
    zone, (moment, _) = "Australia/Lord_Howe", SWITCHES["Australia/Lord_Howe"]
    spec = cron("15,45 2 * * *", tz=zone)
    begin = milliseconds_of("begin", moment - timedelta(hours=30))
    ticks = [spec.after(begin, 0)]
    for at in range(begin, begin + 60 * 3_600_000, 60_000):
        tick = spec.after(at, 0)
        assert tick is not None
        assert tick > at
        if tick != ticks[-1]:
            ticks.append(tick)
    assert ticks == sorted(set(ticks))  # type: ignore[type-var]
    assert len(ticks) == len(set(ticks))


def test_a_period_is_absolute() -> None:
    spec = every(90)
    assert [spec.after(at, 1_000) for at in (0, 999, 1_000, 90_999, 91_000)] == [1_000, 1_000, 91_000, 91_000, 181_000]
    assert str(spec) == "every 90 s"
    assert str(cron("0  2 * * mon-fri", tz="Europe/Berlin")) == "cron 0 2 * * MON-FRI (Europe/Berlin)"


@pytest.mark.parametrize("spec", [every(60), cron("* * * * *"), cron("*/7 * * * *")])
def test_the_latest_ticks_are_the_last_of_all(spec: specs.ScheduleSpec) -> None:
    until = 1_700_000_123_000
    for hours, most in ((0.01, 5), (2, 1), (2, 1000), (30, 100), (30, 1000)):
        after = until - int(hours * 3_600_000)
        ticks, tick = [], spec.after(after, 0)
        while tick is not None and tick <= until:
            ticks.append(tick)
            tick = spec.after(tick, 0)
        assert latest_ticks(spec, after, until, 0, most) == ticks[-most:]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: cron("61 * * * *"), "Bad minute; for example"),
        (lambda: cron("* * * *"), "five fields"),
        (lambda: cron("0 0 2 * * *"), "five fields"),
        (lambda: cron(5), "five fields"),  # type: ignore[arg-type]
        (lambda: cron("0 0 31 2 *"), "Bad day-of-month"),
        (lambda: cron("0 0 * * *", tz="Europe/Berlim"), "no time zone 'Europe/Berlim'"),
        (lambda: cron("0 0 * * *", tz="../../etc/passwd"), "no time zone"),
        (lambda: cron("0 0 * * *", tz=""), "name of a time zone"),
        (lambda: every(0), "positive number of seconds"),
        (lambda: every(-1), "positive number of seconds"),
        (lambda: every(0.05), "at least 0.1 seconds"),
        (lambda: every(float("nan")), "positive number of seconds"),
        (lambda: every("30"), "positive number of seconds"),  # type: ignore[arg-type]
    ],
)
def test_wrong_times_are_refused_with_an_example(make: object, words: str) -> None:
    with pytest.raises(InvalidSettings, match=words.replace("(", r"\(")) as refused:
        make()  # type: ignore[operator]
    assert "for example" in refused.value.message


def test_without_cronsim_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cronsim", None)
    with pytest.raises(MissingExtra, match=r"command-bus\[schedules\]"):
        cron("0 0 * * *")
    assert every(30).after(0, 0) == 30_000
