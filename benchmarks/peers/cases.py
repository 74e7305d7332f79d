"""Measurements of each peer: fill the queue, drain it with one process, call with 1 and 50 in flight."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.case import Case
from benchmarks.figures import Sample
from benchmarks.ground import Ground
from benchmarks.peers.field import Peer
from benchmarks.programs import ROOT, Program

__all__ = ["cases_of"]

_DRAIN, _CALLS = 10_000, {1: 500, 50: 3_000}


def cases_of(peer: Peer) -> list[Case]:
    """Return everything that is measured of a peer; its fill is measured on the way to the drain."""
    calls = [
        Case(
            f"{peer.name}, call, {flight} in flight",
            "peers",
            partial(called, peer=peer, full=full, flight=flight),
            peer.quick,
            peer=peer.name,
        )
        for flight, full in _CALLS.items()
    ]
    return [
        Case(f"{peer.name}, fill", "peers", partial(filled, peer=peer), peer.quick, peer=peer.name),
        Case(f"{peer.name}, drain", "peers", partial(drained, peer=peer), peer.quick, peer=peer.name),
        *calls,
    ]


def filled(ground: Ground, peer: Peer) -> Sample:
    count = ground.count(_DRAIN)
    with _program(ground, peer, "fill", count) as filler, ground.spending() as spent:
        filler.go()
        report = filler.report()
    return {"per_s": count / report["seconds"], "client_us": report["cpu"] / count * 1e6, **spent.per(count)}


def drained(ground: Ground, peer: Peer) -> Sample:
    count = ground.count(_DRAIN)
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


def called(ground: Ground, peer: Peer, full: int, flight: int) -> Sample:
    count = ground.count(full, least=flight)
    with _program(ground, peer, "work", 0) as worker:
        worker.go()
        with _program(ground, peer, "call", count, flight=flight) as caller, ground.spending() as spent:
            caller.go()
            report = caller.report()
    return {
        "per_s": count / report["seconds"],
        "p50_ms": report["p50_ms"],
        "p99_ms": report["p99_ms"],
        "client_us": report["cpu"] / count * 1e6,
        **spent.per(count),
    }


def _program(ground: Ground, peer: Peer, role: str, count: int, **options: Any) -> Program:
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [*peer.command(), role, "--url", ground.url, "--count", str(count), *words]
    # Python peers need `benchmarks.protocol`; node finds its packages by the working directory.
    return Program(command, environment={"PYTHONPATH": str(ROOT), "PEER": str(peer.folder)})
