"""The base of the other tests of this folder: the session is small and strict, and executors reach code and server."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from redis import Redis

from command_bus.embedded import EmbeddedServer


def test_executors_run_this_python_and_reach_the_server(spark: SparkSession, server: EmbeddedServer) -> None:
    url = server.url

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from tests.spark.presence import __name__ as importable

        with Redis.from_url(url) as client:
            rows = [client.incrby("smoke", batch.num_rows) for batch in batches][-1:]
        yield pa.RecordBatch.from_pydict(
            {"rows": rows, "python": [sys.executable] * len(rows), "module": [importable] * len(rows)}
        )

    counted = spark.range(1000).repartition(2).mapInArrow(count, "rows long, python string, module string").collect()
    assert max(row.rows for row in counted) == 1000
    assert {(row.python, row.module) for row in counted} == {(sys.executable, "tests.spark.presence")}


def test_a_batch_that_does_not_match_its_schema_is_refused(spark: SparkSession) -> None:
    def wrong(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from (pa.RecordBatch.from_pydict({"id": ["text"] * batch.num_rows}) for batch in batches)

    with pytest.raises(Py4JJavaError, match="ARROW_TYPE_MISMATCH"):
        spark.range(10).mapInArrow(wrong, "id long").collect()


def test_times_are_in_utc(spark: SparkSession) -> None:
    assert spark.sql("SELECT timestamp_micros(0) || ''").collect()[0][0] == "1970-01-01 00:00:00"
