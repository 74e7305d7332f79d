"""Order holds behind any plan: joins on the entity, skew, adaptive execution on and off. Large enough for several tasks at a time."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from command_bus import DispatchConflict
from command_bus.spark import PartitionDispatcher, Target, command_id, dispatch_batch_writer, dispatch_dataframe, in_order
from command_bus.spark.options import WriteOptions
from command_bus.spark.writing.ordering import tasks_for_few_rows
from command_bus.spark.writing.writer import PartitionTask, WritePlan
from command_bus.transport.ports.bulk import Version
from tests.spark.test_faults import moves
from tests.spark.trucks import Move, Namespace, until

MOVE = f"{Move.__module__}:Move"
TRUCKS, EACH = 100, 400
ALL = {f"t{truck}": list(range(EACH)) for truck in range(TRUCKS)}
ADAPTIVE = "spark.sql.adaptive.enabled"
SKEW = {
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "100KB",
    "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "0.1",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "50KB",
}


@pytest.fixture
def settings(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    """Restore settings of the session after the test."""
    before = {name: spark.conf.get(name, None) for name in request.param}
    for name, value in request.param.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def fat(spark: SparkSession) -> DataFrame:
    """Return rows that do not shrink in a shuffle: more than 4 MB, so that adaptive execution leaves several partitions of them."""
    number = F.col("id")
    return spark.range(TRUCKS * EACH, numPartitions=4).select(
        F.concat(F.lit("t"), (number % TRUCKS).cast("string")).alias("truck"),
        F.floor(number / TRUCKS).cast("long").alias("seq"),
        F.concat(F.sha2(number.cast("string"), 512), F.sha2((-number).cast("string"), 512)).alias("note"),
    )


def known(spark: SparkSession) -> DataFrame:
    """Return one row per truck. Spark finds out only when it has them that they are so few."""
    return spark.createDataFrame([(f"t{truck}", 1.0) for truck in range(TRUCKS)], "truck string, load double")


JOINS: dict[str, tuple[dict[str, str], str]] = {
    "left": ({ADAPTIVE: "true"}, "left"),
    "left-semi": ({ADAPTIVE: "true"}, "left_semi"),
    "not-adaptive": ({ADAPTIVE: "false"}, "left"),
    "skew-inner": ({ADAPTIVE: "true", **SKEW}, "inner"),
    "skew-left": ({ADAPTIVE: "true", **SKEW}, "left"),
}
QUICK = (("left", True), ("not-adaptive", True), ("skew-inner", False))


@pytest.mark.promise("Rows keep their order")
@pytest.mark.parametrize(
    ("settings", "how", "few"),
    [
        pytest.param(*join, few, id=f"{name}-{few}", marks=() if (name, few) in QUICK else pytest.mark.slow)
        for name, join in JOINS.items()
        for few in (True, False)
    ],
    indirect=["settings"],
)
@pytest.mark.usefixtures("settings")
def test_order_holds_behind_a_join_on_the_entity(
    spark: SparkSession, namespace: Namespace, how: str, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not few:  # Spark chooses the number of tasks
        monkeypatch.setattr("command_bus.spark.dispatch.tasks_for_few_rows", lambda _: None)
    joined = fat(spark).join(known(spark), "truck", how)
    report = dispatch_dataframe(joined, Move, key=["truck", "seq"], order_by="seq", dispatch_id="d", **namespace.options)
    assert len(report.partitions) > 1  # one task keeps any order
    assert (report.added, report.entities) == (TRUCKS * EACH, TRUCKS)
    assert namespace.seqs() == ALL


@pytest.mark.promise("Rows keep their order")
@pytest.mark.parametrize("settings", [{ADAPTIVE: "true", **SKEW}], indirect=True, ids=["skew"])
@pytest.mark.usefixtures("settings")
def test_the_plan_keeps_the_shuffle(spark: SparkSession) -> None:
    arranged = in_order(fat(spark).join(known(spark), "truck", "left"), "truck", "seq")
    joined = arranged.mapInArrow(lambda batches: batches, "truck string, seq long, note string, load double")
    frame: Any = joined._jdf
    execution: Any = frame.queryExecution()
    joined.collect()
    plan = execution.executedPlan().toString()
    final = plan.partition("Initial Plan")[0]
    above = final.partition("Exchange hashpartitioning(xxhash64(command_bus")[0]
    assert above != final, plan
    assert "MapInArrow" in above
    assert "Join" not in above
    assert "local" not in above
    assert re.search(r"Join", final.removeprefix(above)), plan


def test_few_rows_are_sent_by_as_many_tasks_as_there_are_cores(spark: SparkSession) -> None:
    cores = spark.sparkContext.defaultParallelism
    assert cores > 1
    rows = spark.range(TRUCKS * EACH).select(F.col("id").cast("string").alias("truck"), F.col("id").alias("seq"))
    assert tasks_for_few_rows(rows) == cores
    assert tasks_for_few_rows(rows.limit(10)) == 1
    assert tasks_for_few_rows(rows.crossJoin(rows.withColumnRenamed("truck", "other").drop("seq"))) is None


def split(spark: SparkSession) -> DataFrame:
    """Return each truck's rows in all of four partitions."""
    rows = fat(spark).where("seq < 20").withColumn("command_id", command_id("truck", "seq"))
    return rows.repartition(4, "seq").sortWithinPartitions("seq")


