"""Throughput and waiting times as plots: of the last hours by the minute, and of the last commands that have a history."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from starlette.responses import Response

from command_bus.admin.audit import TrendPoint
from command_bus.admin.history import HistoryEntry
from command_bus.dashboard.plots import Line, bars, line_plot
from command_bus.dashboard.visit import Visit

_SPANS = {"3h": 180, "12h": 720, "2d": 2880}
_SAMPLE = 200
_GAP_MS = 150_000
_STEPS = ((0.01, "10 ms"), (0.1, "100 ms"), (1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (float("inf"), "more"))


@dataclass(frozen=True, slots=True)
class Times:
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
        visit.state.reads.get("stats", visit.bus.stats),
    )
    waits = [(each.started_ms - each.accepted_ms) / 1000 for each in ends.entries if each.started_ms and each.accepted_ms]
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
            bars("Seconds in line before the first start", *_spread(waits)),
            bars("Seconds from the first start to the end", *_spread(runs)),
        ]
        if waits
        else [],
        slowest=sorted(_with_waits(ends.entries), key=lambda each: -each[1])[:5],
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
