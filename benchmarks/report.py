"""The table of a run, in plain text."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.figures import Figure
from benchmarks.runner import Results
from benchmarks.targets import Verdict, verdicts

__all__ = ["report"]

_COLUMNS = {
    "per_s": "a second",
    "worker_us": "worker µs",
    "client_us": "client µs",
    "server_us": "server µs",
    "script_us": "scripts µs",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "rss_mb": "RSS MB",
}
_WIDTH = 11
_MORE = {
    "bound_per_s": "one server core bears/s",
    "bytes_each": "bytes each",
    "mark_bytes": "bytes a dedup mark",
    "keys_each": "keys each",
    "dispatch_redis_us": "dispatch Redis µs",
    "dispatch_python_us": "dispatch Python µs",
    "drain_redis_us": "drain Redis µs",
    "drain_python_us": "drain Python µs",
    "size": "size",
}


def report(results: Results) -> str:
    """Return the report of a run as text."""
    judged = [verdict for verdict in verdicts(results.figures, results.peers) if verdict.met is not None]
    parts = [[_about(results)], _rows(results), _peers(results), _targets(judged) if judged else ()]
    return "\n\n".join(text for part in parts if (text := "\n".join(part))) + "\n"


def _about(results: Results) -> str:
    about, at = results.about, results.about["machine"]
    versions = ", ".join(f"{name} {value}" for name, value in about["versions"].items())
    loads = f"{min(about['load'])} to {max(about['load'])}" if about["load"] else "unknown"
    busy = " — the machine was not ours alone: read ratios" if about["load"] and about["load"][0] > at["cores"] / 2 else ""
    return (
        f"{at['cpu']}, {at['cores']} cores, {at['memory_gb']} GB, {at['system']}; load {loads}{busy}\n{versions}\n"
        f"medians of {about['runs']} runs at scale {about['scale']:g}, ± half the spread; µs are processor time per command"
    )


def _rows(results: Results) -> Iterator[str]:
    wide = max((len(name) for name in results.figures), default=0) + 2
    yield " " * wide + "".join(f"{title:>{_WIDTH}}" for title in _COLUMNS.values()) + f"{'spread':>8}"
    for name, metrics in results.figures.items():
        cells = "".join(f"{_number(metrics.get(metric)):>{_WIDTH}}" for metric in _COLUMNS)
        more = "  ".join(f"{title} {_number(metrics[metric])}" for metric, title in _MORE.items() if metric in metrics)
        row = f"{cells}{_spread(metrics):>8}" if cells.strip() else ""
        yield f"{name:{wide}}{row}  {more}".rstrip()
    for name, why in results.failed.items():
        yield f"{name:{wide}}  FAILED: {why.splitlines()[0]}"


def _peers(results: Results) -> Iterator[str]:
    for name, peer in results.about.get("peers", {}).items():
        yield f"{name} {peer['version']} ({peer['language']}): {peer['settings']}; order per entity: {peer['order']}"


def _targets(judged: list[Verdict]) -> Iterator[str]:
    yield "targets (× how much better than asked)"
    wide = max(len(verdict.target.case) for verdict in judged) + 2
    for verdict in judged:
        word = "met" if verdict.met else "MISSED"
        target = verdict.target
        held = f"{_plain(verdict.ours)} against {_plain(verdict.limit)}"
        yield f"  {word:7}{verdict.ratio:>6.2f} ×  {target.case:{wide}}{target.text}   ({held})"


def _number(figure: Figure | None) -> str:
    return "" if figure is None else _plain(figure.median)


def _plain(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 20 else f"{value:.2f}"


def _spread(metrics: dict[str, Figure]) -> str:
    """Return half the distance of the extremes, of the first column that exists."""
    figure = next((metrics[metric] for metric in _COLUMNS if metric in metrics), None)
    if figure is None or not figure.median:
        return ""
    return f"±{(figure.high - figure.low) / 2 / figure.median:.0%}"
