"""Figures have one scope: those of a stream count over all micro-batches, a dry run counts as the dispatch, and no rows use nothing up."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from command_bus import Envelope
from command_bus.spark import (
    DispatchReport,
    PartitionDispatcher,
    Target,
    dispatch_batch_writer,
    dispatch_dataframe,
    dispatch_report,
    reconcile,
)
from command_bus.spark.writing.task_results import PartitionResult
from command_bus.spark.writing.writer import commit_dispatch
from command_bus.transport.ports.bulk import Opening, Version
from tests.spark.trucks import Move, Namespace, journeys
from tests.spark.writes import MOVE, MOVES, ROWS_OF_MOVES, with_ids, write

COUNTED = ("rows", "added", "duplicates", "rejected", "conflicts", "distinct_rejects", "entities")


def figures(report: DispatchReport) -> dict[str, int]:
    return {name: getattr(report, name) for name in COUNTED} | {"shown": report.rejects().count()}


class TestStreams:
    @pytest.mark.slow
    @pytest.mark.parametrize("way", ["by_batch", "by_format"])
    def test_each_figure_counts_over_all_batches(
        self, spark: SparkSession, tmp_path: Path, namespace: Namespace, way: str
    ) -> None:
        for number, loads in enumerate(([1.0, 500.0], [500.0, 500.0, 1.0], [1.0, 1.0])):
            rows = [{"truck": "a", "seq": 10 * number + index, "load": load} for index, load in enumerate(loads)]
            file = tmp_path / "arrivals" / f"{number}.json"
            file.parent.mkdir(exist_ok=True)
            file.write_text("\n".join(map(json.dumps, rows)))
            os.utime(file, (1e9 + number, 1e9 + number))
        arrivals = spark.readStream.schema(MOVES).option("maxFilesPerTrigger", 1).json(str(tmp_path / "arrivals"))
        if way == "by_batch":
            batches = dispatch_batch_writer(Move, dispatch_id="d", key=["truck", "seq"], order_by="seq", **namespace.options)
            stream = arrivals.writeStream.foreachBatch(batches)
        else:
            options = {**namespace.options, "command": MOVE, "dispatchId": "d"}
            stream = with_ids(arrivals).writeStream.format("command_bus").options(**options)
        stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert stream.trigger(availableNow=True).start().awaitTermination(60)
        report = dispatch_report(with_ids(spark.read.schema(MOVES).json(str(tmp_path / "arrivals"))), "d", **namespace.options)
        counted = {"rows": 7, "added": 4, "duplicates": 0, "rejected": 3, "conflicts": 0, "distinct_rejects": 3, "entities": 3}
        assert (figures(report), report.resent) == (counted | {"shown": 3}, 0)
        assert sum(each.rows for each in report.partitions) == 2  # of the last batch
        assert "7 rows, 4 commands for 3 entities, counted batch by batch, 3 rows rejected; " in str(report)
        assert " in the last batch, " in str(report)
        assert report.seconds > 0

    @pytest.mark.slow
    def test_a_replayed_batch_counts_once(self, spark: SparkSession, namespace: Namespace) -> None:
        rows = spark.createDataFrame([("a", 1, 1.0, None), ("a", 1, 1.0, None), ("a", 2, 500.0, None)], MOVES)

        def dispatch(version: int, frame: DataFrame = rows) -> DispatchReport:
            given: Any = {"key": "seq", "order_by": "seq", "dispatch_id": "d", "version": version, **namespace.options}
            return dispatch_dataframe(frame, Move, **given)

        dispatch(0)
        for _ in range(2):
            report = dispatch(1, rows.withColumn("seq", F.col("seq") + 10))
            assert (report.rows, report.added, report.duplicates, report.rejected) == (6, 2, 2, 2)
        assert dispatch(2, rows.where("false")).state == "committed"  # nothing of it is open

    @pytest.mark.slow
    def test_dropped_rows_of_earlier_batches_are_not_missing(self, spark: SparkSession, namespace: Namespace) -> None:
        rows = spark.createDataFrame([("a", seq, 100.0 * (seq % 3)) for seq in range(6)], "truck string, seq long, load double")
        given: Any = {"key": ["truck", "seq"], "order_by": "seq", "dispatch_id": "d", **namespace.options}
        for version, part in enumerate(("seq < 3", "seq >= 3")):
            dispatch_dataframe(rows.where(part), Move, version=version, on_invalid="drop", outcomes="1 day", **given)
        result = reconcile(dispatch_report(with_ids(rows), "d", **namespace.options))
        assert (result.counts["dropped"], result.counts["missing"], result.counts["pending"]) == (2, 0, 4)


class TestDryRuns:
    def dispatch(self, frame: DataFrame, namespace: Namespace, **options: Any) -> DispatchReport:
        return dispatch_dataframe(frame, Move, **{"order_by": "seq", "dispatch_id": "d", **options}, **namespace.options)

    @pytest.mark.slow
    def test_all_rejects_are_counted_and_shown(self, spark: SparkSession, namespace: Namespace) -> None:
        rows = spark.range(5000).selectExpr("concat('t', id % 7) truck", "id seq", "if(id % 2 = 0, 500.0D, 1.0D) load")
        planned = self.dispatch(rows, namespace, key="seq", dry_run=True, partitions=1)
        report = self.dispatch(rows, namespace, key="seq")
        assert figures(planned) == figures(report)
        assert (planned.distinct_rejects, report.distinct_rejects) == (2500, 2500)

    @pytest.mark.parametrize("partitions", [None, 3])
    def test_equal_ids_count_once_wherever_they_are(
        self, spark: SparkSession, namespace: Namespace, partitions: int | None
    ) -> None:
        good = [("a", 1, 1.0), ("b", 1, 1.0), ("c", 1, 2.0), ("a", 2, 2.0), ("a", 2, 2.0), ("q", 5, 1.0)]
        bad = [("z", 3, 500.0), ("y", 3, 500.0), ("z", 3, 500.0), (None, 4, 1.0), (None, 4, 1.0)]
        rows = spark.createDataFrame([(*row, None) for row in good + bad], MOVES).repartition(5)
        planned = self.dispatch(rows, namespace, key="seq", dry_run=True, partitions=partitions)
        assert figures(planned) == figures(self.dispatch(rows, namespace, key="seq", partitions=partitions))
        assert (planned.added, planned.conflicts, planned.entities) == (3, 2, 4)

    def test_a_committed_dispatch_is_answered_as_it_would_be(self, spark: SparkSession, namespace: Namespace) -> None:
        rows = journeys(spark, 2, 3)
        self.dispatch(rows, namespace, key=["truck", "seq"])
        again = self.dispatch(rows, namespace, key=["truck", "seq"], dry_run=True)
        assert (again.state, again.added) == ("already committed", 6)


class TestNoRows:
    """A load that comes too early does not use up its id."""

    def by_frame(self, rows: DataFrame, namespace: Namespace) -> None:
        dispatch_dataframe(rows, Move, key="seq", order_by="seq", dispatch_id="d", **namespace.options)

    def by_format(self, rows: DataFrame, namespace: Namespace) -> None:
        write(with_ids(rows), namespace)

    def by_sql(self, rows: DataFrame, namespace: Namespace) -> None:
        with_ids(rows).createOrReplaceTempView("nightly")
        options = {**namespace.options, "command": MOVE, "dispatchId": "d"}
        given = ", ".join(f"{name} '{value}'" for name, value in options.items())
        rows.sparkSession.sql(f"CREATE OR REPLACE TEMPORARY VIEW bus ({ROWS_OF_MOVES}) USING command_bus OPTIONS ({given})")
        rows.sparkSession.sql("INSERT INTO bus SELECT * FROM nightly")

    def by_partition(self, rows: DataFrame, namespace: Namespace) -> None:
        target = Target.resolve(**namespace.options)
        with PartitionDispatcher(target, dispatch_id="d") as dispatcher:
            dispatcher.dispatch_batch(
                Envelope(Move(truck=row.truck, seq=row.seq), command_id=f"{row.truck}-{row.seq}") for row in rows.collect()
            )
        commit_dispatch(target, Version("d"), Opening(), [dispatcher.result])

    @pytest.mark.parametrize(
        "way", ["by_frame", *(pytest.param(way, marks=pytest.mark.slow) for way in ("by_format", "by_sql", "by_partition"))]
    )
    def test_the_rows_come_later(self, spark: SparkSession, tmp_path: Path, namespace: Namespace, way: str) -> None:
        (tmp_path / "none.json").write_text("")
        run: Callable[[DataFrame, Namespace], None] = getattr(self, way)
        for _ in range(2):
            run(spark.read.schema(MOVES).json(str(tmp_path / "none.json")), namespace)
        run(spark.createDataFrame([("a", seq, 1.0, None) for seq in range(3)], MOVES).coalesce(1), namespace)
        assert namespace.seqs() == {"a": [0, 1, 2]}

    def test_nothing_is_lost_beside_an_open_version(self, namespace: Namespace) -> None:
        target = Target.resolve(**namespace.options)
        assert not commit_dispatch(target, Version("d"), Opening(), [PartitionResult()])
        with PartitionDispatcher(target, dispatch_id="d") as dispatcher:
            result = dispatcher.dispatch_batch([Envelope(Move(truck="a", seq=1), command_id="1")])
        assert (result.added, commit_dispatch(target, Version("d"), Opening(), [result])) == (1, True)
