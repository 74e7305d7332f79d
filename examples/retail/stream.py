"""Spark's part: the query that turns arriving files into commands, and what the result must be.

Little is judged on the way: the command's own model decides which row is a purchase. The number of discs is cast, NULL if it is none;
the day gets the hyphens that the model's `date` wants, where it looks like a day at all; the dollars stay the text that they are.

Order: a stream cannot be sorted. A slice is one file in order of time, one file is read by one task, and `sequenceColumn` has the bus
refuse whatever would come behind its customer's last line nevertheless.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from command_bus.spark import Reconciliation, command_id, reconcile
from examples.retail.commands import RecordPurchase
from examples.retail.table import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from examples.flights.stage import Stage

__all__ = ["account", "bought", "purchases", "read", "start", "totals", "weekly"]

_SCHEMA = "line INT, customer STRING, date STRING, discs STRING, dollars STRING"
_COMMAND = f"{RecordPurchase.__module__}:{RecordPurchase.__qualname__}"


def purchases(rows: DataFrame) -> DataFrame:
    """Return the fields of the command, one row per line, and the command's id."""
    return rows.select(
        command_id("line").alias("command_id"),
        "customer",
        "line",
        F.regexp_replace("date", r"^(\d{4})(\d{2})(\d{2})$", "$1-$2-$3").alias("day"),
        F.col("discs").try_cast("int").alias("discs"),
        "dollars",
    )


def start(spark: SparkSession, arrivals: Path, checkpoint: Path, stage: Stage, backlog: int) -> StreamingQuery:
    """Start the query, or go on where its checkpoint says: one slice per micro-batch, at most `backlog` commands waiting."""
    slices = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).csv(str(arrivals))
    options = {
        "url": stage.url,
        "namespace": stage.settings.namespace,
        "command": _COMMAND,
        "sequenceColumn": "line",
        "maxBacklog": str(backlog),
        "outcomes": "1 hour",
        "checkpointLocation": str(checkpoint),
    }
    return purchases(slices).writeStream.format("command_bus").options(**options).queryName("purchases").start()


def account(spark: SparkSession, arrivals: Path, query_id: str, stage: Stage) -> Reconciliation:
    """Compare what was dispatched with its outcomes: all slices, read once more, beside the outcomes of the query's dispatch."""
    return reconcile(
        dispatch_id=f"stream-{query_id}",
        commands=purchases(spark.read.schema(_SCHEMA).csv(str(arrivals))),
        entity_column="customer",
        order_by="line",
        url=stage.url,
        namespace=stage.settings.namespace,
    )


def bought(spark: SparkSession, rows: Path, customers: list[str] | None) -> DataFrame:
    """Return what all or some customers must have in the end: the table without double bookings, as numbers.

    It reads the table itself and not the slices, and shares nothing with the command, its model or its handler.
    """
    part = F.split(F.trim("value"), r"\s+")
    columns = [part[place].alias(name) for place, name in enumerate(COLUMNS[1:])]
    lines = spark.read.text(str(rows)).where("trim(value) NOT LIKE 'customer_id%'").select(*columns)
    if customers is not None:
        lines = lines.where(F.col("customer").isin(customers))
    return lines.dropDuplicates().select(
        "customer",
        F.to_date("date", "yyyyMMdd").alias("day"),
        F.col("discs").cast("long"),
        (F.col("dollars").cast("decimal(10,2)") * 100).cast("long").alias("cents"),
    )


def totals(purchases: DataFrame) -> dict[str, tuple[int, int, int]]:
    """Return purchases, discs and cents of each customer."""
    rows = purchases.groupBy("customer").agg(
        F.count("*").alias("purchases"), F.sum("discs").alias("discs"), F.sum("cents").alias("cents")
    )
    return {row["customer"]: (row["purchases"], row["discs"], row["cents"]) for row in rows.collect()}


def weekly(purchases: DataFrame) -> list[tuple[float, float]]:
    """Return the dollars of each week from the first day on, and the share that customers spent on the day of their first purchase."""
    first_day = F.min("day").over(Window.partitionBy("customer"))
    week = F.floor(F.datediff("day", F.lit("1997-01-01").cast("date")) / 7)
    rows = (
        purchases.withColumn("new", F.col("day") == first_day)
        .groupBy(week.alias("week"))
        .agg((F.sum("cents") / 100).alias("dollars"), (F.sum(F.when(F.col("new"), F.col("cents"))) / 100).alias("new"))
    )
    weeks = {row["week"]: (float(row["dollars"]), float(row["new"] or 0)) for row in rows.collect()}
    return [weeks.get(number, (0.0, 0.0)) for number in range(max(weeks, default=-1) + 1)]


def read(spark: SparkSession, view: str, query_id: str, stage: Stage) -> list[dict[str, Any]]:
    """Read the rows of a view of the query's dispatch."""
    reader = spark.read.format("command_bus").options(url=stage.url, namespace=stage.settings.namespace)
    rows = reader.options(view=view, dispatchId=f"stream-{query_id}").load().collect()
    return [row.asDict() for row in rows]
