"""Measurements of the peers with durable execution: a call of a handler with five steps, one in flight and 50.

Their servers are processes of their own, which their program starts and measures: processor time is per call, as for the bus.
"""

from __future__ import annotations

from functools import partial

from benchmarks.case import Case
from benchmarks.figures import Sample
from benchmarks.ground import Ground
from benchmarks.peers.field import Peer
from benchmarks.programs import ROOT, Program

__all__ = ["POSTGRES", "durable_cases_of"]

POSTGRES = ", on Postgres"
"""The end of the names of cases that run on Postgres."""


def durable_cases_of(peer: Peer) -> list[Case]:
    """Return what is measured of a peer."""
    stores = ("", POSTGRES) if peer.name == "dbos" else ("",)
    return [
        Case(
            f"{peer.name}, durable, five steps, {flight} in flight{store}",
            "durable",
            partial(_called, peer=peer, flight=flight, store=store),
            peer=peer.name,
        )
        for flight in (1, 50)
        for store in stores
    ]


def _called(ground: Ground, peer: Peer, flight: int, store: str) -> Sample:
    count = ground.count(peer.calls, least=2 * flight)
    words = ["call", "--url", "postgres" if store else "own", "--count", str(count), "--flight", str(flight)]
    environment = {"PYTHONPATH": str(ROOT), "PEER": str(peer.folder)}
    with Program([*peer.command(), *words], environment=environment) as program:
        program.go()
        report, spent = program.report(), program.report()
    return {
        "per_s": count / report["seconds"],
        "p50_ms": report["p50_ms"],
        "p99_ms": report["p99_ms"],
        "client_us": report["cpu"] / count * 1e6,
        "worker_us": spent["worker"] / count * 1e6,
        "server_us": spent["server"] / count * 1e6,
    }
