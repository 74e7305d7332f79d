"""Rows of commands with unique keys: each is completed, folded or superseded, whatever Spark runs again, and the counts agree."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from command_bus import Command, EntityId, HandlerRegistry, Unique
from command_bus.spark import DispatchReport, dispatch_dataframe, reconcile
from tests.selection import quick
from tests.spark.trucks import Namespace, until, working

SHOPS, EACH = 4, 60


class Pull(Command[int], entity="shop", unique=Unique()):
    """The first wins."""

    shop: EntityId
    seq: int


class Push(Command[int], entity="shop", unique=Unique(wins="latest")):
    shop: EntityId
    seq: int


class Quiet(Command[int], entity="shop", unique=Unique(wins="latest", debounce=3600.0)):
    shop: EntityId
    seq: int


class Sell(Command[int], entity="shop"):
    shop: EntityId
    seq: int


def handlers(seen: list[tuple[str, str, int]]) -> HandlerRegistry:
    registry = HandlerRegistry()
    for kind in (Pull, Push, Quiet, Sell):

        @registry.handles(kind)
        def note(command: Any) -> int:
            seen.append((type(command).__name__, str(command.shop), command.seq))
            return int(command.seq)

    return registry


def rows(spark: SparkSession, kinds: tuple[str, ...] = ("Pull", "Push", "Sell")) -> DataFrame:
    """Return the triggers of each shop, in turn of each kind."""
    turn = F.element_at(F.array(*map(F.lit, kinds)), (F.floor(F.col("id") / SHOPS) % len(kinds) + 1).cast("int"))
    return spark.range(SHOPS * EACH).select(
        F.concat(F.lit("s"), F.col("id") % SHOPS).alias("shop"),
        F.floor(F.col("id") / SHOPS).cast("int").alias("seq"),
        turn.alias("kind"),
    )


def dispatched(namespace: Namespace, frame: DataFrame, command: Any, **options: Any) -> DispatchReport:
    given = {"key": ["shop", "seq"], "order_by": "seq", "dispatch_id": "d", "outcomes": "1 day"} | namespace.options | options
    return dispatch_dataframe(frame, command, **given)


def agree(report: DispatchReport, seen: list[tuple[str, str, int]]) -> Counter[str]:
    """Check that each row of each shop has one status, and that the counts agree; return the rows by status."""
    ledger = reconcile(report, timeout=60)
    ledger.raise_if_wrong()
    assert ledger.settled
    counts = Counter({name: count for name, count in ledger.counts.items() if count})
    assert set(counts) <= {"completed", "folded", "superseded"}
    assert counts.total() == report.rows == report.added + report.folded
    assert (counts["folded"], counts["superseded"]) == (report.folded, report.replaced)
    assert counts["completed"] == len(seen) == len(set(seen))
    found = {row.command_id: row for row in report.outcomes().collect()}
    assert len(found) == report.rows
    for row in found.values():
        assert (row.other in found) == (row.status != "completed")
        assert row.other is None or found[row.other].entity == row.entity
    return counts


COMMANDS = ",".join(f"{__name__}:{kind}" for kind in ("Pull", "Push", "Sell"))


@pytest.mark.slow
def test_rows_are_folded_and_replaced_and_each_is_accounted_for(
    spark: SparkSession, namespace: Namespace, tmp_path: Path
) -> None:
    seen: list[tuple[str, str, int]] = []
    frame = rows(spark)
    report = dispatched(namespace, frame, COMMANDS, command_column="kind", batch_size=7)
    assert (report.rows, report.folded, report.replaced) == (240, 4 * 19, 4 * 19)
    assert (report.added, report.duplicates, report.rejected) == (164, 0, 0)
    assert "76 rows folded, 76 commands replaced" in str(report)
    before = reconcile(report)
    assert (before.counts["pending"], before.ok) == (88, True)
    with working(namespace, handlers(seen)):
        counts = agree(report, seen)
    assert counts == {"completed": 88, "folded": 76, "superseded": 76}
    for number in range(SHOPS):
        shop = [(kind, seq) for kind, name, seq in seen if name == f"s{number}"]
        assert shop == [("Pull", 0), *(("Sell", seq) for seq in range(2, EACH - 1, 3)), ("Push", 58), ("Sell", 59)]
    again = dispatched(namespace, frame, COMMANDS, command_column="kind")
    assert (again.state, again.added, again.folded, again.duplicates) == ("already committed", 164, 76, 0)
    ledger = reconcile(report)
    folded = ledger.frame("folded").orderBy("command_id").first()
    assert folded is not None
    assert (folded.attempt, folded.error_type) == (0, None)
    superseded = ledger.frame("superseded").first()
    assert superseded is not None
    assert superseded.error_type == "superseded"
    page = ledger.write(tmp_path).read_text()
    assert "not sent: another command of its unique key waited or ran" in page
    view = spark.read.format("command_bus").options(**namespace.options, view="dispatches").load().first()
    assert view is not None
    assert (view.folded, view.replaced, view.pending) == (76, 76, 0)


@pytest.mark.promise("Rows with a key")
@pytest.mark.slow
@pytest.mark.parametrize("kind", quick(["Pull", "Push"], ["Pull"]))
def test_a_task_that_is_killed_and_retried_decides_nothing_twice(
    spark: SparkSession, namespace: Namespace, tmp_path: Path, kind: str
) -> None:
    """The rows that the first attempt sent have run, and their keys are free, when the second attempt sends them again."""
    seen: list[tuple[str, str, int]] = []
    folder, command = str(tmp_path), {"Pull": Pull, "Push": Push}[kind]

    def command_of(row: dict[str, Any]) -> Any:
        context = TaskContext.get()
        mark = Path(folder, f"fell-{0 if context is None else context.partitionId()}")
        if row["seq"] == EACH - 10 and not mark.exists():
            mark.touch()
            until(lambda: namespace.depth() == 0 and Path(folder, "sent").exists())
            os.kill(os.getpid(), signal.SIGKILL)
        return command(shop=row["shop"], seq=row["seq"])

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    try:
        with working(namespace, handlers(seen)):
            (tmp_path / "sent").touch()
            report = dispatched(namespace, rows(spark), None, mapper=command_of, entity="shop", partitions=2, batch_size=5)
            assert len(list(tmp_path.glob("fell-*"))) == 2, "both tasks were killed"
            assert report.resent > 0
            agree(report, seen)
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")


def test_debounced_rows_are_pending_until_it_is_quiet(spark: SparkSession, namespace: Namespace) -> None:
    report = dispatched(namespace, rows(spark), Quiet)
    assert (report.added, report.replaced, report.folded) == (240, 236, 0)
    ledger = reconcile(report)
    assert ledger.ok
    assert {name: count for name, count in ledger.counts.items() if count} == {"pending": 4, "superseded": 236}
