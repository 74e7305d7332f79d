"""Growth: does a command cost the same when much waits, when there are many entities, more workers, more shards, more that idle?

A growth case is a row of points, each a case by itself; `ROWS` names them for the plot and the targets. What does not grow stays the same
along a row: as the backlog grows, a thousand entities have more and more; as the entities grow, each has one command.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from benchmarks.case import Case
from benchmarks.cases.drain import Drain
from benchmarks.cases.drain import measured as drained
from benchmarks.cases.program import IDLE_SECONDS
from benchmarks.figures import Sample
from benchmarks.ground import Ground

__all__ = ["ALL", "ROWS", "Row"]

_ROUND = 2_000
_ROUNDS = 3
_FEW, _OWN = 1_000, 1_000_000_000
_MANY = 1_000_000
"""A case of more is measured once: it takes a minute."""


@dataclass(frozen=True, slots=True)
class Row:
    """Points of one growing quantity.

    Attributes:
        name: Of the quantity.
        sizes: Where it is measured; backlog and entities are scaled by `--scale`.
    """

    name: str
    sizes: tuple[int, ...]

    def case(self, size: int) -> str:
        """Return the name of a point's case."""
        return f"growth, {self.name} {size:,}"


ROWS = (
    Row("backlog", (1_000, 10_000, 100_000, 1_000_000, 5_000_000)),
    Row("entities", (1_000, 10_000, 100_000, 1_000_000)),
    Row("workers", (1, 2, 3, 4)),
    Row("shards", (1, 16, 64)),
    Row("idle workers", (1, 10, 100)),
)


def measured(ground: Ground, size: int, *, spread: bool) -> Sample:
    """Measure costs on top of a backlog of `size` commands: of a thousand entities, or each of an entity of its own."""
    backlog = ground.count(size, least=100)
    entities = _OWN if spread else ground.count(_FEW, least=100)
    count = ground.count(_ROUND, least=100)
    rows: list[dict[str, float]] = []
    with ground.ours("grow", count, backlog=backlog, entities=entities, rounds=_ROUNDS) as program:
        program.go()
        rows.extend(program.report() for _ in range(_ROUNDS))
    return {metric: statistics.median(row[metric] for row in rows) for metric in rows[0]} | {"size": float(backlog)}


def by_workers(ground: Ground, workers: int) -> Sample:
    sample = drained(ground, Drain(workers=workers))
    return {
        "drain_python_us": sample["worker_us"],
        "drain_redis_us": sample["server_us"],
        "per_s": sample["per_s"],
        "size": float(workers),
    }


def by_shards(ground: Ground, shards: int) -> Sample:
    """Measure a drain over so many shards, and what one worker of them costs while nothing comes."""
    sample = drained(ground, Drain(shards=shards))
    with _idlers(ground, workers=1, shards=shards) as idling:
        return {
            "drain_python_us": sample["worker_us"],
            "drain_redis_us": sample["server_us"],
            "per_s": sample["per_s"],
            "size": float(shards),
            **idling,
        }


def among_idle(ground: Ground, workers: int) -> Sample:
    """Measure what idle workers cost while nothing comes, and what a command costs that wakes one of them."""
    count = ground.count(_ROUND, least=100)
    with _idlers(ground, workers=workers, shards=1) as idling:
        with ground.ours("fill", count, way="one", entities=count) as sender, ground.spending() as spent:
            sender.go()
            sender.report()
        return {"server_us": spent.cpu / count * 1e6, "size": float(workers), **idling}


@contextmanager
def _idlers(ground: Ground, *, workers: int, shards: int) -> Generator[dict[str, float]]:
    """Hold workers ready; give what they and the server cost a second, in ms of processor."""
    with ground.ours("idle", 0, workers=workers, shards=shards) as program:
        with ground.spending() as spent:
            program.go()
            report = program.report()
        yield {"idle_python_ms": report["idle_python_ms"], "idle_redis_ms": spent.cpu / IDLE_SECONDS * 1000}


_BY_ITSELF: dict[str, Callable[[Ground, int], Sample]] = {"workers": by_workers, "shards": by_shards, "idle workers": among_idle}


def _cases(row: Row) -> list[Case]:
    measure = _BY_ITSELF.get(row.name) or partial(measured, spread=row.name == "entities")
    return [Case(row.case(size), "growth", partial(_of_size, measure, size), most=1 if size > _MANY else 3) for size in row.sizes]


def _of_size(measure: Callable[[Ground, int], Sample], size: int, ground: Ground) -> Sample:
    return measure(ground, size)


ALL = [case for row in ROWS for case in _cases(row)]
