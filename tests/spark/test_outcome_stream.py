"""Outcomes read as a stream."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from redis import Redis

from tests.spark.outcomes import (
    Pay,
    key_of,
    load,
    numbers_in,
    registry_of,
    settle,
)
from tests.spark.trucks import Namespace, until, working


class Streamed:
    """A streaming query over outcomes, which keeps its micro-batches as lists of numbers."""

    def __init__(
        self, spark: SparkSession, namespace: Namespace, folder: Path, after: Callable[[], None] | None = None, **options: Any
    ) -> None:
        self._after = after
        self.batches: list[list[int]] = []
        self.dispatches: Counter[str] = Counter()
        given = {name: str(value) for name, value in options.items()}
        self._frame = spark.readStream.format("command_bus").options(**namespace.options, view="outcomes", **given).load()
        self._folder = folder

    def run(self, **trigger: Any) -> Streamed:
        """Run to the end of what exists."""
        query = self._start(trigger or {"availableNow": True})
        assert query.awaitTermination(60)
        return self

    @contextmanager
    def running(self) -> Iterator[Any]:
        query = self._start({"processingTime": "100 milliseconds"})
        try:
            yield query
        finally:
            query.stop()

    @property
    def numbers(self) -> list[int]:
        return [number for batch in self.batches for number in batch]

    def _start(self, trigger: dict[str, Any]) -> Any:
        def keep(batch: DataFrame, _: int) -> None:
            rows = batch.collect()
            self.batches.append(sorted(numbers_in(rows)))
            self.dispatches.update(row["dispatch_id"] for row in rows)
            if self._after is not None:
                self._after()

        writer = self._frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(self._folder))
        return writer.trigger(**trigger).start()


@pytest.mark.slow
def test_a_limit_bounds_micro_batches_and_a_restart_continues(
    spark: SparkSession, four_shards: Namespace, tmp_path: Path
) -> None:
    load(four_shards, [], "d")
    settle(four_shards, "d", range(900), shard=1)
    settle(four_shards, "d", range(900, 1000), shard=3)
    first = Streamed(spark, four_shards, tmp_path, dispatchId="d", maxOffsetsPerTrigger=400).run()
    assert [len(batch) for batch in first.batches if batch] == [400, 400, 200]
    assert set(range(900, 1000)) < set(first.batches[0]), "the small stream does not wait for the large one"
    assert sorted(first.numbers) == list(range(1000))
    settle(four_shards, "d", range(1000, 1100), shard=1)
    again = Streamed(spark, four_shards, tmp_path, dispatchId="d", maxOffsetsPerTrigger=400).run()
    assert sorted(again.numbers) == list(range(1000, 1100))
    assert Streamed(spark, four_shards, tmp_path, dispatchId="d").run().numbers == []


@pytest.mark.slow
def test_a_failed_micro_batch_is_read_again_unchanged(spark: SparkSession, namespace: Namespace, tmp_path: Path) -> None:
    load(namespace, [], "d")
    settle(namespace, "d", range(100))
    seen: list[list[int]] = []

    def fail(batch: DataFrame, _: int) -> None:
        seen.append(sorted(numbers_in(batch.collect())))
        raise RuntimeError("before the commit")

    frame = spark.readStream.format("command_bus").options(**namespace.options, maxOffsetsPerTrigger="60").load()
    query = frame.writeStream.foreachBatch(fail).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(60)
    settle(namespace, "d", range(100, 150))
    again = Streamed(spark, namespace, tmp_path, maxOffsetsPerTrigger=60).run()
    assert seen == [list(range(60))] == again.batches[:1]
    assert again.numbers == list(range(150))


@pytest.mark.slow
def test_later_dispatches_are_picked_up(spark: SparkSession, namespace: Namespace, tmp_path: Path) -> None:
    streamed = Streamed(spark, namespace, tmp_path)
    with streamed.running() as query, working(namespace, registry_of()):
        for name in ("one", "two"):
            load(namespace, [Pay(account=f"a{number}", amount=number) for number in range(50)], name)
            until(lambda name=name: streamed.dispatches[name] == 50)
        until(lambda: query.lastProgress and query.lastProgress.sources[0].numInputRows == 0)
        source = query.lastProgress.sources[0]
        assert json.loads(source.endOffset) == json.loads(source.latestOffset)
    assert streamed.dispatches == {"one": 50, "two": 50}


@pytest.mark.slow
def test_available_now_reads_what_exists_at_the_start(spark: SparkSession, namespace: Namespace, tmp_path: Path) -> None:
    load(namespace, [], "d")
    settle(namespace, "d", range(100))
    numbers = count(100)
    streamed = Streamed(
        spark, namespace, tmp_path, after=lambda: settle(namespace, "d", range(next(numbers), 110)), maxOffsetsPerTrigger=30
    ).run()
    assert streamed.numbers == list(range(100))


@pytest.mark.slow
def test_a_stream_can_start_at_a_time(spark: SparkSession, namespace: Namespace, tmp_path: Path) -> None:
    load(namespace, [], "d")
    noon = 1_795_262_400_000
    settle(namespace, "d", range(60), at_ms=lambda number: noon + number * 1000)
    begun = Streamed(spark, namespace, tmp_path, startingTimestamp=noon + 40_000, maxOffsetsPerTrigger=7).run()
    assert [batch for batch in begun.batches if batch] == [list(range(40, 47)), list(range(47, 54)), list(range(54, 60))]


@pytest.mark.slow
def test_outcomes_trimmed_unread_fail_the_query_unless_allowed(spark: SparkSession, namespace: Namespace, tmp_path: Path) -> None:
    load(namespace, [], "d")
    settle(namespace, "d", range(100))
    assert len(Streamed(spark, namespace, tmp_path).run().numbers) == 100
    settle(namespace, "d", range(100, 200))
    with Redis.from_url(namespace.url) as client:
        client.xtrim(key_of(namespace, "d"), maxlen=100, approximate=False)
    assert Streamed(spark, namespace, tmp_path / "copy").run().numbers == list(range(100, 200)), "a new query missed nothing"
    with Redis.from_url(namespace.url) as client:
        client.xtrim(key_of(namespace, "d"), maxlen=90, approximate=False)
    with pytest.raises(StreamingQueryException, match="10 outcomes of 'd' were trimmed before this query came to them"):
        Streamed(spark, namespace, tmp_path).run()
    assert Streamed(spark, namespace, tmp_path, failOnDataLoss="false").run().numbers == list(range(110, 200))
    assert Streamed(spark, namespace, tmp_path).run().numbers == []


@pytest.mark.slow
def test_a_restarted_stream_is_read(spark: SparkSession, namespace: Namespace, tmp_path: Path) -> None:
    load(namespace, [], "d")
    settle(namespace, "d", range(10))
    assert len(Streamed(spark, namespace, tmp_path).run().numbers) == 10
    with Redis.from_url(namespace.url) as client:
        client.delete(key_of(namespace, "d"))
    settle(namespace, "d", range(10, 18))
    assert Streamed(spark, namespace, tmp_path).run().numbers == list(range(10, 18))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": "entities"}, "changes in place"),
        pytest.param({"endingTimestamp": "5"}, "a stream does not end", marks=pytest.mark.slow),
        pytest.param({"pushdown": "true"}, "no filters", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_options_of_batches_are_refused_for_streams(
    spark: SparkSession, namespace: Namespace, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    frame = spark.readStream.format("command_bus").options(**namespace.options, **options).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException, match=message):
        query.awaitTermination(60)
