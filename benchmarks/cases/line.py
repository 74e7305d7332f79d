"""The line and unique keys: how soon an urgent command starts behind much that waits, and what a priority or a key costs the server.

`script_us` of the drains is of the whole life of a command: accepted, started, settled.
"""

from __future__ import annotations

from functools import partial

from benchmarks.case import Case
from benchmarks.figures import Sample
from benchmarks.ground import Ground

__all__ = ["ALL"]

_WAITING, _URGENT = 1_000_000, 50
_LIVES, _ONE_BY_ONE = 10_000, 10_000


def lifted(ground: Ground, full: int) -> Sample:
    """Measure how many low commands, all of other entities, start between an urgent one's acceptance and its start, and how long that takes."""
    count = ground.count(full)
    _fill(ground, count, "low")
    with ground.ours("lift", _URGENT) as program:
        program.go()
        return {**program.report(), "size": float(count)}


def lives(ground: Ground, kind: str) -> Sample:
    """Measure commands of own entities from acceptance to end: all are sent before a worker starts."""
    count = ground.count(_LIVES)
    with ground.spending() as spent:
        _fill(ground, count, kind)
        with ground.ours("work", count) as worker:
            worker.go()
            report = worker.report()
    return {"per_s": count / report["seconds"], **spent.per(count)}


def sent(ground: Ground, kind: str) -> Sample:
    """Measure dispatches one by one, each of an entity of its own."""
    count = ground.count(_ONE_BY_ONE)
    with ground.ours("fill", count, way="one", kind=kind, entities=count) as program, ground.spending() as spent:
        program.go()
        report = program.report()
    latencies = {name: report[name] for name in ("p50_ms", "p99_ms")}
    return {"per_s": count / report["seconds"], "client_us": report["cpu"] / count * 1e6, **spent.per(count), **latencies}


def _fill(ground: Ground, count: int, kind: str) -> None:
    with ground.ours("fill", count, way="batch", flight=1000, kind=kind, entities=count) as program:
        program.go()
        program.report()


ALL = [
    Case("line, an urgent command among 1,000,000 low ones", "line", partial(lifted, full=_WAITING), most=3),
    Case("line, lives without a priority", "line", partial(lives, kind="plain")),
    Case("line, lives with a low priority", "line", partial(lives, kind="low")),
    Case("line, lives of 100 tenants", "line", partial(lives, kind="shared")),
    Case("line, dispatch one by one, plain", "line", partial(sent, kind="plain")),
    Case("line, dispatch one by one, with a low priority", "line", partial(sent, kind="low")),
    Case("line, dispatch one by one, with a unique key", "line", partial(sent, kind="unique")),
]
