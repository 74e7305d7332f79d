"""The page of the throughput: figures by command, and plots as SVG, whose values a table has, too; a script shows those that are pointed at."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from starlette.responses import Response

from command_bus.admin.audit import TrendPoint
from command_bus.admin.history import HistoryEntry
from command_bus.admin.info import Stats
from command_bus.clock import wall_ms
from command_bus.dashboard.visit import Visit
from command_bus.dashboard.words import count, span, when
from command_bus.serialization.tallies import FAILED, HANDLED, RETRIED, Tallies, quantile

_WIDTH, _HEIGHT = 486, 148
"""Units of what is between the axes; `plots.html` has the rest."""
_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (0.001, "ms"))


class Line(NamedTuple):
    """A line of a plot.

    Attributes:
        name: What the line shows.
        values: One for each time; None is a gap.
        tone: Its colour.
    """

    name: str
    values: Sequence[float | None]
    tone: str = "accent"


class Plot(NamedTuple):
    """A plot of lines over time, as `plots.html` draws it.

    Attributes:
        label: Heads it.
        top: The end of its axis.
        unit: That of this end; empty: a number.
        lines: Each line, its path, and its last value.
        clock: Begin, middle and end.
        at: The last time.
        column: The first of its columns in the table of values.
    """

    label: str
    top: float
    unit: str
    lines: list[tuple[Line, str, str]]
    clock: list[str]
    at: str
    column: int


def nice_top(most: float) -> float:
    """Return the next larger of 1, 2, 5, 10, 20, …: the top of an axis."""
    if most <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(most))
    return next(size * each for each in (1, 2, 5, 10) if most <= size * each * (1 + 1e-9))


def unit_of(seconds: float) -> tuple[float, str]:
    """Return the seconds of the unit in which an axis up to so many is short, and its name."""
    return next((each for each in _UNITS if seconds > 2 * each[0]), _UNITS[-2])


def line_plot(label: str, times: Sequence[int], lines: Sequence[Line], *, seconds: bool = False, column: int = 0) -> Plot:
    """Return a plot of lines over time (ms). Values are numbers, or seconds."""
    most = max((value for line in lines for value in line.values if value is not None), default=0.0)
    size, unit = unit_of(most) if seconds else (1.0, "")
    top = nice_top(most / size)
    first, last = (times[0], times[-1]) if times else (0, 1)

    def path(line: Line) -> str:
        found, before = list[str](), None
        for at, value in zip(times, line.values, strict=True):
            if value is not None:
                x, y = _WIDTH * (at - first) / max(last - first, 1), _HEIGHT * (1 - min(value / size / top, 1.0))
                found.append(f"{'M' if before is None else 'L'}{x:.1f} {y:.1f}")
            before = value
        return " ".join(found)

    drawn = [(line, path(line), shown(line.values[-1] if line.values else None, seconds=seconds)) for line in lines]
    return Plot(label, top, unit, drawn, clock(first, last), when(last)[5:], column)


def shown(value: float | None, *, seconds: bool) -> str:
    """Return a value of a plot as people read it."""
    return "–" if value is None else span(value) if seconds else count(round(value, 2))


def clock(first: int, last: int) -> list[str]:
    """Return the times below a plot, in UTC; with seconds or days where they would be alike without."""
    cut = slice(11, 19) if last - first < 600_000 else slice(11, 16) if when(first)[:10] == when(last)[:10] else slice(5, 16)
    return [when(at)[cut] for at in (first, (first + last) // 2, last)]


_SPANS = {"3h": 180, "12h": 720, "2d": 2880}
_SLOTS = 180
_FALLS = 20
_SAMPLE = 200
_GAP_MS = 150_000
_STEPS = (
    (0.01, "< 10 ms"), (0.1, "< 100 ms"), (1, "< 1 s"), (10, "< 10 s"), (60, "< 1 min"), (600, "< 10 min"), (math.inf, "more"),
)  # fmt: skip


class Times(NamedTuple):
    """The times of the last commands, in seconds: the half, and one of twenty and of a hundred that took longest."""

    half: float
    p95: float
    p99: float


async def throughput_page(visit: Visit) -> Response:
    """Show figures by command, and plots, of the last hours: `?span=` 3h, 12h or 2d."""
    chosen = visit.query["span"] if visit.query["span"] in _SPANS else "3h"
    points, ends, stats = await asyncio.gather(
        visit.shared("trends", lambda: visit.bus.trends.list(minutes=_SPANS[chosen])),
        visit.shared("sample", lambda: visit.bus.history.search(limit=_SAMPLE, scan=_SAMPLE)),
        visit.stats(),
    )
    begin_ms = wall_ms() - _SPANS[chosen] * 60_000
    points = [each for each in points if each.at_ms >= begin_ms]
    rows, since_ms = await visit.shared("rows", lambda: visit.apart(lambda: by_command(points, stats, begin_ms)))
    waiting = _with_waits(ends.entries)
    waits = [wait for _, wait in waiting]
    runs = [(each.settled_ms - each.started_ms) / 1000 for each in ends.entries if each.started_ms]
    return visit.page(
        "throughput.html",
        chosen=chosen,
        spans=list(_SPANS),
        rows=rows,
        since_ms=since_ms,
        **_drawn(points),
        stats=stats,
        sample=ends.entries,
        waits=quantiles(waits),
        runs=quantiles(runs),
        spread=[
            ("Seconds that they waited for their first start", *spread(waits)),
            ("Seconds from the first start to the end", *spread(runs)),
        ],
        slowest=sorted(waiting, key=lambda each: -each[1])[:5],
    )


class CommandRow(NamedTuple):
    """The figures of a command: its runs by their ends, and about how many seconds the half of them and 95 of a hundred took at most."""

    name: str
    handled: int
    failed: int
    retried: int
    half: float | None
    p95: float | None


def by_command(points: Sequence[TrendPoint], stats: Stats, begin_ms: int) -> tuple[list[CommandRow], int]:
    """Return the figures of each command, what fails most first, and since when they are.

    What the live workers have counted since they started is counted from the first point on that has such numbers, or from their start.
    Between two times at which a worker has left, the first and the last numbers say all.
    """
    now = Tallies.sum(each.tallies for each in stats.workers)
    marks = [each for each in points if each.tallies]
    started_ms = min((each.started_ms for each in stats.workers), default=0)
    if not marks or begin_ms <= started_ms <= marks[0].at_ms:
        marks.insert(0, TrendPoint(started_ms))
    marks.append(TrendPoint(0, tallies=now.pack(), runs=now.runs))
    falls = [at for at, (before, after) in enumerate(pairwise(marks), 1) if after.runs < before.runs][-_FALLS:]
    bounds = [*([] if len(falls) == _FALLS else [0]), *falls, len(marks)]
    grown = Tallies()
    for begin, end in pairwise(bounds):
        grown.grow(Tallies.sum([marks[begin].tallies]), Tallies.sum([marks[end - 1].tallies]))
    rows = [
        CommandRow(name, *(tally[end] for end in (HANDLED, FAILED, RETRIED)), *(quantile(tally, share) for share in (0.5, 0.95)))
        for name, tally in grown.items()
        if tally
    ]
    return sorted(rows, key=lambda each: (-each.failed, -each.retried, -each.handled, each.name)), marks[bounds[0]].at_ms


def rates(points: Sequence[TrendPoint], name: str, gap_ms: int = _GAP_MS) -> list[float | None]:
    """Return how much a counter grew in each minute, behind the first; None behind a gap, and where it was set back."""
    found: list[float | None] = [None]
    for before, after in pairwise(points):
        passed_ms = after.at_ms - before.at_ms
        grown = getattr(after, name) - getattr(before, name)
        found.append(grown / (passed_ms / 60_000) if 0 < passed_ms <= gap_ms and grown >= 0 else None)
    return found


def quantiles(values: Sequence[float]) -> Times | None:
    """Return three quantiles; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)

    def at(share: float) -> float:
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)]

    return Times(at(0.5), at(0.95), at(0.99))


