"""Order after joins on the entity and with skew, at a size where many tasks write at a time; before handlers and after them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from command_bus.spark import dispatch_dataframe, reconcile
from tests.spark.cluster import Cluster, session
from tests.spark.drain import draining
from tests.spark.proofs.claims import Proof
from tests.spark.trucks import Move, Namespace, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["order"]

TRUCKS = 100
ADAPTIVE = "spark.sql.adaptive.enabled"
SKEW = {
    ADAPTIVE: "true",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "200KB",
    "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "0.1",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "100KB",
}
CASES = {
    "left join": ("left", {ADAPTIVE: "true"}),
    "left semi join": ("left_semi", {ADAPTIVE: "true"}),
    "left join, not adaptive": ("left", {ADAPTIVE: "false"}),
    "inner join, skewed partitions split": ("inner", SKEW),
    "left join, skewed partitions split": ("left", SKEW),
}


def order(proof: Proof, cluster: Cluster, namespace: Namespace, *, rows: int) -> None:
    """Dispatch rows that were joined on the entity, check the mailboxes, then let workers run the commands."""
    with session(cluster, "order") as spark:
        for name, (how, settings) in CASES.items():
            here = Namespace(namespace.url)
            for setting in {ADAPTIVE: "true", **SKEW}:
                spark.conf.unset(setting)
            for setting, value in settings.items():
                spark.conf.set(setting, value)
            report = dispatch_dataframe(
                _joined(spark, rows, how), Move, key=["truck", "seq"], order_by="seq", dispatch_id="d", outcomes="1 hour",
                **here.options,
            )  # fmt: skip
            print(f"  {name}: {report}", flush=True)
            seqs = here.seqs()
            wrong = [truck for truck, numbers in seqs.items() if numbers != sorted(numbers)]
            proof.claim(f"{name}: several tasks wrote", len(report.partitions) > 1, len(report.partitions))
            proof.claim(f"{name}: an entity belongs to one task", report.entities == len(seqs) == TRUCKS, report.entities)
            proof.claim(f"{name}: no mailbox is out of order", not wrong, f"{len(wrong)} of {len(seqs)}")
            with draining(here, 2):
                until(lambda: here.depth() == 0, 300)  # noqa: B023 - it is waited for here
            found = reconcile(report, timeout=60)
            proof.claim(f"{name}: and no handler saw another order", found.ok, found.counts)


def _joined(spark: SparkSession, rows: int, how: str) -> DataFrame:
    number = F.col("id")
    fact = spark.range(rows, numPartitions=4).select(
        F.concat(F.lit("t"), (number % TRUCKS).cast("string")).alias("truck"),
        F.floor(number / TRUCKS).cast("long").alias("seq"),
        F.sha2(number.cast("string"), 512).alias("note"),
    )
    few = spark.createDataFrame([(f"t{truck}", 1.0) for truck in range(TRUCKS)], "truck string, load double")
    return fact.join(few, "truck", how)
