"""Commands that a worker handles per second, from its first to its last, with order, leases, fences and dedup on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.case import Case
from benchmarks.figures import Sample
from benchmarks.ground import NAMESPACE, Ground, Spent
from command_bus import Limit, SyncCommandBus
from command_bus.transport.redis.keys import ShardKeys

__all__ = ["ALL", "Drain", "filled", "measured", "together"]

_FULL, _AS_BULLMQ = 40_000, 100_000


@dataclass(frozen=True, slots=True)
class Drain:
    """The kind of load that is drained.

    Attributes:
        entities: Over how many the commands are spread; 0: each has its own.
        handler: A kind of `messages.HANDLERS`.
        once: At most once, instead of at least once.
        workers: Processes.
        live: The commands come while they are handled, instead of before.
        watched: All steps are published as events.
        limit: Of the entity type; None: there is none.
        shards: Parts of the namespace.
        full: Commands at scale 1; what is compared with BullMQ drains as many as it does.
    """

    entities: int = 1000
    handler: str = "noop"
    once: bool = False
    workers: int = 1
    live: bool = False
    watched: bool = False
    limit: Limit | None = None
    shards: int = 1
    full: int = _FULL

    def filling(self, count: int) -> dict[str, Any]:
        way = {"way": "concurrent", "flight": 500} if self.live else {"way": "batch", "flight": 1000}
        return {"entities": self.entities or count, "kind": "once" if self.once else "plain", "shards": self.shards, **way}


def measured(ground: Ground, drain: Drain) -> Sample:
    count = ground.count(drain.full)
    if drain.watched:
        ground.client.hset(ShardKeys(NAMESPACE, 0).watched, "*", "10000")
    if drain.limit is not None:
        with SyncCommandBus(ground.url, namespace=NAMESPACE) as bus:
            bus.limits.put("type:bench", drain.limit.rate, concurrency=drain.limit.concurrency)
    if drain.workers > 1:
        return _by_several(ground, drain, count)
    if not drain.live:
        filled(ground, drain, count)
    with ground.ours("work", count, handler=drain.handler, shards=drain.shards) as worker, ground.spending() as spent:
        worker.go()
        if drain.live:
            filled(ground, drain, count)
        report = worker.report()
    return together([report], count) | spent.per(count) | _bound(spent, count)


def filled(ground: Ground, drain: Drain, count: int) -> None:
    """Dispatch the commands."""
    with ground.ours("fill", count, **drain.filling(count)) as program:
        program.go()
        program.report()


def _by_several(ground: Ground, drain: Drain, count: int) -> Sample:
    """Drain with several workers. No worker knows when it is the last, so they are stopped when the bus is idle."""
    filled(ground, drain, count)
    workers = [ground.ours("work", 0, handler=drain.handler) for _ in range(drain.workers)]
    try:
        for worker in workers:
            worker.report()
        with ground.spending() as spent:
            for worker in workers:
                worker.go()
            with SyncCommandBus(ground.url, namespace=NAMESPACE) as bus:
                bus.wait_idle(300)
        for worker in workers:
            worker.stop()
        reports = [worker.report() for worker in workers]
    finally:
        for worker in workers:
            worker.end()
    return together(reports, count) | spent.per(count) | _bound(spent, count)


def _bound(spent: Spent, count: int) -> dict[str, float]:
    """Return how many commands a second one core for the server would bear, with any number of workers."""
    return {"bound_per_s": count / spent.cpu} if spent.cpu else {}


def together(reports: list[dict[str, Any]], count: int) -> dict[str, float]:
    """Return what several workers did as one: from the first job of any to the last of any."""
    busy = [report for report in reports if report["count"]]
    seconds = max(report["last"] for report in busy) - min(report["first"] for report in busy)
    return {
        "per_s": count / seconds,
        "worker_us": sum(report["cpu"] for report in busy) / sum(report["count"] for report in busy) * 1e6,
        "rss_mb": sum(report["rss"] for report in busy) / 1e6,
    }


def _case(name: str, drain: Drain, *, quick: bool = False) -> Case:
    return Case(f"drain, {name}", "drain", partial(measured, drain=drain), quick)


ALL = [
    _case("one entity", Drain(entities=1, full=_FULL // 4)),
    _case("one entity, in batches", Drain(entities=1, handler="run")),
    _case("10 entities", Drain(entities=10)),
    _case("1,000 entities", Drain(full=_AS_BULLMQ), quick=True),
    _case("1,000 entities, 2 processes", Drain(workers=2, full=_AS_BULLMQ), quick=True),
    _case("every command its own entity", Drain(entities=0), quick=True),
    _case("every command its own entity, 2 processes", Drain(entities=0, workers=2)),
    _case("1,000 entities, in batches", Drain(handler="run")),
    _case("1,000 entities, live", Drain(live=True)),
    _case("1,000 entities, at most once", Drain(once=True)),
    _case("1,000 entities, handler awaits 1 ms", Drain(handler="await")),
    _case("1,000 entities, sync handler", Drain(handler="sync")),
    _case("1,000 entities, watched", Drain(watched=True)),
    _case("1,000 entities, with state", Drain(handler="state")),
    _case("every command its own entity, with state", Drain(entities=0, handler="state")),
]
