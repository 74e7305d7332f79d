"""The table of a run, in plain text."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.figures import Figure
from benchmarks.judging import Finding, Verdict
from benchmarks.runner import Results
from benchmarks.targets import verdicts

__all__ = ["report", "table_of_targets"]

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
_WORDS = {True: "met", False: "MISSED", None: "unknown"}
_MORE = {
    "p95_ms": "p95 ms",
    "slowest_p95_ms": "p95 ms of the slowest page",
    "open_pages_percent": "% of a processor of the server for 200 open pages",
    "bound_per_s": "one server core bears/s",
    "bytes_each": "bytes each",
    "mark_bytes": "bytes a dedup mark",
    "keys_each": "keys each",
    "dispatch_redis_us": "dispatch Redis µs",
    "dispatch_python_us": "dispatch Python µs",
    "drain_redis_us": "drain Redis µs",
    "drain_python_us": "drain Python µs",
    "ahead_p50": "starts ahead, median",
    "ahead_most": "most",
    "wakes_each": "wake-ups a start",
    "idle_percent": "% of a core",
    "server_percent": "server %",
    "idle_before_percent": "before: % of a core",
    "server_before_percent": "server %",
    "idle_python_ms": "idle: Python ms/s",
    "idle_redis_ms": "idle: Redis ms/s",
    "size": "size",
}


def report(results: Results) -> str:
    """Return the report of a run as text."""
    judged = [verdict for verdict in verdicts(results.figures, results.peers) if verdict.ratio is not None]
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
    yield "targets (× how much better than asked; beside: how much better than each peer of this run)"
    yield from table_of_targets(judged)
    yield "  (Spark's: make bench-spark)"


def table_of_targets(judged: list[Verdict]) -> Iterator[str]:
    """Return the lines about these targets: each with its conditions, our figures, the limits and the peers."""
    wide = max(len(finding.condition.text) for verdict in judged for finding in verdict.findings) + 2
    for verdict in judged:
        yield f"  {_WORDS[verdict.met]:8}{_ratio(verdict.ratio)}  {verdict.target.case}"
        for number, way in enumerate(verdict.ways):
            for place, finding in enumerate(way):
                joined = "or" if number and not place else ""
                yield f"{joined:>9} {_ratio(finding.ratio)}  {finding.condition.text:{wide}}{_held(finding)}".rstrip()
        if verdict.beside:
            yield f"{'beside':>19}  " + ", ".join(f"{_plain(ratio)} × {name}" for name, ratio in verdict.beside.items())


def _ratio(ratio: float | None) -> str:
    return f"{'?' if ratio is None else f'{ratio:.2f}':>7} ×"


def _held(finding: Finding) -> str:
    return f"not measured: {finding.missing}" if finding.missing else f"{_plain(finding.ours)} against {_plain(finding.limit)}"


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
