"""The gateway: how many dispatches one process takes over HTTP, and how long a call takes through it."""

from __future__ import annotations

from functools import partial

from benchmarks.case import Case
from benchmarks.figures import Sample
from benchmarks.ground import Ground
from benchmarks.programs import Program, python

__all__ = ["ALL"]

_MODULE = "benchmarks.cases.gateway_program"


def _asked(ground: Ground, count: int, flight: int, *, calls: bool) -> Sample:
    """Measure requests over so many connections, each after the answer to the one before."""
    with Program(python(_MODULE, "serve", url=ground.url)) as server:
        where = f"http://127.0.0.1:{server.report()['port']}"
        command = python(_MODULE, "ask", gateway=where, count=count, flight=flight, calls=int(calls))
        with Program(command) as client, ground.spending() as spent:
            before = server.cpu()
            client.go()
            report = client.report()
            cpu = server.cpu() - before
    figures = {"per_s": count / report["seconds"], "p50_ms": report["p50_ms"], "p99_ms": report["p99_ms"]}
    return {**figures, "client_us": cpu / count * 1e6, **spent.per(count)}


def dispatched(ground: Ground, full: int, flight: int) -> Sample:
    return _asked(ground, ground.count(full, least=flight), flight, calls=False)


def called(ground: Ground, full: int, flight: int) -> Sample:
    with ground.ours("work", 0) as worker:
        worker.go()
        figures = _asked(ground, ground.count(full, least=flight), flight, calls=True)
        worker.stop()
    return figures


ALL = [
    Case("gateway, dispatches over 50 connections", "gateway", partial(dispatched, full=20_000, flight=50)),
    Case("gateway, call, 1 in flight", "gateway", partial(called, full=3_000, flight=1)),
]
