"""Durable handlers measured: a step, a call, a handler with five steps from call to reply, and commands that wait without a worker.

The cost of a step is the difference between commands with ten steps and the same commands without any. A durable call, which is two commands and
a step, is compared with a plain handler that calls another entity by `bus.call`: two commands.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from benchmarks.case import Case
from benchmarks.cases.memory import used
from benchmarks.figures import Sample
from benchmarks.ground import NAMESPACE, Ground
from command_bus import SyncCommandBus

__all__ = ["ALL"]

_COMMANDS, _STEPS, _WAITING = 4_000, 10, 100_000
_SLOTS = 10
_SECONDS = 20.0


def drained(ground: Ground, kind: str, entities: int, full: int = _COMMANDS) -> Sample:
    """Measure a drain of durable commands, per command."""
    count = ground.count(full)
    with ground.ours("fill", count, kind=kind, entities=entities or count, flight=1000) as filler:
        filler.go()
        filler.report()
    with ground.ours("work", count) as worker, ground.spending() as spent:
        worker.go()
        report = worker.report()
    return {
        "per_s": count / report["seconds"],
        "worker_us": report["cpu"] / count * 1e6,
        **spent.per(count),
    }


def stepped(ground: Ground, entities: int) -> Sample:
    """Measure a step, of commands with ten."""
    bare = drained(ground, "steps0", entities)
    ground.clear()
    full = drained(ground, f"steps{_STEPS}", entities)
    costs = {name: (full[name] - bare[name]) / _STEPS for name in ("worker_us", "server_us", "script_us")}
    return {"per_s": full["per_s"] * _STEPS, **costs}


def called(ground: Ground, kind: str, full: int, flight: int) -> Sample:
    """Measure calls of durable handlers, by their callers."""
    count = ground.count(full, least=flight)
    with ground.ours("work", 0) as worker:
        worker.go()
        with ground.ours("call", count, kind=kind, flight=flight) as caller, ground.spending() as spent:
            caller.go()
            report = caller.report()
    return {
        "per_s": count / report["seconds"],
        "p50_ms": report["p50_ms"],
        "p99_ms": report["p99_ms"],
        "client_us": report["cpu"] / count * 1e6,
        **spent.per(count),
    }


def waiting(ground: Ground) -> Sample:
    """Measure commands that wait for a signal on a worker with ten slots: bytes of each, and what worker and server use meanwhile."""
    count = ground.count(_WAITING, least=1000)
    ground.clear()
    with ground.ours("work", 0, concurrency=_SLOTS) as worker:
        worker.go()
        time.sleep(1)
        idle = _use_of(ground, worker)
        empty = used(ground)
        with ground.ours("fill", count, kind="waiting", entities=count, flight=1000) as filler:
            filler.go()
            filler.report()
        _until_suspended(ground, count)
        each = (used(ground) - empty) / count
        busy = _use_of(ground, worker)
    return {
        "bytes_each": each,
        "idle_percent": busy["worker"],
        "server_percent": busy["server"],
        "idle_before_percent": idle["worker"],
        "server_before_percent": idle["server"],
    }


def _use_of(ground: Ground, worker: Any) -> dict[str, float]:
    """Return what a worker and the server use while nothing happens, in percent of a core."""
    with ground.spending() as spent:
        before, began = worker.cpu(), time.monotonic()
        time.sleep(_SECONDS * min(1.0, max(ground.scale, 0.1)))
        spell, cpu = time.monotonic() - began, worker.cpu() - before
    return {"worker": cpu / spell * 100, "server": spent.cpu / spell * 100}


def _until_suspended(ground: Ground, count: int) -> None:
    until = time.monotonic() + 170
    with SyncCommandBus(ground.url, namespace=NAMESPACE) as bus:
        while (stats := bus.stats()).ready or stats.in_flight or stats.depth < count:
            if time.monotonic() > until:
                raise TimeoutError(f"{stats.ready} entities wait for a worker, {stats.in_flight} are held")
            time.sleep(0.2)


ALL = [
    Case("durable, a step, 1,000 entities", "durable", partial(stepped, entities=1000)),
    Case("durable, a step, every command its own entity", "durable", partial(stepped, entities=0)),
    Case("durable, no step, 1,000 entities", "durable", partial(drained, kind="steps0", entities=1000)),
    Case("durable, a durable call, 1,000 entities", "durable", partial(drained, kind="calling", entities=1000)),
    Case(
        "durable, beside it a plain call of another entity, 1,000 entities",
        "durable",
        partial(drained, kind="asking", entities=1000),
    ),
    Case("durable, no step, 50 in flight", "durable", partial(called, kind="steps0", full=5_000, flight=50)),
    Case("durable, five steps, 1 in flight", "durable", partial(called, kind="steps5", full=1_000, flight=1)),
    Case("durable, five steps, 50 in flight", "durable", partial(called, kind="steps5", full=5_000, flight=50)),
    Case("durable, call that calls, 50 in flight", "durable", partial(called, kind="calling", full=5_000, flight=50)),
    Case(
        "durable, beside it a plain call that calls, 50 in flight",
        "durable",
        partial(called, kind="asking", full=5_000, flight=50),
    ),
    Case("durable, commands that wait", "durable", waiting, most=1),
]
