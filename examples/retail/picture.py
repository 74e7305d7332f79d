"""The picture of a run: the course of the stream, the outcome of the rows, the agreement of every customer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib import ticker
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from examples.flights.paint import BLUE, IN_THOUSANDS, INK, ORANGE, RED, SOFT, STYLE, subtitle

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from examples.retail.run import Result

__all__ = ["draw"]

# On which side of its line a mark's label is, and how high: the stop and the restart may be close together.
_LABELS = (("right", 4), ("left", 17), ("left", 4), ("right", 4))


def draw(result: Result, folder: Path) -> Path:
    """Write `retail.png` into the folder and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "retail.png"
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(15, 10.5), facecolor="white")
        FigureCanvasAgg(figure)
        grid = figure.add_gridspec(
            2, 3, height_ratios=(1.15, 1), left=0.055, right=0.955, top=0.82, bottom=0.065, hspace=0.42, wspace=0.32
        )
        _headline(figure, result)
        _stream(figure.add_subplot(grid[0, :]), result)
        _fates(figure.add_subplot(grid[1, 0]), result.fates)
        _customers(figure.add_subplot(grid[1, 1]), result)
        _weeks(figure.add_subplot(grid[1, 2]), result.weekly)
        figure.savefig(path, dpi=130)
    return path


def _headline(figure: Figure, result: Result) -> None:
    verdict = "every row is accounted for, every customer agrees" if result.right else "something is wrong"
    figure.text(0.055, 0.955, "CDs bought in 1997 and 1998, one purchase at a time per customer", fontsize=19, weight="bold")
    figure.text(
        0.055,
        0.925,
        f"{result.rows:,} rows of {len(result.wanted):,} customers in {result.seconds:.1f} s: {verdict}.  ({result.server})",
        fontsize=10.5,
        color=SOFT if result.right else RED,
    )


def _stream(axes: Axes, result: Result) -> None:
    """Draw rows that arrived, commands that were accepted and applied, and how many waited."""
    axes.set_title("The stream", pad=40)
    at = np.array([reading.at for reading in result.readings])
    waiting = np.array([reading.waiting for reading in result.readings])
    backlog = axes.twinx()
    backlog.fill_between(at, waiting, color=SOFT, alpha=0.2, linewidth=0)
    backlog.axhline(result.backlog, color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)))
    backlog.annotate(
        f"at most {result.backlog:,} may wait", (1, result.backlog), (-4, 4), xycoords=("axes fraction", "data"),
        textcoords="offset points", color=SOFT, ha="right", fontsize=9,
    )  # fmt: skip
    backlog.set_ylim(0, result.backlog * 4)
    backlog.set_yticks([0, result.backlog], ["0", f"{result.backlog:,}"])
    backlog.spines["right"].set_visible(False)
    for name, colour, style in (("arrived", SOFT, "steps-post"), ("dispatched", ORANGE, "default"), ("applied", BLUE, "default")):
        counts = [getattr(reading, name) for reading in result.readings]
        axes.plot(at, counts, color=colour, linewidth=1.9, label=name, drawstyle=style)
    axes.set_zorder(backlog.get_zorder() + 1)
    axes.patch.set_visible(False)
    axes.set_xlim(0, max(at[-1], 0.1))
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(IN_THOUSANDS)
    axes.set_xlabel("seconds")
    axes.set_ylabel("rows")
    axes.legend(loc="upper left", ncols=1)
    for place, (moment, what) in enumerate(result.marks):
        aside, height = _LABELS[place % len(_LABELS)]
        axes.axvline(moment, color=RED, linewidth=1.0, linestyle=(0, (3, 2)))
        axes.annotate(
            what, (moment, 1.0), (0, height), xycoords=("data", "axes fraction"), textcoords="offset points",
            color=RED, ha=aside, va="bottom", fontsize=8.5,
        )  # fmt: skip
    axes.annotate(
        "grey area, right scale: accepted and not yet applied", (0, 1), (0, 25), xycoords="axes fraction",
        textcoords="offset points", fontsize=9, color=SOFT,
    )  # fmt: skip


def _fates(axes: Axes, fates: Mapping[str, int]) -> None:
    """Draw the outcomes of the rows, on a scale on which a handful can be seen."""
    axes.set_title("What became of the rows")
    subtitle(axes, "on a logarithmic scale")
    names = list(fates)
    counts = [fates[name] for name in names]
    colours = [BLUE, ORANGE, SOFT, RED, INK]
    bars = axes.barh(range(len(names)), [max(count, 0.6) for count in counts], color=colours[: len(names)], height=0.42)
    axes.bar_label(bars, [f" {count:,}" for count in counts], fontsize=10)
    for place, name in enumerate(names):
        axes.annotate(
            name, (0, place - 0.26), (4, 0), xycoords=("axes fraction", "data"), textcoords="offset points", va="bottom"
        )
    axes.set_yticks([])
    axes.set_ylim(-0.6, len(names) - 0.6)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(0.5, max(counts) * 6)
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,g}"))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())


def _customers(axes: Axes, result: Result) -> None:
    """Draw every customer's account beside Spark's totals."""
    differing = set(result.differing)
    axes.set_title(f"{len(result.wanted) - len(differing):,} of {len(result.wanted):,} customers agree with Spark")
    subtitle(axes, "accounts as the bus left them; red: differs", RED if differing else SOFT)
    for wrong, colour, size in ((False, BLUE, 7), (True, RED, 60)):
        accounts = [account for customer, account in result.accounts.items() if (customer in differing) is wrong]
        axes.scatter(
            [account.purchases for account in accounts],
            [max(account.cents / 100, 1) for account in accounts],
            color=colour, s=size, alpha=0.35, linewidths=0,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(ticker.StrMethodFormatter("{x:,g}"))
        axis.set_minor_formatter(ticker.NullFormatter())
    axes.set_xlabel("purchases")
    axes.set_ylabel("dollars")


def _weeks(axes: Axes, weekly: Sequence[tuple[float, float]]) -> None:
    """Draw dollars per week, and the share from customers in the week of their first purchase."""
    axes.set_title("What the purchases show")
    subtitle(axes, "thousand dollars a week; all customers came in the first twelve weeks")
    all_of_it = np.array([week[0] for week in weekly]) / 1000
    new = np.array([week[1] for week in weekly]) / 1000
    at = np.arange(len(weekly))
    axes.bar(at, all_of_it, width=1.0, color=BLUE, alpha=0.85, label="customers who came back")
    axes.bar(at, new, width=1.0, color=ORANGE, label="first purchases")
    axes.set_xlabel("weeks since 1 January 1997")
    axes.legend(loc="upper right")
    axes.set_xlim(-0.5, max(len(weekly), 1) - 0.5)
