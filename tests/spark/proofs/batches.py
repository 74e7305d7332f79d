"""Streams: micro-batches that a filter leaves empty, and a checkpoint that is restored after the dispatch went on."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

from command_bus.spark import command_id, dispatch_batch_writer, in_order
from tests.spark.cluster import Cluster, session
from tests.spark.proofs.claims import Proof
from tests.spark.trucks import Move, Namespace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["batches"]

ROWS = "truck string, seq long"
Start = Callable[["DataFrame", Path], None]


def batches(proof: Proof, cluster: Cluster, namespace: Namespace, folder: Path) -> None:
    """Run both ways of writing a stream."""
    with session(cluster, "batches") as spark:
        for way in ("foreachBatch", "writeStream"):
            here, home = Namespace(namespace.url), folder / way
            (home / "arrivals").mkdir(parents=True)
            _prove(proof, spark, way, _start(way, here), here, home)


def _prove(proof: Proof, spark: SparkSession, way: str, start: Start, namespace: Namespace, home: Path) -> None:
    arrivals, checkpoint = home / "arrivals", home / "checkpoint"

    def run(keep: str) -> None:
        rows = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1).json(str(arrivals))
        start(rows.where(keep), checkpoint)

    for number in range(4):
        _arrive(arrivals, number)
    run("seq not in (0, 2, 3)")
    _arrive(arrivals, 4)
    run("seq not in (0, 2, 3)")
    proof.claim(f"{way}: empty micro-batches fail nothing", namespace.seqs() == {"a": [1, 4]}, namespace.seqs())
    shutil.copytree(checkpoint, home / "saved")
    _arrive(arrivals, 5)
    run("true")
    shutil.rmtree(checkpoint)
    shutil.copytree(home / "saved", checkpoint)
    run("true")
    proof.claim(
        f"{way}: a restored checkpoint before the same rows adds nothing", namespace.seqs() == {"a": [1, 4, 5]}, namespace.seqs()
    )
    shutil.rmtree(checkpoint)
    shutil.copytree(home / "saved", checkpoint)
    (arrivals / "5.json").unlink()
    _arrive(arrivals, 6)
    said = ""
    try:
        run("true")
    except StreamingQueryException as error:
        said = next((line for line in str(error).splitlines() if "DispatchConflict: " in line), str(error)[:300])
    proof.claim(f"{way}: before other rows it is an error", "committed before, with other rows" in said, said[:200])


def _arrive(arrivals: Path, number: int) -> None:
    file = arrivals / f"{number}.json"
    file.write_text(json.dumps({"truck": "a", "seq": number}))
    os.utime(file, (1e9 + number, 1e9 + number))


def _start(way: str, namespace: Namespace) -> Start:
    def by_batch(rows: DataFrame, checkpoint: Path) -> None:
        write = dispatch_batch_writer(Move, dispatch_id="d", key=["truck", "seq"], order_by="seq", **namespace.options)
        stream = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
        stream.trigger(availableNow=True).start().awaitTermination(120)

    def by_format(rows: DataFrame, checkpoint: Path) -> None:
        named = in_order(rows.withColumn("command_id", command_id("truck", "seq")), "truck")
        options = {
            **namespace.options,
            "command": f"{Move.__module__}:Move",
            "keepOrder": "true",
            "checkpointLocation": str(checkpoint),
        }
        named.writeStream.format("command_bus").options(**options).trigger(availableNow=True).start().awaitTermination(120)

    return by_batch if way == "foreachBatch" else by_format
