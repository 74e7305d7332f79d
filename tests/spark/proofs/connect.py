"""Spark Connect: the same calls through a server that has the session; this side has no SparkContext and no RDD."""

from __future__ import annotations

import json
import os
import socket
import sys
import warnings
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from command_bus import InvalidSettings
from command_bus.spark import command_id, dispatch_batch_writer, dispatch_dataframe, reconcile
from tests.spark.conftest import ROOT, SETTINGS
from tests.spark.drain import draining
from tests.spark.presence import what_is_missing
from tests.spark.proofs.claims import Proof
from tests.spark.trucks import Move, Namespace, until

__all__ = ["connect"]

TRUCKS, EACH = 20, 50
ALL = {f"t{truck}": list(range(EACH)) for truck in range(TRUCKS)}
MOVE = f"{Move.__module__}:Move"

PORT = 15002  # of a Connect server that `remote("local")` starts: Spark gives no choice


def connect(proof: Proof, folder: Path, namespace: Namespace) -> None:
    """Write, read, stream and fail."""
    missing = what_is_missing()
    if missing is not None:
        raise SystemExit(f"Spark cannot run here: {missing}")
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", PORT)) == 0:
            raise SystemExit(f"port {PORT} is taken, perhaps by another Spark Connect server")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(ROOT)
    builder = SparkSession.builder.remote("local[2]")
    for name, value in {**SETTINGS, "spark.sql.warehouse.dir": str(folder / "warehouse")}.items():
        builder = builder.config(name, value)
    with proof.timed("session"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Failed to set", UserWarning)  # what the server has taken, the client cannot set again
        spark = builder.getOrCreate()
    try:
        proof.claim("it is Spark Connect", "connect" in type(spark).__module__, type(spark).__module__)
        rows = spark.range(TRUCKS * EACH, numPartitions=3).select(
            F.concat(F.lit("t"), (F.col("id") % TRUCKS).cast("string")).alias("truck"), F.floor(F.col("id") / TRUCKS).cast("long").alias("seq")
        )  # fmt: skip
        with draining(namespace, 1):
            report = dispatch_dataframe(
                rows,
                Move,
                key=["truck", "seq"],
                order_by="seq",
                dispatch_id="d",
                outcomes="1 hour",
                partitions=2,
                **namespace.options,
            )
            print(f"  {report}")
            until(lambda: namespace.depth() == 0, 120)
        found = reconcile(report)
        proof.claim("dispatch_dataframe and reconcile", found.ok and report.outcomes().count() == TRUCKS * EACH, found.counts)
        bare(proof, spark, Namespace(namespace.url))
        streams(proof, spark, Namespace(namespace.url), folder)
        try:
            dispatch_dataframe(rows, f"{MOVE}s", key=["truck", "seq"], order_by="seq", dispatch_id="e", **namespace.options)
        except InvalidSettings as error:
            proof.claim("errors are typed and short", len(str(error)) < 400, str(error)[:100])
    finally:
        spark.stop()


def bare(proof: Proof, spark: SparkSession, namespace: Namespace) -> None:
    """Write and read through `format("command_bus")`."""
    rows = spark.createDataFrame([("a", 1), ("a", 2), (None, 3)], "truck string, seq long").withColumn(
        "command_id", command_id("seq")
    )
    options = {**namespace.options, "command": MOVE, "dispatchId": "bare"}
    for _ in range(2):
        rows.coalesce(1).write.format("command_bus").options(**options).mode("append").save()
    rejects = spark.read.format("command_bus").options(**namespace.options, view="rejects", dispatchId="bare").load().count()
    proof.claim(
        "the bare format writes, once, and reads", (namespace.seqs(), rejects) == ({"a": [1, 2]}, 1), namespace.seqs(), rejects
    )


def streams(proof: Proof, spark: SparkSession, namespace: Namespace, folder: Path) -> None:
    """Write with `writeStream` to the format, and with `foreachBatch`."""
    arrivals = folder / "arrivals"
    arrivals.mkdir()
    (arrivals / "1.json").write_text("\n".join(json.dumps({"truck": "a", "seq": seq}) for seq in range(100)))
    rows = spark.readStream.schema("truck string, seq long").json(str(arrivals))
    named = rows.withColumn("command_id", command_id("truck", "seq"))
    options = {**namespace.options, "command": MOVE, "checkpointLocation": str(folder / "checkpoint-1")}
    query = named.writeStream.format("command_bus").options(**options).trigger(availableNow=True).start()
    proof.claim("writeStream", query.awaitTermination(90) and namespace.seqs() == {"a": list(range(100))}, query.exception())
    other = Namespace(namespace.url)
    write = dispatch_batch_writer(Move, dispatch_id="batches", key=["truck", "seq"], order_by="seq", **other.options)
    stream = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint-2"))
    query = stream.trigger(availableNow=True).start()
    proof.claim("foreachBatch", query.awaitTermination(90) and other.seqs() == {"a": list(range(100))}, query.exception())
