"""The picture of a run: the flights, the agreement of every chain, and the course of the run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib import dates, ticker
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from examples.flights.paint import BLUE, IN_THOUSANDS, ORANGE, RED, SOFT, STYLE, subtitle

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from examples.flights.report import Comparison
    from examples.flights.run import Departure, Reading, Result

    Array = NDArray[np.float64]

__all__ = ["draw"]

_SLOT = 15  # minutes of one cell of the map
_CURVE = 14  # days up to which a curve shows more than a map


def draw(result: Result, folder: Path) -> Path:
    """Write `flights.png` into the folder and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "flights.png"
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(15, 10.5), facecolor="white")
        FigureCanvasAgg(figure)
        grid = figure.add_gridspec(
            2, 3, height_ratios=(1.1, 1), left=0.055, right=0.955, top=0.86, bottom=0.065, hspace=0.38, wspace=0.3
        )
        _headline(figure, result)
        _in_the_air(figure.add_subplot(grid[0, :]), result.departures)
        _delays(figure.add_subplot(grid[1, 0]), result.departures)
        _fleet(figure.add_subplot(grid[1, 1]), result.comparison)
        _throughput(figure.add_subplot(grid[1, 2]), result.readings, result.killed_at)
        figure.savefig(path, dpi=130)
    return path


def _headline(figure: Figure, result: Result) -> None:
    differing = len(result.comparison.differing)
    verdict = "every aircraft agrees with the table" if result.right else f"{differing:,} aircraft differ, or a count is wrong"
    figure.text(
        0.055, 0.955, "The flights out of New York in 2013, one command at a time per aircraft", fontsize=19, weight="bold"
    )
    figure.text(
        0.055,
        0.925,
        f"{result.commands:,} commands for {len(result.comparison.expected):,} aircraft in {result.seconds:.1f} s: {verdict}.  "
        f"({result.server})",
        fontsize=10.5,
        color=SOFT if result.right else RED,
    )


def _in_the_air(axes: Axes, departures: Sequence[Departure]) -> None:
    """Draw the aircraft in the air, a running sum of departures and landings: a map for a season, a curve for some days."""
    axes.set_title("In the air")
    spans = [(planned, planned + delay, minutes) for planned, delay, minutes in departures if minutes is not None]
    if not spans:
        return
    planned, left, minutes = np.array(spans, dtype=np.int64).T
    first = int(planned.min() // 1440)
    days = int(planned.max() // 1440) - first + 1
    steps = np.zeros((days + 3) * 1440, dtype=np.int64)  # the last flights leave late and land later
    np.add.at(steps, np.minimum(left - first * 1440, steps.size - 1), 1)
    np.add.at(steps, np.minimum(left + minutes - first * 1440, steps.size - 1), -1)
    steps = steps[: days * 1440]
    aloft = steps.cumsum().reshape(-1, _SLOT).mean(axis=1)
    start = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=first)
    peak = int(aloft.argmax())
    when = start + timedelta(minutes=peak * _SLOT)
    text = f"by New York's clock, in quarter hours; the most at once: {aloft[peak]:.0f} on {when.day} {when:%B} at {when:%H:%M}"
    if days > _CURVE:
        _map(axes, aloft.reshape(days, -1).T, start)
        text += "; the dark stripe in February is a blizzard" if days > 60 else ""
    else:
        _curve(axes, aloft, start)
    axes.xaxis_date()
    locator = dates.AutoDateLocator(minticks=4, maxticks=13)  # type: ignore[no-untyped-call]  # matplotlib.dates has no types
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, show_offset=False))  # type: ignore[no-untyped-call]
    subtitle(axes, text)


def _map(axes: Axes, aloft: Array, start: datetime) -> None:
    days = aloft.shape[1]
    extent = (_number(start), _number(start + timedelta(days=days)), 0.0, 24.0)
    picture = axes.imshow(aloft, aspect="auto", origin="lower", extent=extent, cmap="YlGnBu_r", interpolation="nearest")
    axes.set_yticks(range(0, 25, 6), [f"{hour:02d}:00" for hour in range(0, 25, 6)])
    for side in axes.spines.values():
        side.set_visible(False)
    bar = axes.figure.colorbar(picture, ax=axes, pad=0.012, fraction=0.022)
    bar.outline.set_visible(False)
    bar.set_label("aircraft in the air")


def _number(moment: datetime) -> float:
    return float(dates.date2num(moment))  # type: ignore[no-untyped-call]


def _curve(axes: Axes, aloft: Array, start: datetime) -> None:
    at = _number(start) + np.arange(aloft.size) * _SLOT / 1440
    axes.fill_between(at, aloft, color=BLUE, alpha=0.25, linewidth=0)
    axes.plot(at, aloft, color=BLUE, linewidth=1.5)
    axes.set_xlim(at[0], at[-1])
    axes.set_ylim(bottom=0)
    axes.set_ylabel("aircraft in the air")


