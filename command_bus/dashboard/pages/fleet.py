"""Pages of the fleet: workers, schedules, limits, the throughput with its plots as SVG; and the beats that every open page follows."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Sequence
from itertools import pairwise
from typing import NamedTuple

from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from command_bus.admin.audit import TrendPoint
from command_bus.admin.history import HistoryEntry
from command_bus.admin.info import ShareInfo, Stats
from command_bus.admin.limits import LimitInfo
from command_bus.clock import mono
from command_bus.dashboard.visit import Visit
from command_bus.dashboard.words import count, when
from command_bus.integrations.web import counted
from command_bus.scheduling.info import ScheduleInfo
from command_bus.serialization.announcements import CommandInfo, WorkerStatus

_WIDTH, _HEIGHT = 560, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 8, 10, 24
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


def line_plot(label: str, times: Sequence[int], lines: Sequence[Line], *, seconds: bool = False) -> Markup:
    """Return a plot of lines over time (ms). Values are numbers, or seconds."""
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
    return _figure(label, parts, lines)


def bars(label: str, names: Sequence[str], values: Sequence[float]) -> Markup:
    """Return a plot of bars, with its names below."""
    top, wide = nice_top(max(values, default=0)), (_WIDTH - _LEFT - _RIGHT) / max(len(values), 1)
    high = _HEIGHT - _TOP - _BOTTOM
    parts = [_grid(top)]
    for at, (name, value) in enumerate(zip(names, values, strict=True)):
        tall = high * value / top
        left = _LEFT + at * wide
        bar = Markup('<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}: {}</title></rect>')
        parts.append(bar.format(left + 2, _TOP + high - tall, max(wide - 4, 1), tall, name, count(value)))
        text = Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>')
        parts.append(text.format(left + wide / 2, _HEIGHT - 6, name))
    return _figure(label, parts, ())


def _figure(label: str, parts: Sequence[Markup], lines: Sequence[Line]) -> Markup:
    legend = Markup("").join(
        Markup('<span class="key {}"><span class="swatch" aria-hidden="true"></span>{}</span>').format(line.tone, line.name)
        for line in lines
    )
    drawing = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        _WIDTH, _HEIGHT, label, Markup("").join(parts)
    )
    shown = Markup('<div class="legend">{}</div>').format(legend) if lines else Markup("")
    return Markup('<figure class="plot"><figcaption>{}</figcaption>{}{}</figure>').format(escape(label), drawing, shown)


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
    """Return the times below: begin, middle and end, in UTC."""
    parts: list[Markup] = []
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        at = _LEFT + (_WIDTH - _LEFT - _RIGHT) * share
        text = Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="{}">{}</text>')
        parts.append(text.format(at, _HEIGHT - 6, anchor, when(int(first + (last - first) * share))[11:16]))
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
_SAMPLE = 200
_GAP_MS = 150_000
_STEPS = ((0.01, "10 ms"), (0.1, "100 ms"), (1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (float("inf"), "more"))


class Times(NamedTuple):
    """The times of the last commands, in seconds: the half, and one of twenty and of a hundred that took longest."""

    half: float
    p95: float
    p99: float


async def throughput_page(visit: Visit) -> Response:
    """Show plots of the last hours: `?span=` 3h, 12h or 2d."""
    chosen = visit.query["span"] if visit.query["span"] in _SPANS else "3h"
    points, ends, stats = await asyncio.gather(
        visit.shared("trends", lambda: visit.bus.trends.list(minutes=_SPANS[chosen])),
        visit.shared("sample", lambda: visit.bus.history.search(limit=_SAMPLE, scan=_SAMPLE)),
        visit.stats(),
    )
    waiting = _with_waits(ends.entries)
    waits = [wait for _, wait in waiting]
    runs = [(each.settled_ms - each.started_ms) / 1000 for each in ends.entries if each.started_ms]
    return visit.page(
        "throughput.html",
        chosen=chosen,
        spans=list(_SPANS),
        plots=_plots(points) if len(points) > 1 else [],
        stats=stats,
        sample=len(ends.entries),
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


def rates(points: Sequence[TrendPoint], name: str) -> list[float | None]:
    """Return how much a counter grew in each minute, behind the first; None behind a gap, and where it was set back."""
    found: list[float | None] = [None]
    for before, after in pairwise(points):
        passed_ms = after.at_ms - before.at_ms
        grown = getattr(after, name) - getattr(before, name)
        found.append(grown / (passed_ms / 60_000) if 0 < passed_ms <= _GAP_MS and grown >= 0 else None)
    return found


def quantiles(values: Sequence[float]) -> Times | None:
    """Return three quantiles; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)

    def at(share: float) -> float:
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)]

    return Times(at(0.5), at(0.95), at(0.99))


def _plots(points: Sequence[TrendPoint]) -> list[str]:
    times = [point.at_ms for point in points]

    def line(label: str, name: str, tone: str = "accent") -> Line:
        return Line(label, rates(points, name), tone)

    def level(label: str, name: str, tone: str = "accent") -> Line:
        return Line(label, [float(getattr(point, name)) for point in points], tone)

    return [
        line_plot("Commands a minute", times, [line("accepted", "accepted", "calm"), line("completed", "completed")]),
        line_plot(
            "Failures a minute",
            times,
            [
                line("dead letters", "dead_lettered", "bad"),
                line("retried", "retried", "warn"),
                line("rejected", "rejected", "calm"),
            ],
        ),
        line_plot(
            "Commands that wait or run", times, [level("depth", "depth"), level("entities with a worker", "in_flight", "good")]
        ),
        line_plot("The longest wait for a worker", times, [level("seconds", "oldest_age")], seconds=True),
        line_plot(
            "Parked entities and dead letters",
            times,
            [level("parked", "parked", "bad"), level("dead letters", "dead_letters", "warn")],
        ),
        line_plot("Live workers", times, [level("workers", "workers", "good")]),
    ]


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


