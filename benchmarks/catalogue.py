"""All cases there are, in the order in which they are measured and shown."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.case import Case
from benchmarks.cases import (
    call,
    dashboard,
    dispatch,
    drain,
    durable,
    gateway,
    growth,
    inbox,
    limits,
    line,
    memory,
    outbox,
    publish,
    several,
    times,
    workflows,
)
from benchmarks.floor import ALL as FLOOR
from benchmarks.peers.cases import cases_of
from benchmarks.peers.durable import POSTGRES
from benchmarks.peers.field import PEERS

__all__ = ["GROUPS", "catalogue"]

GROUPS = (
    "dispatch",
    "drain",
    "limits",
    "call",
    "wake-up",
    "memory",
    "line",
    "schedules",
    "durable",
    "dashboard",
    "gateway",
    "inbox",
    "outbox",
    "publish",
    "several",
    "workflows",
    "growth",
    "floor",
    "peers",
)

_BESIDE = {"fill": "dispatch, batches of 1,000", "drain": "drain, 1,000 entities"}
"""Our case that does what a peer's does, if it has another name."""


def catalogue() -> list[Case]:
    """Return our cases, the floor's and the peers'."""
    ours = [
        *dispatch.ALL,
        *drain.ALL,
        *limits.ALL,
        *call.ALL,
        *memory.ALL,
        *line.ALL,
        *times.ALL,
        *durable.ALL,
        *dashboard.ALL,
        *gateway.ALL,
        *inbox.ALL,
        *outbox.ALL,
        *publish.ALL,
        *several.ALL,
        *workflows.ALL,
        *FLOOR,
        *growth.ALL,
    ]
    return list(_side_by_side(ours, [case for peer in PEERS for case in cases_of(peer)]))


def _side_by_side(ours: list[Case], peers: list[Case]) -> Iterator[Case]:
    """Put what is compared together: the machine's state changes within minutes."""
    for case in ours:
        yield case
        for other in peers:
            name = other.name.removeprefix(f"{other.peer}, ").removesuffix(POSTGRES)
            if _BESIDE.get(name, name) == case.name:
                yield other
