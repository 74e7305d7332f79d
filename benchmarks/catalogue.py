"""All cases there are, in the order in which they are measured and shown."""

from __future__ import annotations

from benchmarks.case import Case
from benchmarks.cases import call, dispatch, drain, growth, memory
from benchmarks.floor import ALL as FLOOR
from benchmarks.peers.cases import cases_of
from benchmarks.peers.field import PEERS

__all__ = ["GROUPS", "catalogue"]

GROUPS = ("dispatch", "drain", "call", "wake-up", "memory", "growth", "floor", "peers")


def catalogue() -> list[Case]:
    """Return our cases, the floor's and the peers'."""
    return [
        *dispatch.ALL,
        *drain.ALL,
        *call.ALL,
        *memory.ALL,
        *FLOOR,
        *(case for peer in PEERS for case in cases_of(peer)),
        *growth.ALL,
    ]