_PLOTS: tuple[tuple[str, bool, tuple[tuple[str, str, str], ...]], ...] = (
    ("Commands a minute", True, (("accepted", "accepted", "calm"), ("completed", "completed", "accent"))),
    ("Dead letters a minute", True, (("dead-lettered", "dead_lettered", "bad"),)),
    ("Retries and refusals a minute", True, (("retried", "retried", "warn"), ("rejected", "rejected", "calm"))),
    ("Commands that wait or run", False, (("depth", "depth", "accent"),)),
    ("The longest wait for a worker", False, (("longest wait", "oldest_age", "accent"),)),
    ("Entities with a worker", False, (("with a worker", "in_flight", "good"),)),
    ("Parked entities", False, (("parked", "parked", "bad"),)),
    ("Dead letters that are kept", False, (("dead letters", "dead_letters", "warn"),)),
    ("Live workers", False, (("workers", "workers", "good"),)),
)
"""Label, whether it shows how counters grow, and lines: name, figure, colour. What may differ by far has no axis in common."""


def _drawn(points: Sequence[TrendPoint]) -> dict[str, Any]:
    """Return the plots, and the table with their values, newest first: of many minutes those of a step, where levels are the highest in it."""
    if len(points) < 2:
        return {"plots": [], "columns": [], "values": [], "step": 1}
    step = max(math.ceil((points[-1].at_ms - points[0].at_ms) / 60_000 / _SLOTS), 1)
    slots = [list(each) for _, each in groupby(points, lambda point: point.at_ms // (step * 60_000))]
    ends = [each[-1] for each in slots]
    times = [each.at_ms for each in ends]
    plots, columns, texts = list[Plot](), list[str](), list[list[str]]()
    for label, grows, lines in _PLOTS:
        drawn = [
            Line(
                text,
                rates(ends, name, _GAP_MS * step)
                if grows
                else [max(float(getattr(each, name)) for each in slot) for slot in slots],
                tone,
            )
            for text, name, tone in lines
        ]
        seconds = lines[0][1] == "oldest_age"
        plots.append(line_plot(label, times, drawn, seconds=seconds, column=len(columns) + 1))
        columns += [line.name for line in drawn]
        texts += [[shown(value, seconds=seconds) for value in line.values] for line in drawn]
    return {
        "plots": plots,
        "columns": columns,
        "values": list(zip(times, zip(*texts, strict=True), strict=True))[::-1],
        "step": step,
    }


def spread(values: Sequence[float]) -> tuple[list[tuple[str, int]], float]:
    """Return how many values are below each step and not below the one before, and where their axis ends."""
    counts = Counter(next(name for most, name in _STEPS if value < most) for value in values)
    return [(name, counts[name]) for _, name in _STEPS], nice_top(max(counts.values(), default=0))


def _with_waits(ends: Sequence[HistoryEntry]) -> list[tuple[HistoryEntry, float]]:
    return [(each, (each.started_ms - each.accepted_ms) / 1000) for each in ends if each.started_ms and each.accepted_ms]