_MOST_LIMITS = 200


async def limits_page(visit: Visit) -> Response:
    """Show limits; `?name=` the buckets of one. Shares are read once tenants or priorities are used."""
    limits, buckets, (stats, shares) = await asyncio.gather(
        visit.shared("limits", visit.bus.limits.list), _buckets(visit), _shares(visit)
    )
    return visit.page(
        "limits.html",
        limits=limits,
        buckets=sorted(buckets, key=lambda each: -each.waiting)[:_MOST_LIMITS],
        chosen=visit.query["name"],
        shares=shares[:_MOST_LIMITS],
        stats=stats,
    )


async def _buckets(visit: Visit) -> list[LimitInfo]:
    return await visit.bus.limits.list(visit.query["name"]) if visit.query["name"] else []


async def _shares(visit: Visit) -> tuple[Stats, list[ShareInfo]]:
    """Return the shares, if there are any: while none are used, looking for them would mean to look at all that waits."""
    stats = await visit.stats()
    return stats, await visit.shared("shares", visit.bus.fairness.list) if stats.priorities else []


_MOST_SCHEDULES = 300
_TICKS = 5


async def schedules_page(visit: Visit) -> Response:
    """List schedules, what is due next first; `?name=` shows one of them with its next ticks."""
    chosen = visit.query["name"]
    found, shown = await asyncio.gather(visit.shared("schedules", lambda: _listed(visit)), _chosen(visit, chosen))
    schedules, complete = found
    text = visit.query["q"].casefold()
    return visit.page(
        "schedules.html",
        schedules=[each for each in schedules if text in f"{each.name} {each.command}".casefold()],
        complete=complete,
        read=len(schedules),
        chosen=shown[0] if shown is not None else None,
        ticks=shown[1] if shown is not None else (),
    )


async def _listed(visit: Visit) -> tuple[list[ScheduleInfo], bool]:
    found: list[ScheduleInfo] = []
    async for each in visit.bus.schedules.list():
        if len(found) == _MOST_SCHEDULES:
            return _by_tick(found), False
        found.append(each)
    return _by_tick(found), True


def _by_tick(found: list[ScheduleInfo]) -> list[ScheduleInfo]:
    return sorted(found, key=lambda each: (each.next_at_ms or 2**60, each.name))


async def _chosen(visit: Visit, name: str) -> tuple[ScheduleInfo, tuple[int, ...]] | None:
    if not name:
        return None
    info, ticks = await asyncio.gather(visit.bus.schedules.get(name), visit.bus.schedules.next(name, _TICKS))
    return info, tuple(int(each.timestamp() * 1000) for each in ticks)


async def workers_page(visit: Visit) -> Response:
    """Show the workers by the code that they run, lost ones, and the commands that are announced."""
    workers, commands, stats = await asyncio.gather(
        visit.shared("workers", visit.bus.fleet.workers),
        visit.shared("commands", visit.bus.fleet.commands),
        visit.stats(),
    )
    live = [each for each in workers if each.alive]
    return visit.page(
        "workers.html",
        live=live,
        lost=[each for each in workers if not each.alive],
        builds=_builds(live),
        commands=[(each, _coverage(each, live)) for each in commands],
        stats=stats,
    )


def _builds(live: Sequence[WorkerStatus]) -> list[tuple[int, str, int, list[str]]]:
    """Return the kinds of workers, by what they handle: how many, the first name, since when the newest, and what only they lack."""
    kinds: dict[frozenset[str], list[WorkerStatus]] = {}
    for worker in live:
        kinds.setdefault(frozenset(worker.commands), []).append(worker)
    known = frozenset[str]().union(*kinds)
    found = [
        (len(each), each[0].name, max(worker.started_ms for worker in each), sorted(known - handled))
        for handled, each in kinds.items()
    ]
    return sorted(found, key=lambda each: -each[2])


def _coverage(info: CommandInfo, live: Sequence[WorkerStatus]) -> str:
    """Return `all`, `some` or `none`: of the live workers, who handles a command."""
    return "none" if not info.workers else "all" if len(info.workers) >= len(live) else "some"


MOST_LISTENERS = 1000
_MOST_EACH = 250
"""Open pages of one user: with all there may be, one would keep others' from following."""
_LASTS = 300.0
"""Seconds after which a browser has to ask again: then its session is looked at again."""
_QUIET = 15.0


async def live(visit: Visit) -> Response:
    """Answer with the beats of the pulse, until the page is closed."""
    if visit.state.pulse.listeners >= MOST_LISTENERS:
        return PlainTextResponse("too many pages are open", 503, headers={"Retry-After": "30"})
    if visit.state.pages_of[visit.user.name] >= _MOST_EACH:
        return PlainTextResponse("you have too many pages open", 429, headers={"Retry-After": "30"})
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_beats(visit), media_type="text/event-stream", headers=headers)


async def _beats(visit: Visit) -> AsyncGenerator[str]:
    until, last = mono() + _LASTS, 0
    yield "retry: 3000\n\n"
    async with visit.state.pulse.listening():
        with counted(visit.state.pages_of, visit.user.name):
            while mono() < until:
                if await visit.state.users.user(visit.request) is None:
                    yield "event: ended\ndata: {}\n\n"
                    return
                beat = await visit.state.pulse.beat(last, _QUIET)
                if beat is None:
                    yield ": quiet\n\n"
                else:
                    last = beat.number
                    yield f"data: {json.dumps(beat.facts())}\n\n"
                if await _is_gone(visit.request):
                    return


async def _is_gone(request: Request) -> bool:
    await asyncio.sleep(0)
    return await request.is_disconnected()
