"""The outbox: a relay with a backlog beside a loop without any promise, and a transaction with an `add` beside one with an INSERT alone.

On a PostgreSQL of its own, which writes to the disk as in production. Without one there are no figures.
"""

from __future__ import annotations

from functools import partial

from benchmarks.case import Case
from benchmarks.cases.inbox import database
from benchmarks.figures import Sample
from benchmarks.ground import Ground
from benchmarks.programs import Program, python

__all__ = ["ALL"]

_MODULE = "benchmarks.cases.outbox_program"


def measured(ground: Ground, role: str, kind: str, full: int) -> Sample:
    count = ground.count(full, least=1000)
    with (
        database() as url,
        Program(python(_MODULE, role, url=ground.url, count=count, database=url, kind=kind)) as program,
        ground.spending() as spent,
    ):
        program.go()
        report = program.report()
    return {"per_s": count / report["seconds"], "client_us": report["cpu"] / count * 1e6, **spent.per(count)}


ALL = [
    Case("outbox, a backlog is relayed", "outbox", partial(measured, role="relay", kind="outbox", full=60_000)),
    Case("outbox, a loop of SELECT, XADD, DELETE", "outbox", partial(measured, role="relay", kind="loop", full=60_000)),
    Case("outbox, a transaction with an add", "outbox", partial(measured, role="commit", kind="outbox", full=4_000)),
    Case("outbox, a transaction with an INSERT", "outbox", partial(measured, role="commit", kind="insert", full=4_000)),
]
