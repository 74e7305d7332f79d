"""A streaming query in a process of its own, for tests that kill it: `python -m tests.spark.stream_app URL NAMESPACE FOLDER CHECKPOINT OPTIONS`."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from command_bus.spark import command_id
from tests.spark.conftest import ROOT, SETTINGS
from tests.spark.trucks import Move, Namespace

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["arrivals", "start"]

MOVES = "truck string, seq long, load double, note string"


def arrivals(spark: SparkSession, folder: str | Path) -> DataFrame:
    """Return the rows of the files that arrive in a folder, one file at a time, with their order: a stream cannot be sorted."""
    rows = spark.readStream.schema(MOVES).option("maxFilesPerTrigger", 1).json(str(folder))
    return rows.withColumn("command_id", command_id("truck", "seq")).repartition(2, "truck")


def start(rows: DataFrame, namespace: Namespace, checkpoint: str | Path, **options: str) -> StreamingQuery:
    """Dispatch them through the format, as far as they have arrived."""
    given = {**namespace.options, "command": f"{Move.__module__}:Move", "checkpointLocation": str(checkpoint), **options}
    return rows.writeStream.format("command_bus").options(**given).trigger(availableNow=True).start()


def main() -> None:
    url, namespace, folder, checkpoint, options = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(ROOT)
    builder = SparkSession.builder.master("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    start(arrivals(spark, folder), Namespace(url, namespace), checkpoint, **json.loads(options)).awaitTermination()


if __name__ == "__main__":
    main()
