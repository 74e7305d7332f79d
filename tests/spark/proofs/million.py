"""A million rows for a hundred thousand entities through two standalone workers, drained and reconciled."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from command_bus.spark import dispatch_dataframe
from tests.spark.cluster import Cluster, Footprint, session
from tests.spark.drain import draining
from tests.spark.proofs.claims import Proof
from tests.spark.trucks import Move, Namespace, journeys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["prove"]

MOST = 400  # MB of an executor's Python process


def prove(proof: Proof, cluster: Cluster, namespace: Namespace, *, rows: int, entities: int, workers: int) -> None:
    settings = {"spark.sql.shuffle.partitions": "16", "spark.executor.memory": "1g"}
    with session(cluster, "million", **settings) as spark, Footprint(cluster) as footprint:
        with proof.timed("session and a first job"):
            assert spark.range(1000).repartition(2).count() == 1000
        frame = journeys(spark, entities, rows // entities, partitions=8)
        with draining(namespace, workers):
            report = dispatch_dataframe(
                frame, Move, key=["truck", "seq"], order_by="seq", dispatch_id="million", outcomes="1 day", **namespace.options
            )
            print(f"  {report}")
            with proof.timed("drained after the last row was written"):
                _drained(namespace)
        proof.figure("rows dispatched per second, beside the workers", round(report.rows / report.seconds))
        proof.figure("peak memory of Python workers [MB]", footprint.megabytes("python"))
        proof.figure("peak memory of executor JVMs [MB]", footprint.megabytes("java"))
        proof.claim("executor memory is bounded", 0 < max(footprint.megabytes("python")) < MOST, f"{MOST} MB")
        proof.claim("each row was added once", (report.rows, report.added, report.duplicates) == (rows, rows, 0))
        with proof.timed("checked by SQL"):
            counts = _by_sql(report.commands, report.outcomes())
        for name, count in counts.items():
            proof.figure(name, count)
        proof.claim("each command was completed once", counts["completed"] == rows and counts["outcomes"] == rows)
        proof.claim("none is missing, none is a stranger", counts["missing"] == counts["strangers"] == 0)
        proof.claim("each entity's ran in order, one at a time", counts["out of order"] == 0)
        proof.claim("nothing waits", namespace.depth() == 0)
        _reconciled(proof, report)


def _drained(namespace: Namespace, patience: float = 120.0) -> None:
    """Wait until nothing waits; fail if nothing moves."""
    depth, since = namespace.depth(), time.monotonic()
    while depth:
        time.sleep(0.25)
        now = namespace.depth()
        if now != depth:
            depth, since = now, time.monotonic()
        assert time.monotonic() - since < patience, f"{depth} commands wait and nothing moves"


def _by_sql(commands: DataFrame, outcomes: DataFrame) -> dict[str, int]:
    """Check the outcomes of the rows without the library's reconciliation."""
    ids = commands.select("command_id")
    entry = F.split("entry", "-")
    order = [entry[0].cast("long"), entry[1].cast("long")]
    settled = outcomes.withColumn("seq", F.col("result").cast("long")).cache()
    # One shard: its stream of outcomes has the order in which they came about.
    stories = settled.groupBy("entity").agg(F.sort_array(F.collect_list(F.struct(*order, "seq", "fence"))).alias("story"))
    seqs = F.transform("story", lambda each: each["seq"])
    fences = F.transform("story", lambda each: each["fence"])
    wrong = stories.where(
        (seqs != F.sequence(F.lit(0).cast("long"), F.size(seqs).cast("long") - 1)) | (fences != F.array_sort(fences))
    )
    counts: Any = settled.agg(
        F.count("*").alias("outcomes"),
        F.count_distinct("command_id").alias("commands"),
        F.count_if(F.col("status") == "completed").alias("completed"),
        F.count_distinct("worker").alias("workers"),
    ).first()
    found = {
        **counts.asDict(),
        "missing": ids.join(settled, "command_id", "left_anti").count(),
        "strangers": settled.join(ids, "command_id", "left_anti").count(),
        "out of order": wrong.count(),
    }
    settled.unpersist()
    return found


def _reconciled(proof: Proof, report: Any) -> None:
    """Check them with the library's reconciliation."""
    try:
        from command_bus.spark import reconcile
    except ImportError as error:
        proof.figure("reconcile", f"not there: {error}")
        return
    with proof.timed("reconciled"):
        found = reconcile(report)
        print(f"  {found}")
    counts = {name: count for name, count in found.counts.items() if count}
    proof.claim("reconcile says the same", found.ok and counts == {"completed": report.rows}, counts)
