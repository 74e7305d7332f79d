"""Measurements of each peer: dispatch one job or many, fill the queue, drain it with one process, call with 1 and 50 in flight.

What is compared is the same work. A dispatch makes one job with an entity, a number and sixty characters, by the library's usual call,
and is over when the server has confirmed it; no result is asked for. A drain runs a function that returns the number, once a job, and
acknowledges each as the library does. A call ends when the caller has the function's answer. Each program says what its library sends.

BullMQ's programs run warm: ten thousand dispatches and two thousand calls come before the clock starts, and a drain has a hundred
thousand jobs, since Node compiles while it runs. CPython does not, so a few are enough for the others.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.case import Case
from benchmarks.figures import Sample
from benchmarks.ground import Ground
from benchmarks.peers.durable import durable_cases_of
from benchmarks.peers.field import Peer
from benchmarks.programs import ROOT, Program

__all__ = ["cases_of"]

_SENDS = {1: 5_000, 500: 10_000}
_MORE_CALLS = {1: 1, 50: 3}


def cases_of(peer: Peer) -> list[Case]:
    """Return everything that is measured of a peer; its fill is measured on the way to the drain."""
    if peer.durable:
        return durable_cases_of(peer)
    measures: dict[str, Any] = {
        "dispatch, one by one": partial(sent, flight=1),
        "dispatch, 500 concurrent": partial(sent, flight=500),
        "fill": filled,
        "drain": drained,
        "call, 1 in flight": partial(called, flight=1),
        "call, 50 in flight": partial(called, flight=50),
    }
    if not peer.concurrent:
        del measures["dispatch, 500 concurrent"]
    return [
        Case(f"{peer.name}, {what}", "peers", partial(measure, peer=peer), peer.quick, peer=peer.name)
        for what, measure in measures.items()
    ]


def sent(ground: Ground, peer: Peer, flight: int) -> Sample:
    return _of_the_client(ground, peer, "send", ground.count(_SENDS[flight], least=flight), flight=flight)


def filled(ground: Ground, peer: Peer) -> Sample:
    return _of_the_client(ground, peer, "fill", ground.count(peer.jobs))


def drained(ground: Ground, peer: Peer) -> Sample:
    count = ground.count(peer.jobs)
    with _program(ground, peer, "fill", count) as filler:
        filler.go()
        filler.report()
    with _program(ground, peer, "work", count) as worker, ground.spending() as spent:
        worker.go()
        report = worker.report()
    return {
        "per_s": count / report["seconds"],
        "worker_us": report["cpu"] / count * 1e6,
        "rss_mb": report["rss"] / 1e6,
        **spent.per(count),
    }


def called(ground: Ground, peer: Peer, flight: int) -> Sample:
    count = ground.count(peer.calls * _MORE_CALLS[flight], least=flight)
    with _program(ground, peer, "work", 0) as worker:
        worker.go()
        return _of_the_client(ground, peer, "call", count, flight=flight)


def _of_the_client(ground: Ground, peer: Peer, role: str, count: int, **options: Any) -> Sample:
    """Let a client do its work; return its rate, its latencies if it took them, and what it cost."""
    with _program(ground, peer, role, count, **options) as client, ground.spending() as spent:
        client.go()
        report = client.report()
    sample = {"per_s": count / report["seconds"], "client_us": report["cpu"] / count * 1e6, **spent.per(count)}
    return sample | {name: report[name] for name in ("p50_ms", "p99_ms") if name in report}


def _program(ground: Ground, peer: Peer, role: str, count: int, **options: Any) -> Program:
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [*peer.command(), role, "--url", ground.url, "--count", str(count), *words]
    # Python peers need `benchmarks.protocol`; node finds its packages by the working directory.
    return Program(command, environment={"PYTHONPATH": str(ROOT), "PEER": str(peer.folder)})
