"""Commands accepted per second: `dispatch` returns when the server has them."""

from __future__ import annotations

from functools import partial

from benchmarks.case import Case
from benchmarks.figures import Sample
from benchmarks.ground import Ground

__all__ = ["ALL"]

_ENTITIES = 1000


def measured(ground: Ground, full: int, way: str, flight: int, *, own: bool = False) -> Sample:
    count = ground.count(full)
    with (
        ground.ours("fill", count, way=way, flight=flight, entities=count if own else _ENTITIES) as program,
        ground.spending() as spent,
    ):
        program.go()
        report = program.report()
    sample = {"per_s": count / report["seconds"], "client_us": report["cpu"] / count * 1e6, **spent.per(count)}
    return sample | {name: report[name] for name in ("p50_ms", "p99_ms") if name in report}


def _case(name: str, full: int, way: str, flight: int = 1, *, own: bool = False, quick: bool = False) -> Case:
    return Case(f"dispatch, {name}", "dispatch", partial(measured, full=full, way=way, flight=flight, own=own), quick)


ALL = [
    _case("one by one", 20_000, "one", quick=True),
    _case("one by one, every command its own entity", 20_000, "one", own=True),
    _case("50 concurrent", 20_000, "concurrent", 50),
    _case("500 concurrent", 100_000, "concurrent", 500, quick=True),
    _case("batches of 100", 40_000, "batch", 100),
    _case("batches of 1,000", 200_000, "batch", 1000, quick=True),
    _case("SyncCommandBus, one by one", 3_000, "sync"),
]
