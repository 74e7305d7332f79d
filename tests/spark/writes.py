"""Rows of moves, and writing them through the format."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from command_bus.spark import command_id
from tests.spark.trucks import Move, Namespace

__all__ = ["MOVE", "MOVES", "ROWS_OF_MOVES", "rejects_of", "with_ids", "write"]


MOVE = f"{Move.__module__}:Move"
MOVES = "truck string, seq long, load double, note string"
ROWS_OF_MOVES = f"{MOVES}, command_id string"


def write(rows: DataFrame, namespace: Namespace, mode: str = "append", **options: Any) -> None:
    """Write through the format; an option that is None is left out."""
    given = {**namespace.options, "command": MOVE, "dispatchId": "d", **options}
    named = {name: str(value) for name, value in given.items() if value is not None}
    rows.write.format("command_bus").options(**named).mode(mode).save()


def rejects_of(spark: SparkSession, namespace: Namespace, dispatch: str = "d") -> list[Row]:
    reader = spark.read.format("command_bus").options(**namespace.options, view="rejects", dispatchId=dispatch)
    return reader.load().collect()


def with_ids(rows: DataFrame) -> DataFrame:
    return rows.withColumn("command_id", command_id("truck", "seq"))
