"""The cost of limits: a start that is limited beside one that is not, many entities behind one rate, and a worker while all of them wait."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.case import Case
from benchmarks.cases.drain import Drain, filled, measured
from benchmarks.figures import Sample
from benchmarks.ground import NAMESPACE, Ground
from command_bus import Limit, Rate, SyncCommandBus
from command_bus.transport.redis.keys import ShardKeys

__all__ = ["ALL"]

_WAITING = 10_000
_SECONDS = 10.0
_DRAIN = Drain(full=40_000)
_NEVER_REFUSES = Rate(50_000, burst=1_000_000)


def _behind_a_rate(ground: Ground) -> Sample:
    """Measure many entities behind one rate: what it lets start, and how many activations a start takes behind the first one."""
    count = ground.count(22_000)
    sample = measured(
        ground, replace(_DRAIN, entities=_WAITING, full=22_000, limit=Limit(rate=Rate(1000, burst=50), scope="type"))
    )
    added: Any = ground.client.xinfo_stream(ShardKeys(NAMESPACE, 0).ready)["entries-added"]
    return {**sample, "wakes_each": (added - min(_WAITING, count)) / count}


def _all_wait(ground: Ground) -> Sample:
    """Measure the processor time of a worker while all entities wait for an hour and more."""
    count = ground.count(_WAITING)
    slow = Limit(rate=Rate(0.01, burst=1), scope="type")
    with SyncCommandBus(ground.url, namespace=NAMESPACE) as bus:
        bus.limits.put("type:bench", slow.rate)
        filled(ground, replace(_DRAIN, entities=count), count)
        with ground.ours("work", 0, handler="noop") as worker:
            worker.go()
            while bus.limits.waiting() < count - 1:
                time.sleep(0.1)
            with ground.spending() as spent:
                before, began = worker.cpu(), time.monotonic()
                time.sleep(_SECONDS * min(1.0, max(ground.scale, 0.05)))
                used, seconds = worker.cpu() - before, time.monotonic() - began
    return {"idle_percent": used / seconds * 100, "server_percent": spent.cpu / seconds * 100}


def _starts(entities: str, drain: Drain) -> list[Case]:
    """Return the cases of starts that no limit refuses."""
    places = Limit(concurrency=1_000_000, scope="type")
    limits = {"without a limit": None, "under a rate": Limit(rate=_NEVER_REFUSES, scope="type"), "under a concurrency": places}
    return [
        Case(f"limits, starts {name}, {entities}", "limits", partial(measured, drain=replace(drain, limit=limit)))
        for name, limit in limits.items()
    ]


ALL = [
    *_starts("1,000 entities", _DRAIN),
    *_starts("every command its own entity", replace(_DRAIN, entities=0)),
    Case("limits, 10,000 entities behind 1,000/s", "limits", _behind_a_rate, most=1),
    Case("limits, 10,000 entities that wait", "limits", _all_wait, most=1),
]
