"""A job as a user writes it, run by another Python than this one: `ship_job.py URL NAMESPACE ROWS IMPORT`; Spark's settings come from outside.

With IMPORT it imports `command_bus.spark`, which registers the format; without, Spark has to find the format by itself.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__: list[str] = []


def where(batches: Iterable[Any]) -> Iterator[Any]:
    """Return what executors run and import."""
    import pyarrow as pa

    for batch in batches:
        try:
            import command_bus

            found = str(command_bus.__file__)
        except ImportError as error:
            found = str(error)
        yield pa.RecordBatch.from_pydict({"python": [sys.executable] * batch.num_rows, "library": [found] * batch.num_rows})


def main() -> None:
    url, namespace, rows, imported = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    if imported == "True":
        from importlib import import_module

        import_module("command_bus.spark")
    (found,) = spark.range(1, numPartitions=1).mapInArrow(where, "python string, library string").collect()
    frame = spark.range(int(rows)).select(
        F.concat(F.lit("t"), (F.col("id") % 10).cast("string")).alias("truck"),
        F.floor(F.col("id") / 10).cast("long").alias("seq"),
        F.col("id").cast("string").alias("command_id"),
    )
    problem = ""
    try:
        frame.repartition(2, "truck").sortWithinPartitions("seq").write.format("command_bus").options(
            url=url, namespace=namespace, command="shipped:Carry", dispatchId="ship"
        ).mode("append").save()
    except Exception as error:
        problem = str(error)[:1000]
    print("ANSWER " + json.dumps({**found.asDict(), "problem": problem}))
    spark.stop()


if __name__ == "__main__":
    main()