@pytest.mark.slow
def test_split_entities_are_refused_if_order_is_kept(spark: SparkSession, namespace: Namespace) -> None:
    options = {**namespace.options, "command": MOVE, "dispatchId": "d"}
    writing = WritePlan.build(WriteOptions.parse({**options, "keepOrder": "true"}), split(spark).schema)
    with pytest.raises(PySparkException) as caught:
        PartitionTask(writing, Version("d")).dispatch(split(spark))
    text = str(caught.value)
    assert re.search(r"DispatchConflict: dispatch 'd': rows of 'truck:t\d+' are in two tasks \(partitions \d and \d\)", text), (
        text
    )
    assert "in_order" in text
    arranged = in_order(split(spark), "truck", "seq", partitions=4)
    other = Namespace(namespace.url)
    arranged.write.format("command_bus").options(**{**options, **other.options}, keepOrder="true").mode("append").save()
    assert other.seqs() == {truck: list(range(20)) for truck in ALL}


def test_split_entities_are_logged_otherwise(spark: SparkSession, namespace: Namespace, caplog: pytest.LogCaptureFixture) -> None:
    def write(rows: DataFrame, dispatch_id: str, **options: str) -> str:
        caplog.clear()
        given = {**namespace.options, "command": MOVE, "dispatchId": dispatch_id, **options}
        PartitionTask(WritePlan.build(WriteOptions.parse(given), rows.schema), Version(dispatch_id)).dispatch(rows)
        return "\n".join(each.message for each in caplog.records if "entities" in each.message)

    with caplog.at_level(logging.WARNING, "command_bus.spark"):
        assert re.search(r"entities had rows in several tasks \([123]00 times\)", write(split(spark), "1"))
        assert not write(split(spark), "2", keepOrder="false")
        assert not write(in_order(split(spark), "truck", "seq", partitions=4), "3")
        free = split(spark).where("seq < 0")
        assert not write(free, "4")


def test_a_repeated_job_may_use_other_partitions(namespace: Namespace) -> None:
    """Each run has a name of its own: entities that a failed attempt had begun in other tasks do not count in the next run."""
    target = Target(**namespace.options)
    for run, partition in (("first", 0), ("second", 1), ("second", 1)):
        with PartitionDispatcher(target, dispatch_id="d", run=run, partition=partition, keep_order=True) as dispatcher:
            dispatcher.dispatch_batch(moves(5))
    other = PartitionDispatcher(target, dispatch_id="d", run="second", partition=2, keep_order=True)
    with pytest.raises(DispatchConflict, match=r"partitions 1 and 2"), other as dispatcher:
        dispatcher.dispatch_batch(moves(6))
    assert namespace.seqs() == {f"t{truck}": list(range(5)) for truck in range(20)}


@pytest.mark.slow
def test_streams_keep_order_behind_a_join(spark: SparkSession, namespace: Namespace, tmp_path: Path) -> None:
    fat(spark).repartition(1).write.parquet(str(tmp_path / "arrivals"))
    stream = spark.readStream.schema(fat(spark).schema).parquet(str(tmp_path / "arrivals"))
    joined = stream.join(known(spark), "truck", "left")
    write = dispatch_batch_writer(Move, dispatch_id="batches", key=["truck", "seq"], order_by="seq", **namespace.options)
    query = joined.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "one")).trigger(availableNow=True)
    assert query.start().awaitTermination(120)
    assert namespace.seqs() == ALL
    other = Namespace(namespace.url)
    named = in_order(joined.withColumn("command_id", command_id("truck", "seq")), "truck")
    plain = named.writeStream.format("command_bus").options(**other.options, command=MOVE, keepOrder="true")
    query = plain.option("checkpointLocation", str(tmp_path / "two")).trigger(availableNow=True)
    assert query.start().awaitTermination(120)
    until(lambda: other.depth() == TRUCKS * EACH)
    assert {truck: sorted(seqs) for truck, seqs in other.seqs().items()} == ALL
