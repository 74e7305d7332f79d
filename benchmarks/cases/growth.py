"""Growth: does a command cost the same when much waits, when there are many entities, when there are more workers?

A growth case is a row of points, each a case by itself; `ROWS` names them for the plot and the targets. What does not grow stays the same
along a row: as the backlog grows, a thousand entities have more and more; as the entities grow, each has one command.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import partial

from benchmarks.case import Case
from benchmarks.cases.drain import Drain
from benchmarks.cases.drain import measured as drained
from benchmarks.figures import Sample
from benchmarks.ground import Ground

__all__ = ["ALL", "ROWS", "Row"]

_ROUND = 2_000
_ROUNDS = 3
_FEW, _OWN = 1_000, 1_000_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """Points of one growing quantity.

    Attributes:
        name: Of the quantity.
        sizes: Where it is measured; scaled by `--scale`, all but workers.
    """

    name: str
    sizes: tuple[int, ...]

    def case(self, size: int) -> str:
        """Return the name of a point's case."""
        return f"growth, {self.name} {size:,}"


ROWS = (
    Row("backlog", (1_000, 10_000, 100_000, 1_000_000)),
    Row("entities", (1_000, 10_000, 100_000, 1_000_000)),
    Row("workers", (1, 2, 3, 4)),
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


def _cases(row: Row) -> list[Case]:
    if row.name == "workers":
        return [Case(row.case(size), "growth", partial(by_workers, workers=size), most=3) for size in row.sizes]
    spread = row.name == "entities"
    return [Case(row.case(size), "growth", partial(measured, size=size, spread=spread), most=3) for size in row.sizes]


ALL = [case for row in ROWS for case in _cases(row)]
