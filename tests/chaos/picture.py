"""The run as a picture: faults and their victims, throughput, and recovery times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from io import StringIO
from typing import Any

from tests.chaos.history import History
from tests.chaos.recovery import Recovery

__all__ = ["drawn"]

_COLOURS = {
    "kill": "#b3261e",
    "power": "#b3261e",
    "server": "#d9480f",
    "stop": "#7b3fa0",
    "stall": "#2b6cb0",
    "oom": "#b7791f",
    "deploy": "#1b7f4b",
}


def drawn(history: History, recoveries: Sequence[Recovery]) -> str:
    """Return an SVG element; a note if matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "<p>No picture: matplotlib is not installed.</p>"
    origin = min([fault.start for fault in history.faults] + [start.at for start in history.started], default=0.0)
    figure = Figure(figsize=(14, 8), layout="constrained")
    rate, faults, times = figure.subplots(3, 1, sharex=True, height_ratios=[2, 3, 2])
    _throughput(rate, history, origin)
    _faults(faults, history, origin)
    for recovery, marker in zip(recoveries, "ox", strict=False):
        points = [(when - origin, took) for when, took, _ in recovery.times]
        if points:
            times.scatter(*zip(*points, strict=True), s=18, marker=marker, label=f"{recovery.what} (limit {recovery.limit:g} s)")
    times.set_ylabel("recovery, s")
    times.set_xlabel("seconds")
    if times.get_legend_handles_labels()[0]:
        times.legend(loc="upper right", fontsize=8)
    text = StringIO()
    figure.savefig(text, format="svg")
    return text.getvalue()[text.getvalue().index("<svg") :]


def _throughput(axes: Any, history: History, origin: float) -> None:
    series = {
        "accepted": [request.answered for request in history.asked if request.answer == "accepted"],
        "handled": [end.at for end in history.ended if end.how in ("end", "reject")],
    }
    for name, moments in series.items():
        counts = Counter(int(moment - origin) for moment in moments)
        if counts:
            seconds = range(max(counts) + 1)
            axes.plot(seconds, [counts[second] for second in seconds], label=name, linewidth=1)
    axes.set_ylabel("commands per second")
    axes.legend(loc="upper right", fontsize=8)


def _faults(axes: Any, history: History, origin: float) -> None:
    kinds = [kind for kind, _ in Counter(fault.kind for fault in history.faults).most_common()]
    for row, kind in enumerate(kinds):
        spans = [(fault.start - origin, max(fault.end - fault.start, 0.15)) for fault in history.faults if fault.kind == kind]
        axes.broken_barh(spans, (row - 0.35, 0.7), color=_COLOURS.get(kind, "#777777"))
    axes.set_yticks(range(len(kinds)), kinds)
