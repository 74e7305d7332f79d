"""Times at which a schedule fires, and what is to happen where something comes in between: `cron`, `every`, `SchedulePolicy`.

A *tick* is a planned time, in milliseconds since the epoch. The next tick is computed from the one before, never from the time at which
that was fired, so schedules do not drift.

Cron patterns are those of Debian's cron, also where clocks are set forward or back. A fixed time that does not exist fires right after
the gap, and one that comes twice fires once. A pattern whose minute or hour begins with `*` goes on by real time. `cronsim` computes them;
patterns by real time are given to it as if the zone had no switches, because it loses ticks where clocks are set back by half an hour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from types import ModuleType
from typing import Any, Literal, Protocol
from zoneinfo import ZoneInfo

from command_bus.clock import duration_fault, milliseconds_of, time_of
from command_bus.errors import InvalidSettings, MissingExtra
from command_bus.spelling import shown

Missed = Literal["one", "all", "skip"]
"""What happens to ticks that no worker fired in time: `one` fires the last of them, `all` fires each in order, `skip` fires none."""

Overlap = Literal["queue", "skip", "replace", "cancel"]
"""What happens to a tick whose predecessor is not settled: it waits behind it, is left out, takes its place in line if that has not
started, or also ends its attempt if it has."""

_HOUR = 3_600_000
_LEAP_YEAR = 1_704_067_200_000
"""The beginning of one, 2024."""
_LOOKED_AT = 400
"""Ticks of a pattern: more than a year of a daily one has."""
_EVERY_AT_LEAST = 0.1
"""Seconds. A shorter period is a loop, not a schedule."""


class ScheduleSpec(Protocol):
    """The times of a schedule."""

    def after(self, tick: int, origin: int) -> int | None:
        """Return the first tick behind a time, in ms; None if there is none."""
        ...

    def pack(self) -> list[Any]:
        """Return plain data for the store."""
        ...

    def __str__(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Every:
    """A `ScheduleSpec`: a period. Ticks are a multiple of it after an origin, whatever local clocks do.

    Attributes:
        ms: Its length.
    """

    ms: int

    def after(self, tick: int, origin: int) -> int | None:
        return origin + max((tick - origin) // self.ms + 1, 0) * self.ms

    def pack(self) -> list[Any]:
        return ["e", self.ms]

    def __str__(self) -> str:
        return f"every {self.ms / 1000:g} s"


@dataclass(frozen=True, slots=True)
class Cron:
    """A `ScheduleSpec`: a cron pattern in a time zone.

    Attributes:
        pattern: Five fields: minute, hour, day of the month, month, day of the week.
        tz: Name of the time zone.
    """

    pattern: str
    tz: str = "UTC"

    def after(self, tick: int, origin: int) -> int | None:
        try:
            if any(part.startswith("*") for part in self.pattern.split()[:2]):
                return _after_by_real_time(self.pattern, _zone(self.tz), tick)
            for found in _simulated(self.pattern, time_of(tick).astimezone(_zone(self.tz))):
                at = int(found.timestamp() * 1000)
                if at > tick:  # a time that comes twice, or two that a gap moves together, count once
                    return at
        except (OverflowError, ValueError):  # behind the year 9999
            pass
        return None

    def pack(self) -> list[Any]:
        return ["c", self.pattern, self.tz]

    def __str__(self) -> str:
        return f"cron {self.pattern} ({self.tz})"


def shortest_gap(spec: Cron | Every) -> float:
    """Return the shortest time between two ticks in ms, of the first hundreds of a leap year."""
    ticks, end = [_LEAP_YEAR], _LEAP_YEAR + 367 * 24 * _HOUR
    while len(ticks) < _LOOKED_AT and (tick := spec.after(ticks[-1], _LEAP_YEAR)) is not None and tick < end:
        ticks.append(tick)
    return min((later - one for one, later in pairwise(ticks[1:])), default=math.inf)


def cron(pattern: str, tz: str = "UTC") -> Cron:
    """Return the times of a cron pattern of five fields, as Debian's cron reads them: `cron("0 2 * * MON-FRI", tz="Europe/Berlin")`.

    Args:
        pattern: Minute, hour, day of the month, month, day of the week; `*`, lists, ranges, steps, names, `L` for a last day.
        tz: A time zone, such as `Europe/Berlin`.

    Raises:
        InvalidSettings: The pattern or zone is wrong, or the pattern never has a date.
        MissingExtra: The extra `schedules` is not installed.
    """
    example = 'for example cron("0 2 * * MON-FRI", tz="Europe/Berlin")'
    if not isinstance(pattern, str) or len(pattern.split()) != 5:
        raise InvalidSettings(f"cron: five fields (minute hour day month weekday), not {shown(pattern)}; {example}")
    if not isinstance(tz, str) or not tz:
        raise InvalidSettings(f"tz: the name of a time zone, not {tz!r}; {example}")
    _cronsim()
    try:
        zone = _zone(tz)
    except (ValueError, OSError, KeyError, ImportError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise InvalidSettings(f"tz: no time zone {tz!r} is known here; {example}") from error
    found = Cron(" ".join(pattern.upper().split()), tz)
    try:
        first = next(_simulated(found.pattern, datetime(2024, 1, 1, tzinfo=zone)), None)
    except ValueError as error:
        raise InvalidSettings(f"cron: {shown(pattern)}: {error}; {example}") from error
    if first is None:
        raise InvalidSettings(f"cron: {shown(pattern)} never has a date; {example}")
    return found


def every(seconds: float) -> Every:
    """Return the times of a period, in seconds, at least 0.1: `every(30)`.

    Raises:
        InvalidSettings: It is no such number.
    """
    fault = duration_fault(seconds)
    if fault is not None or seconds < _EVERY_AT_LEAST:
        raise InvalidSettings(
            f"every: {fault or f'is at least {_EVERY_AT_LEAST:g} seconds, not {seconds!r}'}; for example every(30)"
        )
    return Every(round(seconds * 1000))


@dataclass(frozen=True, slots=True)
class SchedulePolicy:
    """The rules of a schedule beside its times.

    Attributes:
        missed: What happens to ticks that no worker fired in time.
        catch_up: Seconds; an older tick is never fired. By default a year, and for `missed="skip"` a minute.
        overlap: What happens to a tick whose predecessor is not settled.
        jitter: Seconds by which firings are spread behind their ticks, each tick by its own share.
        start: No tick before this.
        end: No tick comes after this.
        max_runs: Ticks that fire in all; None: no limit.
        immediately: Whether it also fires when it is first put.
    """

    missed: Missed = "one"
    catch_up: float | None = None
    overlap: Overlap = "queue"
    jitter: float = 0.0
    start: datetime | None = None
    end: datetime | None = None
    max_runs: int | None = None
    immediately: bool = False

    def __post_init__(self) -> None:
        for name, value, words in (("missed", self.missed, ("one", "all", "skip")), ("overlap", self.overlap, _OVERLAPS)):
            if value not in words:
                raise InvalidSettings(f"{name}: one of {', '.join(words)}, not {value!r}")
        for name, seconds, zero in (("catch_up", self.catch_up, False), ("jitter", self.jitter, True)):
            fault = None if seconds is None and name == "catch_up" else duration_fault(seconds, zero=zero)
            if fault is not None:
                raise InvalidSettings(f"{name} {fault}; for example {name}=60")
        for name, at in (("start", self.start), ("end", self.end)):
            if at is not None:
                milliseconds_of(name, at)
        if self.start is not None and self.end is not None and self.end <= self.start:
            raise InvalidSettings(f"end: behind start, which is {self.start.isoformat()}")
        runs = self.max_runs
        if runs is not None and (isinstance(runs, bool) or not isinstance(runs, int) or not 1 <= runs < 2**63):
            raise InvalidSettings(f"max_runs must be a whole number of at least 1, not {shown(runs)}; leave it out for no limit")

    @property
    def catch_up_ms(self) -> int:
        """How old a tick may be that is still fired."""
        seconds = self.catch_up if self.catch_up is not None else 60.0 if self.missed == "skip" else 366 * 86_400.0
        return int(seconds * 1000)

    @property
    def start_ms(self) -> int | None:
        """`start` in milliseconds since the epoch, or None."""
        return None if self.start is None else milliseconds_of("start", self.start)

    @property
    def end_ms(self) -> int | None:
        """`end` in milliseconds since the epoch, or None."""
        return None if self.end is None else milliseconds_of("end", self.end)


_OVERLAPS = ("queue", "skip", "replace", "cancel")


_SECOND = timedelta(seconds=1)


def latest_ticks(spec: ScheduleSpec, after: int, until: int, origin: int, most: int) -> list[int]:
    """Return the last ticks behind `after` and not behind `until`, in order; at most so many, found without going through all of them."""
    if isinstance(spec, Every):
        first, last = spec.after(after, origin), until - (until - origin) % spec.ms
        return [] if first is None else list(range(max(first, last - (most - 1) * spec.ms), last + 1, spec.ms))
    window = _HOUR
    while True:
        begin = max(after, until - window)
        found: list[int] = []
        tick = spec.after(begin, origin)
        while tick is not None and tick <= until:
            found.append(tick)
            tick = spec.after(tick, origin)
        if len(found) >= most or begin == after:
            return found[-most:]
        window *= 8


@lru_cache(maxsize=512)
def _zone(tz: str) -> ZoneInfo:
    return ZoneInfo(tz)


def _after_by_real_time(pattern: str, zone: ZoneInfo, tick: int) -> int | None:
    """Return the first tick behind a time: between two switches of the zone a pattern is that of a clock that is never set."""
    begin = time_of(tick)
    offset = _offset(begin, zone)
    while True:
        local = next(_simulated(pattern, (begin + offset).replace(tzinfo=None)), None)
        if local is None:
            return None
        found = local.replace(tzinfo=UTC) - offset
        if _offset(found, zone) == offset:
            return milliseconds_of("tick", found)
        begin = _switch(begin, found, zone) - _SECOND  # `_simulated` looks behind it
        offset = _offset(begin + _SECOND, zone)


def _switch(before: datetime, behind: datetime, zone: ZoneInfo) -> datetime:
    """Return a moment, in whole seconds, at which the zone has another offset than a second before and than `before`."""
    offset, first, last = _offset(before, zone), int(before.timestamp()), int(behind.timestamp())
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (middle, last) if _offset(time_of(middle * 1000), zone) == offset else (first, middle)
    return time_of(last * 1000)


def _offset(at: datetime, zone: ZoneInfo) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta()


def _simulated(pattern: str, start: datetime) -> Iterator[datetime]:
    cronsim = _cronsim()
    try:
        return iter(cronsim.CronSim(pattern, start))
    except cronsim.CronSimError as error:
        raise ValueError(str(error)) from error


def _cronsim() -> ModuleType:
    try:
        import cronsim
    except ImportError as error:
        raise MissingExtra("cron(…) needs cronsim: pip install 'command-bus[schedules]', or take every(seconds)") from error
    return cronsim
