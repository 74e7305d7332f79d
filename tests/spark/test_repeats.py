"""Repeated dispatches: the same rows add nothing, other rows under an old name are refused, and an empty frame has no rows."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from redis import Redis

from command_bus import DispatchConflict, InvalidSettings
from command_bus.spark import command_id, dispatch_batch_writer, dispatch_dataframe, reconcile
from command_bus.spark.writing.random_ids import random_function_in
from tests.selection import quick
from tests.spark.trucks import Move, Namespace, journeys

MOVE = f"{Move.__module__}:Move"
KEY = ["truck", "seq"]
MOVES = "truck string, seq long, load double, note string"


class Harbour:
    """Files that arrive in a folder, one row each, and a query with a checkpoint that reads them one at a time."""

    def __init__(self, spark: SparkSession, folder: Path, namespace: Namespace) -> None:
        self.spark, self.namespace = spark, namespace
        self.arrivals, self.checkpoint = folder / "arrivals", folder / "checkpoint"
        self.arrivals.mkdir()

    def arrive(self, *numbers: int) -> None:
        for number in numbers:
            file = self.arrivals / f"{number}.json"
            file.write_text(json.dumps({"truck": "a", "seq": number, "load": 1.0}))
            os.utime(file, (1e9 + number, 1e9 + number))

    def keep(self) -> Callable[[], None]:
        """Save the checkpoint, and return a function that restores it."""
        saved = self.checkpoint.with_name("saved")
        shutil.copytree(self.checkpoint, saved)

        def restore() -> None:
            shutil.rmtree(self.checkpoint)
            shutil.copytree(saved, self.checkpoint)

        return restore

    @property
    def rows(self) -> DataFrame:
        return self.spark.readStream.schema(MOVES).option("maxFilesPerTrigger", 1).json(str(self.arrivals))

    def by_batch(self, keep: str = "true") -> None:
        write = dispatch_batch_writer(Move, dispatch_id="trucks", key=KEY, order_by="seq", **self.namespace.options)
        stream = self.rows.where(keep).writeStream.foreachBatch(write).option("checkpointLocation", str(self.checkpoint))
        assert stream.trigger(availableNow=True).start().awaitTermination(60)

    def by_format(self, keep: str = "true") -> None:
        rows = self.rows.where(keep).withColumn("command_id", command_id(*KEY))
        stream = rows.writeStream.format("command_bus").options(**self.namespace.options, command=MOVE)
        stream = stream.option("checkpointLocation", str(self.checkpoint))
        assert stream.trigger(availableNow=True).start().awaitTermination(60)

    @property
    def seqs(self) -> list[int]:
        return self.namespace.seqs().get("a", [])


@pytest.fixture
def harbour(spark: SparkSession, tmp_path: Path, namespace: Namespace) -> Harbour:
    return Harbour(spark, tmp_path, namespace)


WAYS = pytest.mark.parametrize("way", quick(["by_batch", "by_format"], ["by_format"]))


class TestNothing:
    """A micro-batch that a filter leaves empty."""

    @WAYS
    @pytest.mark.parametrize(
        "empty", [[0, 1, 2, 3], *(pytest.param(some, marks=pytest.mark.slow) for some in ([0], [1], [3], [0, 1]))], ids=str
    )
    def test_an_empty_micro_batch_never_fails_a_query(self, harbour: Harbour, way: str, empty: list[int]) -> None:
        run, keep = getattr(harbour, way), f"seq not in ({', '.join(map(str, empty))})"
        harbour.arrive(0, 1, 2, 3)
        run(keep)
        left = [seq for seq in range(4) if seq not in empty]
        assert harbour.seqs == left
        harbour.arrive(4)
        run(keep)  # started again, as after a crash
        assert harbour.seqs == [*left, 4]

    def test_a_query_with_only_empty_batches(self, harbour: Harbour, namespace: Namespace) -> None:
        harbour.arrive(0, 1)
        harbour.by_batch("false")
        assert harbour.seqs == []
        harbour.arrive(2)
        harbour.by_batch()
        assert harbour.seqs == [2]

    def test_a_frame_without_rows_is_dispatched(self, spark: SparkSession, namespace: Namespace) -> None:
        rows = journeys(spark, 2, 5)

        def dispatch(frame: DataFrame, **options: Any) -> Any:
            return dispatch_dataframe(frame, Move, key=KEY, order_by="seq", dispatch_id="d", **options, **namespace.options)

        report = dispatch(rows.where("false"))
        assert (report.state, report.rows, report.added) == ("empty", 0, 0)
        assert [each.collect() for each in (report.rejects(), report.outcomes(), report.dead_letters(), report.pending())] == [
            []
        ] * 4
        ledger = reconcile(report)
        assert (ledger.ok, ledger.settled, sum(ledger.counts.values())) == (True, True, 0)
        assert dispatch(rows).added == 10
        batch = dispatch_dataframe(
            rows.where("false"), Move, key=KEY, order_by="seq", dispatch_id="v", version=3, **namespace.options
        )
        assert (batch.state, batch.rows) == ("empty", 0)


class TestOtherRows:
    """Rows that would be lost silently: their version was committed with others."""

    @pytest.mark.promise("Other rows are noticed")
    @WAYS
    def test_a_restored_checkpoint_is_noticed(self, harbour: Harbour, way: str) -> None:
        run = getattr(harbour, way)
        harbour.arrive(1)
        run()
        restore = harbour.keep()
        harbour.arrive(2, 3)
        run()
        assert harbour.seqs == [1, 2, 3]
        restore()
        for number in (2, 3):
            (harbour.arrivals / f"{number}.json").unlink()
        harbour.arrive(4, 5)
        with pytest.raises(StreamingQueryException) as caught:
            run()
        text = str(caught.value)
        assert "DispatchConflict" in text
        assert "micro-batch 1 was committed before, with other rows: as many rows (1), but with other command ids" in text
        assert "old checkpoint" in text
        assert harbour.seqs == [1, 2, 3]

    @pytest.mark.slow
    @WAYS
    def test_a_restored_checkpoint_with_the_same_rows_adds_nothing(self, harbour: Harbour, way: str) -> None:
        run = getattr(harbour, way)
        harbour.arrive(1)
        run()
        restore = harbour.keep()
        harbour.arrive(2, 3)
        run()
        restore()
        harbour.arrive(4)
        run()
        assert harbour.seqs == [1, 2, 3, 4]

    @pytest.mark.slow
    def test_rows_instead_of_an_empty_batch_are_noticed(self, harbour: Harbour) -> None:
        harbour.arrive(1)
        harbour.by_batch()
        restore = harbour.keep()
        harbour.arrive(2, 3)
        harbour.by_batch("seq <> 2")
        restore()
        with pytest.raises(StreamingQueryException, match="0 rows then, 1 now"):
            harbour.by_batch()

    @pytest.mark.promise("Other rows are noticed")
    @pytest.mark.slow
    def test_a_second_insert_of_other_rows_is_noticed(self, spark: SparkSession, namespace: Namespace) -> None:
        rows = journeys(spark, 2, 5).withColumn("command_id", command_id(*KEY))

        def write(frame: DataFrame) -> None:
            options = {**namespace.options, "command": MOVE, "dispatchId": "d"}
            frame.coalesce(1).sortWithinPartitions("seq").write.format("command_bus").options(**options).mode("append").save()

        write(rows)
        write(rows.withColumn("note", F.lit("of another time")))  # rows are compared by ids, not by content
        for other in (rows.where("seq < 3"), rows.withColumn("command_id", F.concat("command_id", F.lit("x")))):
            with pytest.raises(AnalysisException, match="DispatchConflict: dispatch 'd' was committed before, at 20"):
                write(other)
        assert namespace.depth() == 10

    @pytest.mark.promise("Other rows are noticed")
    @pytest.mark.slow
    def test_another_frame_under_an_old_name_is_refused(
        self, spark: SparkSession, namespace: Namespace, caplog: pytest.LogCaptureFixture
    ) -> None:
        rows = journeys(spark, 4, 25)

        def dispatch(frame: DataFrame, **options: Any) -> Any:
            given: dict[str, Any] = {"key": KEY, "order_by": "seq", "dispatch_id": "d", **namespace.options, **options}
            return dispatch_dataframe(frame, given.pop("command", Move), **given)

        first = dispatch(rows, partitions=3)
        with caplog.at_level(logging.WARNING, "command_bus.spark"):
            again = dispatch(rows.repartition(7).withColumn("unread", F.lit(1)), partitions=2)
        assert (again.state, again.added) == ("already committed", 100)
        assert again.committed_at is not None
        assert abs(again.committed_at - datetime.now(UTC)) < timedelta(minutes=5)
        said = f"dispatch 'd' already committed at {again.committed_at:%Y-%m-%d %H:%M:%S} UTC, this time nothing was added; what it was: 100 rows"
        assert str(again).startswith(said)
        assert any("was sent before, it was committed at" in each.message for each in caplog.records)
        assert first.state == "committed"
        other = rows.withColumn("seq", F.col("seq") + 100)
        for frame, options, text in (
            (rows.limit(99), {}, "100 rows then, 99 now"),
            (other, {}, "as many rows (100), but with other command ids"),
            (
                rows.withColumn("why", F.lit("x")),
                {"command": "tests.spark.trucks:Stop"},
                "the command was Move then, it is Stop now",
            ),
            (rows.withColumn("load", F.col("load").cast("int")), {}, "columns then: load double; now: load int32"),
        ):
            with pytest.raises(DispatchConflict) as caught:
                dispatch(frame, **options)
            assert text in str(caught.value)
            assert "Give other rows a dispatch id of their own" in str(caught.value)
        assert namespace.depth() == 100

    def test_a_commit_of_an_older_release_is_compared_by_rows(self, spark: SparkSession, namespace: Namespace) -> None:
        rows = journeys(spark, 4, 25)

        def dispatch(frame: DataFrame) -> Any:
            return dispatch_dataframe(frame, Move, key=KEY, order_by="seq", dispatch_id="d", **namespace.options)

        dispatch(rows)
        with Redis.from_url(namespace.url) as client:
            assert client.delete(f"{{{namespace.name}:0}}:b:d:rows")
        assert dispatch(rows).state == "already committed"
        with pytest.raises(DispatchConflict, match="100 rows then, 50 now"):
            dispatch(rows.limit(50))


class TestNames:
    """Unsuitable names of dispatches and ids of rows are refused."""

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"dispatch_id": None}, "dispatch_id = None: name this dispatch"),
            ({"dispatch_id": " "}, "dispatch_id = ' ': name this dispatch"),
            ({"dispatch_id": 7}, "dispatch_id = 7: name this dispatch"),
            ({"outcomes": 7}, "outcomes = 7: give how long, as a timedelta or a text such as '7 days'"),
            ({"outcomes": True}, "outcomes = True: give how long"),
            ({"outcomes": "soon"}, "outcomes = 'soon' is no duration"),
            ({"outcomes": timedelta(days=-1)}, "is no time at all"),
            ({"remember_for": None}, "rememberFor = None: give how long"),
            ({"max_rejects": "1"}, "max_rejects = '1': give a whole number of rows, or a share"),
            ({"max_rejects": float("nan")}, "max_rejects = nan: give a whole number of rows, or a share"),
            ({"max_rejects": True}, "max_rejects = True: give a whole number of rows, or a share"),
            ({"max_rejects": 1.5}, "max_rejects = 1.5: give a whole number of rows, or a share"),
            ({"max_rejects": -1}, "maxRejects = -1 is a whole number"),
            ({"partitions": 0}, "partitions = 0: give a number of tasks, at least 1"),
            ({"partitions": "2"}, "partitions = '2': give a number of tasks"),
            ({"partitions": True}, "partitions = True: give a number of tasks"),
            ({"id_namespace": "x"}, "id_namespace = 'x': give a UUID"),
            ({"dry_run": "no"}, "dry_run = 'no': give True or False"),
            ({"command": 5}, "command = 5: give its class"),
        ],
    )
    def test_wrong_names_are_refused(
        self, spark: SparkSession, namespace: Namespace, arguments: dict[str, Any], text: str
    ) -> None:
        given: Any = {"command": Move, "key": "seq", "order_by": "seq", "dispatch_id": "d", **arguments, **namespace.options}
        with pytest.raises(InvalidSettings) as caught:
            dispatch_dataframe(journeys(spark, 1, 2), **given)
        assert text in str(caught.value)

    @pytest.mark.parametrize(
        "chance", ["uuid()", "monotonically_increasing_id()", "rand()", "concat(truck, spark_partition_id())"]
    )
    def test_random_ids_are_refused(self, spark: SparkSession, namespace: Namespace, chance: str) -> None:
        named = journeys(spark, 2, 5).withColumn("row", F.expr(chance))
        ways: list[tuple[DataFrame, Any]] = [
            (named, "row"),
            (named.withColumn("command_id", F.concat(F.lit("x"), F.col("row"))).repartition(2), None),
            (journeys(spark, 2, 5), F.expr(chance)),
            (named.groupBy("truck", "seq", "load").agg(F.first("row").alias("row")).where("truck is not null"), "row"),
        ]
        for frame, key in ways[:3]:
            with pytest.raises(InvalidSettings, match=r"the command ids are made by \w+\(\)"):
                dispatch_dataframe(frame, Move, key=key, order_by="seq", dispatch_id="d", **namespace.options)
        assert namespace.depth() == 0

    @pytest.mark.slow
    def test_random_columns_outside_the_id_are_allowed(self, spark: SparkSession, namespace: Namespace, tmp_path: Path) -> None:
        rows = journeys(spark, 2, 5).withColumn("row", F.expr("uuid()")).withColumn("load", F.rand())
        report = dispatch_dataframe(
            rows.where(F.rand() >= 0), Move, key=KEY, order_by="seq", dispatch_id="d", **namespace.options
        )
        assert report.added == 10
        rows.write.parquet(str(tmp_path / "kept"))  # there they are what they are
        kept = spark.read.parquet(str(tmp_path / "kept"))
        assert dispatch_dataframe(kept, Move, key="row", order_by="seq", dispatch_id="e", **namespace.options).added == 10

    def test_plans_are_parsed(self) -> None:
        head = "== Parsed Logical Plan ==\nProject [uuid(Some(1)) AS x#1]\n== Optimized Logical Plan ==\n"
        assert (
            random_function_in(
                f"{head}Project [concat(a, b#7) AS id#9]\n+- Project [uuid(Some(3)) AS b#7, c#8]\n== Physical Plan ==\n"
            )
            == "uuid"
        )
        assert (
            random_function_in(
                f"{head}Project [concat(a, c#8) AS id#9]\n+- Project [uuid(Some(3)) AS b#7, c#8]\n== Physical Plan ==\n"
            )
            is None
        )
        assert random_function_in("something else") is None
