"""The floor that Redis and redis-py allow: the same steps without any promise, in the same process layout and on the same event loop as ours."""

from __future__ import annotations

from functools import partial

from benchmarks.case import Case
from benchmarks.figures import Sample
from benchmarks.ground import Ground
from benchmarks.programs import Program, python

__all__ = ["ALL"]


def measured(ground: Ground, role: str, full: int, flight: int) -> Sample:
    count = ground.count(full, least=flight)
    command = python("benchmarks.floor.program", role, url=ground.url, count=count, flight=flight)
    with Program(command) as program, ground.spending() as spent:
        program.go()
        report = program.report()
    sample = {"per_s": count / report["seconds"], "client_us": report["cpu"] / count * 1e6, **spent.per(count)}
    return sample | {name: report[name] for name in ("p50_ms", "p99_ms") if name in report}


def _case(name: str, role: str, full: int, flight: int = 1, *, quick: bool = False) -> Case:
    return Case(f"floor, {name}", "floor", partial(measured, role=role, full=full, flight=flight), quick)


ALL = [
    _case("EVALSHA round trip", "evalsha", 5_000, quick=True),
    _case("EVALSHA of our enqueue script", "enqueue", 5_000, quick=True),
    _case("EVALSHA round trip, sync client", "evalsha-sync", 5_000),
    _case("XADD, pipelines of 100", "xadd", 60_000, 100),
    _case("XADD, pipelines of 500", "xadd", 60_000, 500, quick=True),
    _case("XADD, pipelines of 1,000", "xadd", 60_000, 1000),
    _case("XREADGROUP of 100, then XACK and XDEL", "read", 60_000, 100, quick=True),
    _case("LPUSH/BRPOP round trip", "echo", 5_000, quick=True),
]
