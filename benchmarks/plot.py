"""The documentation's pictures, from a run's JSON: `python -m benchmarks.plot results.json [--into docs]`.

The same figures give the same bytes: no date, no random ids, text as text.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

from benchmarks.cases.growth import ROWS
from benchmarks.runner import Results

__all__ = ["draw"]

_STYLE: Any = {  # the stubs want each key as a literal
    "svg.hashsalt": "command_bus",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_OURS, _OTHERS, _SECOND = "#2f5d9b", "#b0b8c4", "#c46a2b"
_COSTS = {
    "drain_redis_us": ("drain, Redis", _OURS, "-"),
    "drain_python_us": ("drain, Python", _SECOND, "-"),
    "dispatch_redis_us": ("dispatch, Redis", _OURS, ":"),
    "dispatch_python_us": ("dispatch, Python", _SECOND, ":"),
}
_PER_ROW = 3
_OUR_DRAIN, _OUR_CALL = "drain, 1,000 entities", "call, 1 in flight"


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw what the run has figures for; return the written files."""
    pictures: dict[str, Callable[[Results], Any]] = {
        "performance-peers.svg": _peers,
        "performance-growth.svg": _growth,
    }
    written: list[Path] = []
    with mpl.rc_context(_STYLE):
        for name, picture in pictures.items():
            figure = picture(results)
            if figure is not None:
                figure.savefig(folder / name, metadata={"Date": None, "Creator": None})
                written.append(folder / name)
                plt.close(figure)
    return written


def _peers(results: Results) -> Any:
    """Draw two rankings: commands a second by one worker process, and the median of a call."""
    rates = _ranking(results, _OUR_DRAIN, "drain", "per_s")
    calls = _ranking(results, _OUR_CALL, "call, 1 in flight", "p50_ms")
    if len(rates) < 2 and len(calls) < 2:
        return None
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 0.32 * max(len(rates), len(calls)) + 1.1))
    _bars(left, sorted(rates.items(), key=lambda item: item[1]), "{:,.0f}", "no-op jobs a second, one worker process")
    _bars(right, sorted(calls.items(), key=lambda item: -item[1]), "{:.2f}", "ms from a call to its reply, median (logarithmic)")
    right.set_xscale("log")
    right.set_xlim(min(calls.values(), default=1) / 3, max(calls.values(), default=1) * 3)
    right.set_xticks([])
    right.minorticks_off()
    figure.tight_layout()
    return figure


def _ranking(results: Results, ours: str, theirs: str, metric: str) -> dict[str, float]:
    names = {"command_bus": ours} | {peer: f"{peer}, {theirs}" for peer in results.peers}
    found = {label: results.figures.get(case, {}).get(metric) for label, case in names.items()}
    return {label: figure.median for label, figure in found.items() if figure is not None}


def _bars(axes: Any, rows: list[tuple[str, float]], form: str, title: str) -> None:
    names, values = [name for name, _ in rows], [value for _, value in rows]
    bars = axes.barh(names, values, color=[_OURS if name == "command_bus" else _OTHERS for name in names])
    axes.bar_label(bars, [form.format(value) for value in values], padding=3)
    axes.set_xlim(0, max(values, default=1) * 1.2)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_title(title, fontsize=9, loc="left")


def _growth(results: Results) -> Any:
    """Draw processor time per command over each growing quantity; flat is good."""
    rows = [row for row in ROWS if sum(row.case(size) in results.figures for size in row.sizes) > 1]
    if not rows:
        return None
    lines = -(-len(rows) // _PER_ROW)
    figure, grid = plt.subplots(lines, _PER_ROW, figsize=(3 * _PER_ROW, 2.6 * lines), sharey=True, squeeze=False)
    for axes in grid.flat[len(rows) :]:
        axes.set_visible(False)
    for axes, row in zip(grid.flat, rows, strict=False):
        points = [results.figures[row.case(size)] for size in row.sizes if row.case(size) in results.figures]
        for metric, (label, color, line) in _COSTS.items():
            found = [(point["size"].median, point[metric].median) for point in points if metric in point]
            if found:
                axes.plot(*zip(*found, strict=True), line, color=color, label=label, marker="o", markersize=3)
        if row.name == "workers":
            axes.set_xticks(row.sizes)
        else:
            axes.set_xscale("log")
        axes.set_xlabel(row.name)
    grid[0][0].set_ylim(bottom=0)  # after all lines are drawn: the scale is shared
    for line in grid:
        line[0].set_ylabel("CPU µs per command")
    figure.legend(*grid[0][0].get_legend_handles_labels(), ncols=len(_COSTS), loc="upper center", fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.92))
    return figure


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="what `python -m benchmarks --json FILE` wrote")
    parser.add_argument("--into", type=Path, default=Path("docs"), help="the folder of the pictures")
    given = parser.parse_args(words)
    results = Results.from_json(json.loads(given.results.read_text(encoding="utf-8")))
    given.into.mkdir(parents=True, exist_ok=True)
    for path in draw(results, given.into):
        print(f"{path} ({path.stat().st_size / 1000:.0f} kB)")


if __name__ == "__main__":
    main()
