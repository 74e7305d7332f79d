"""The page of the throughput: figures by command, and plots as SVG, whose values a table has, too; a script shows those that are pointed at."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from markupsafe import Markup, escape
from starlette.responses import Response

from command_bus.admin.audit import TrendPoint
from command_bus.admin.history import HistoryEntry
from command_bus.admin.info import Stats
from command_bus.clock import wall_ms
from command_bus.dashboard.visit import Visit
from command_bus.dashboard.words import count, span, when
from command_bus.serialization.tallies import FAILED, HANDLED, RETRIED, Tallies, quantile

_WIDTH, _HEIGHT = 560, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 8, 18, 24
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


def nice_top(most: float) -> float:
    """Return the next larger of 1, 2, 5, 10, 20, …: the top of an axis."""
    if most <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(most))
    return next(size * each for each in (1, 2, 5, 10) if most <= size * each * (1 + 1e-9))


def unit_of(seconds: float) -> tuple[float, str]:
    """Return the seconds of the unit in which an axis up to so many is short, and its name."""
    return next((each for each in _UNITS if seconds > 2 * each[0]), _UNITS[-2])


def line_plot(label: str, times: Sequence[int], lines: Sequence[Line], *, seconds: bool = False, column: int = 0) -> Markup:
    """Return a plot of lines over time (ms). Values are numbers, or seconds; the table of values has them from a column on."""
    most = max((value for line in lines for value in line.values if value is not None), default=0.0)
    size, unit = unit_of(most) if seconds else (1.0, "")
    top = nice_top(most / size) * size
    first, last = (times[0], times[-1]) if times else (0, 1)
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(at: int) -> float:
        return _LEFT + wide * (at - first) / max(last - first, 1)

    def y(value: float) -> float:
        return _TOP + high * (1 - min(value / top, 1.0))

    parts = [_grid(top / size, unit), _clock(first, last)]
    for line in lines:
        path = _path([(x(at), None if value is None else y(value)) for at, value in zip(times, line.values, strict=True)])
        parts.append(Markup('<path class="line {}" d="{}"/>').format(line.tone, path))
    legend = Markup("").join(
        Markup('<span class="key {}"><span class="swatch" aria-hidden="true"></span>{} <b>{}</b></span>').format(
            line.tone, line.name, _shown(line.values[-1] if line.values else None, seconds)
        )
        for line in lines
    )
    about = Markup(' <small class="at">{} UTC</small>').format(when(last)[5:])
    return _figure(label, parts, Markup('<div class="legend" aria-live="polite">{}</div>').format(legend), about, column)


def _shown(value: float | None, seconds: bool) -> str:
    return "–" if value is None else span(value) if seconds else count(round(value, 2))


def bars(label: str, names: Sequence[str], values: Sequence[float]) -> Markup:
    """Return a plot of bars, with their names below and their values above."""
    top, wide = nice_top(max(values, default=0)), (_WIDTH - _LEFT - _RIGHT) / max(len(values), 1)
    high = _HEIGHT - _TOP - _BOTTOM
    parts = [_grid(top)]
    for at, (name, value) in enumerate(zip(names, values, strict=True)):
        tall = high * value / top
        left = _LEFT + at * wide
        bar = Markup('<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>')
        parts.append(bar.format(left + 2, _TOP + high - tall, max(wide - 4, 1), tall))
        text = Markup('<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>')
        parts += (
            text.format(left + wide / 2, at_y, each)
            for at_y, each in ((_HEIGHT - 6, name), (_TOP + high - tall - 4, count(value)))
        )
    return _figure(label, parts)


def _figure(label: str, parts: Sequence[Markup], below: str = "", about: str = "", column: int = 0) -> Markup:
    """Return a drawing with what is below it. One whose values are in the table, from a column on, takes the pointer and the keyboard."""
    drawing = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}"{}>{}</svg>').format(
        _WIDTH, _HEIGHT, label, Markup(' tabindex="0" data-column="{}"').format(column) if column else "", Markup("").join(parts)
    )
    return Markup('<figure class="plot"><figcaption>{}{}</figcaption>{}{}</figure>').format(escape(label), about, drawing, below)


def _grid(top: float, unit: str = "") -> Markup:
    """Return the lines behind a plot with their numbers, of a unit or none."""
    parts: list[Markup] = []
    for step in range(3):
        value, at = top * step / 2, _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - step / 2)
        parts.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(_LEFT, _WIDTH - _RIGHT, at, at)
        )
        name = f"{value:g} {unit}" if unit else count(value)
        parts.append(Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(_LEFT - 8, at + 4, name))
    return Markup("").join(parts)


def _clock(first: int, last: int) -> Markup:
    """Return the times below: begin, middle and end, in UTC; with seconds or days where they would be alike without."""
    cut = slice(11, 19) if last - first < 600_000 else slice(11, 16) if when(first)[:10] == when(last)[:10] else slice(5, 16)
    parts: list[Markup] = []
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        at = _LEFT + (_WIDTH - _LEFT - _RIGHT) * share
        text = Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="{}">{} UTC</text>')
        parts.append(text.format(at, _HEIGHT - 6, anchor, when(int(first + (last - first) * share))[cut]))
    return Markup("").join(parts)


def _path(points: Sequence[tuple[float, float | None]]) -> str:
    """Return the path of a line, interrupted at gaps."""
    parts: list[str] = []
    begins = True
    for x, y in points:
        if y is None:
            begins = True
            continue
        parts.append(f"{'M' if begins else 'L'}{x:.1f} {y:.1f}")
        begins = False
    return " ".join(parts)


_SPANS = {"3h": 180, "12h": 720, "2d": 2880}
_SLOTS = 180
_FALLS = 20
_SAMPLE = 200
_GAP_MS = 150_000
_STEPS = ((0.01, "10 ms"), (0.1, "100 ms"), (1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (float("inf"), "more"))


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
            bars("Seconds that they waited for their first start", *_spread(waits)),
            bars("Seconds from the first start to the end", *_spread(runs)),
        ]
        if waits
        else [],
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
    plots, columns, texts = list[Markup](), list[str](), list[list[str]]()
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
        texts += [[_shown(value, seconds) for value in line.values] for line in drawn]
    return {
        "plots": plots,
        "columns": columns,
        "values": list(zip(times, zip(*texts, strict=True), strict=True))[::-1],
        "step": step,
    }


def _spread(values: Sequence[float]) -> tuple[list[str], list[float]]:
    """Return how many values are below each step, and above the one before."""
    below, counts = 0, list[float]()
    for most, _ in _STEPS:
        under = sum(value < most for value in values)
        counts.append(under - below)
        below = under
    return [f"< {name}" if name != "more" else "more" for _, name in _STEPS], counts


def _with_waits(ends: Sequence[HistoryEntry]) -> list[tuple[HistoryEntry, float]]:
    return [(each, (each.started_ms - each.accepted_ms) / 1000) for each in ends if each.started_ms and each.accepted_ms]