def _delays(axes: Axes, departures: Sequence[Departure]) -> None:
    """Draw departure delays by scheduled hour: the median, and what encloses half and four fifths of the flights."""
    hours: dict[int, list[int]] = defaultdict(list)
    for planned, delay, _ in departures:
        hours[planned // 60 % 24].append(delay)
    axes.set_title("Delays grow through the day")
    subtitle(axes, "departure delay by scheduled hour: median, half and four fifths of flights")
    known = sorted(hour for hour, delays in hours.items() if len(delays) >= 5)
    if not known:
        return
    tenth, quarter, median, three_quarters, nine_tenths = np.array(
        [np.percentile(hours[hour], (10, 25, 50, 75, 90)) for hour in known]
    ).T
    axes.fill_between(known, tenth, nine_tenths, color=BLUE, alpha=0.14, linewidth=0)
    axes.fill_between(known, quarter, three_quarters, color=BLUE, alpha=0.28, linewidth=0)
    axes.plot(known, median, color=BLUE, linewidth=2.2)
    axes.axhline(0, color=SOFT, linewidth=0.8, linestyle=(0, (3, 3)))
    axes.set_xlim(known[0], known[-1])
    axes.set_xticks(known[::3], [f"{hour:02d}:00" for hour in known[::3]])
    axes.set_ylabel("minutes")


def _fleet(axes: Axes, comparison: Comparison) -> None:
    """Draw every aircraft's state after the run, and whether it agrees with the table."""
    axes.set_title(f"{comparison.agreeing:,} of {len(comparison.expected):,} aircraft agree with the table")
    subtitle(axes, "as the bus left them; colour: miles per flight; red: differs", RED if comparison.differing else SOFT)
    axes.set_xscale("log")
    axes.set_yscale("log")
    differing = set(comparison.differing)
    flown = {tail: found for tail, found in comparison.found.items() if found.landings}
    right = [found for tail, found in flown.items() if tail not in differing]
    dots = axes.scatter(
        [found.flights for found in right],
        [found.minutes / 60 for found in right],
        c=[found.distance / found.landings for found in right],
        cmap="viridis",
        s=9,
        alpha=0.75,
        linewidths=0,
    )
    wrong = [found for tail, found in flown.items() if tail in differing]
    axes.scatter(
        [found.flights for found in wrong], [found.minutes / 60 for found in wrong], color=RED, s=60, marker="X", zorder=3
    )
    plain = ticker.StrMethodFormatter("{x:,g}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(plain)
        axis.set_minor_formatter(ticker.NullFormatter())
    axes.set_xlabel("flights")
    axes.set_ylabel("hours in the air")
    if right:
        bar = axes.figure.colorbar(dots, ax=axes, pad=0.02, fraction=0.04)
        bar.outline.set_visible(False)


def _throughput(axes: Axes, readings: Sequence[Reading], killed_at: float | None) -> None:
    """Draw commands per second, and how many waited."""
    axes.set_title("The run")
    at = np.array([reading.at for reading in readings])
    waiting = np.array([reading.waiting for reading in readings])
    backlog = axes.twinx()
    backlog.fill_between(at, waiting, color=SOFT, alpha=0.16, linewidth=0)
    backlog.set_ylim(0, max(1, waiting.max() * 1.25))
    backlog.spines["right"].set_visible(False)
    for name, colour in (("dispatched", ORANGE), ("completed", BLUE)):
        counts = np.array([getattr(reading, name) for reading in readings])
        axes.plot(at, _per_second(at, counts), color=colour, linewidth=1.8, label=name)
    axes.set_zorder(backlog.get_zorder() + 1)
    axes.patch.set_visible(False)
    axes.set_xlim(0, max(at[-1], 0.1))
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(IN_THOUSANDS)
    backlog.yaxis.set_major_formatter(IN_THOUSANDS)
    axes.set_xlabel("seconds")
    axes.set_ylabel("commands per second")
    axes.legend(loc="lower right", bbox_to_anchor=(1.02, 1.045), ncols=2, handlelength=1.4, borderpad=0)
    if killed_at is not None:
        axes.axvline(killed_at, color=RED, linewidth=1.2, linestyle=(0, (3, 2)))
        axes.annotate(
            "worker\nkilled",
            (killed_at, 0.97),
            (4, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            color=RED,
            va="top",
        )
    subtitle(axes, "grey, right scale: accepted and not yet completed")


def _per_second(at: Array, counts: Array) -> Array:
    """Return the slope over the last second at each moment."""
    before = np.interp(at - 1.0, at, counts, left=0.0)
    return (counts - before) / np.minimum(1.0, np.maximum(at, 0.25))
