"""Calls: how long one takes, from `call` to the reply, and how many there are a second; and how soon an idle worker begins."""

from __future__ import annotations

from functools import partial

from benchmarks.case import Case
from benchmarks.figures import Sample
from benchmarks.ground import Ground

__all__ = ["ALL"]


def called(ground: Ground, full: int, flight: int) -> Sample:
    count = ground.count(full, least=flight)
    with ground.ours("work", 0) as worker:
        worker.go()
        with ground.ours("call", count, flight=flight) as caller, ground.spending() as spent:
            caller.go()
            report = caller.report()
        worker.stop()
        busy = worker.report()
    return {
        "per_s": count / report["seconds"],
        "p50_ms": report["p50_ms"],
        "p99_ms": report["p99_ms"],
        "client_us": report["cpu"] / count * 1e6,
        "worker_us": busy["cpu"] / max(busy["count"], 1) * 1e6,
        **spent.per(count),
    }


def woken(ground: Ground) -> Sample:
    count = ground.count(300, least=30)
    with ground.ours("work", 0) as worker, ground.ours("ping", count) as sender:
        worker.go()
        sender.go()
        sender.report()
        worker.stop()
        report = worker.report()
    return {"p50_ms": report["p50_ms"], "p99_ms": report["p99_ms"]}


ALL = [
    Case("call, 1 in flight", "call", partial(called, full=5_000, flight=1), quick=True),
    Case("call, 50 in flight", "call", partial(called, full=20_000, flight=50), quick=True),
    Case("call, 1,000 in flight", "call", partial(called, full=20_000, flight=1000)),
    Case("wake-up of an idle worker", "wake-up", woken, quick=True),
]
