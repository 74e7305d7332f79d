"""Reading the view `outcomes` in batches: partitions, bounds, filters, errors."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import EqualTo, GreaterThan, IsNotNull, LessThanOrEqual
from redis import Redis

from command_bus.spark.reading.reader import PushdownReader, reader_of
from command_bus.spark.reading.views import schema_of
from tests.spark.outcomes import (
    DAY,
    Pay,
    key_of,
    load,
    numbers_in,
    read,
    registry_of,
    settle,
    settled,
)
from tests.spark.trucks import Namespace, working


def test_each_command_has_an_outcome(spark: SparkSession, four_shards: Namespace) -> None:
    load(
        four_shards,
        [Pay(account=f"a{number % 5}", amount=number) for number in range(12)]
        + [Pay(account="a9", amount=-4), Pay(account="a9", amount=13)],
    )
    before = datetime.now(UTC) - timedelta(minutes=1)
    with working(four_shards, registry_of()):
        settled(four_shards)
    rows = {row["command_id"]: row for row in read(spark, four_shards, dispatchId="d").collect()}
    assert len(rows) == 14
    assert {rows[f"c{number}"]["status"] for number in range(12)} == {"completed"}
    assert [rows[f"c{number}"]["result"] for number in range(12)] == [str(number * 2) for number in range(12)]
    denied, unlucky = rows["c12"], rows["c13"]
    assert (denied["status"], denied["error_type"], denied["error_message"]) == ("rejected", "poor", "no money")
    assert json.loads(denied["result"]) == {"short": 4}
    assert (unlucky["status"], unlucky["attempt"], unlucky["error_type"]) == ("dead_lettered", 2, "ValueError")
    assert (unlucky["error_message"], unlucky["result"]) == ("unlucky", None)
    for row in rows.values():
        assert (row["dispatch_id"], row["command"], row["entity_type"]) == ("d", "Pay", "account")
        assert (
            before
            <= row["accepted_at"].replace(tzinfo=UTC)
            <= row["started_at"].replace(tzinfo=UTC)
            <= row["finished_at"].replace(tzinfo=UTC)
        )
        assert row["worker"]
        assert row["fence"] > 0
    fences: dict[str, list[int]] = {}
    for row in sorted(rows.values(), key=lambda row: tuple(map(int, row["message"].split("-")))):
        fences.setdefault(row["entity"], []).append(row["fence"])
    assert all(sorted(each) == each for each in fences.values()), "an entity's commands started in the order of acceptance"
    assert len({row["shard"] for row in rows.values()}) > 1


def test_all_dispatches_are_read_unless_one_is_named(spark: SparkSession, namespace: Namespace) -> None:
    for name in ("one", "two:{}\n%", "three"):
        load(namespace, [Pay(account=name, amount=1)], name)
    with working(namespace, registry_of()):
        settled(namespace)
    assert {row["dispatch_id"] for row in read(spark, namespace).collect()} == {"one", "two:{}\n%", "three"}
    assert [row["dispatch_id"] for row in read(spark, namespace, dispatchId="two:{}\n%").collect()] == ["two:{}\n%"]


def test_outcomes_are_read_once_in_the_requested_number_of_tasks(spark: SparkSession, four_shards: Namespace) -> None:
    load(four_shards, [], "d")
    start = 1_795_000_000_000
    for shard in range(4):  # three bursts, days apart
        settle(
            four_shards,
            "d",
            range(shard * 3000, shard * 3000 + 3000),
            shard=shard,
            at_ms=lambda number: start + number % 3000 // 1000 * DAY + number,
        )
    frame = read(spark, four_shards, dispatchId="d", minPartitions=10, pageSize=100)
    assert frame.rdd.getNumPartitions() >= 10
    assert sorted(numbers_in(frame.collect())) == list(range(12_000))
    sizes = [row["count"] for row in frame.groupBy(F.spark_partition_id()).count().collect()]
    assert max(sizes) <= 12_000 / 10 * 2
    assert read(spark, four_shards, dispatchId="d").rdd.getNumPartitions() == 1


def test_a_task_reads_what_existed_at_planning(namespace: Namespace) -> None:
    load(namespace, [], "d")
    settle(namespace, "d", range(100))
    reader = reader_of({**namespace.options, "pagesize": "7"})
    parts = reader.partitions()
    settle(namespace, "d", range(100, 200))
    first, again = (
        [row["command_id"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()] for _ in range(2)
    )
    assert first == again == [f"c{number}" for number in range(100)]


def test_timestamps_include_the_start_and_exclude_the_end(spark: SparkSession, namespace: Namespace) -> None:
    load(namespace, [], "d")
    noon = 1_795_262_400_000
    settle(namespace, "d", range(60), at_ms=lambda number: noon + number * 1000)

    def found(**bounds: Any) -> list[int]:
        return numbers_in(read(spark, namespace, **bounds).collect())

    assert found(startingTimestamp=noon + 10_000, endingTimestamp=noon + 12_000) == [10, 11]
    assert found(startingTimestamp="2026-11-21T12:00:58Z") == [58, 59]
    assert found(endingTimestamp="2026-11-21T13:00:02+01:00") == [0, 1]
    assert found(startingTimestamp=noon + DAY) == found(endingTimestamp=noon - DAY) == []


def test_a_view_with_other_columns_is_refused(spark: SparkSession, namespace: Namespace) -> None:
    reader = spark.read.format("command_bus").options(**namespace.options, view="entities")
    with pytest.raises(AnalysisException, match="InvalidSettings: a view has columns of its own \\(entity_type, entity, mailbox"):
        reader.schema("entity string").load().collect()
    assert reader.schema(schema_of("entities")).load().collect() == []


def test_filters_are_pushed_down_if_allowed(spark: SparkSession, namespace: Namespace) -> None:
    noon = 1_795_262_400_000
    for name in ("a", "b", "c"):
        load(namespace, [], name)
        settle(namespace, name, range(30), at_ms=lambda number: noon + number * 1000)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")

    def found(condition: str, view: str = "outcomes") -> list[Row]:
        return (
            read(spark, namespace, view, pushdown="true").where(condition).collect()
        )  # each from a DataFrame of its own: see docs

    try:
        rows = found(
            "dispatch_id in ('a', 'b', 'x') and attempt = 1 and finished_at > timestamp '2026-11-21 12:00:05' "
            "and finished_at <= timestamp '2026-11-21 12:00:07'"
        )
        assert sorted((row["dispatch_id"], row["command_id"]) for row in rows) == [
            ("a", "c6"), ("a", "c7"), ("b", "c6"), ("b", "c7")
        ]  # fmt: skip
        assert [row["dispatch_id"] for row in found("dispatch_id = 'c' and command_id = 'c3'")] == ["c"]
        assert found("dispatch_id = 'x'") == found("dispatch_id = 'a' and dispatch_id = 'b'") == []
        assert len(found("1 = 1")) == 90
        assert [row["dispatch_id"] for row in found("dispatch_id = 'b'", "dispatches")] == ["b"]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert read(spark, namespace).where("dispatch_id = 'a'").count() == 30, "and without it Spark filters"


def test_pushed_filters_reduce_the_read(namespace: Namespace) -> None:
    noon = 1_795_262_400_000
    for name in ("a", "b"):
        load(namespace, [], name)
        settle(namespace, name, range(30), at_ms=lambda number: noon + number * 1000)
    reader = reader_of({**namespace.options, "pushdown": "true"})
    assert isinstance(reader, PushdownReader)
    moment = datetime(2026, 11, 21, 12, tzinfo=UTC)
    filters = [
        EqualTo(("dispatch_id",), "b"), GreaterThan(("finished_at",), moment + timedelta(seconds=5, microseconds=5)),
        LessThanOrEqual(("finished_at",), moment + timedelta(seconds=8)), IsNotNull(("finished_at",)),
    ]  # fmt: skip
    assert list(reader.pushFilters(filters)) == filters[1:], "Spark looks at times again, as it knows microseconds"
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert [(row["dispatch_id"], row["command_id"]) for batch in batches for row in batch.to_pylist()] == [
        ("b", "c5"), ("b", "c6"), ("b", "c7"), ("b", "c8")
    ]  # fmt: skip


def test_trimmed_outcomes_are_reported(spark: SparkSession, namespace: Namespace) -> None:
    load(namespace, [], "d")
    settle(namespace, "d", range(500))
    with Redis.from_url(namespace.url) as client:
        gone = client.xtrim(key_of(namespace, "d"), maxlen=200, approximate=False)
    assert gone == 300
    assert read(spark, namespace, dispatchId="d").count() == 200
    [row] = read(spark, namespace, "dispatches").collect()
    assert (row["outcomes"], row["trimmed"]) == (200, 300)
    with pytest.raises(PySparkException, match="300 outcomes are kept no more"):
        read(spark, namespace, dispatchId="d", failOnDataLoss="true").count()


def test_an_unreadable_record_is_a_row(spark: SparkSession, namespace: Namespace) -> None:
    load(namespace, [], "d")
    settle(namespace, "d", range(2))
    with Redis.from_url(namespace.url) as client:
        client.xadd(key_of(namespace, "d"), {"r": b"\x92\x02x"})
    assert Counter(row["status"] for row in read(spark, namespace).collect()) == {"completed": 2, "unreadable": 1}


def test_sql_reads_outcomes(spark: SparkSession, namespace: Namespace) -> None:
    load(namespace, [Pay(account="a", amount=1), Pay(account="a", amount=-1)])
    with working(namespace, registry_of()):
        settled(namespace)
    spark.sql(f"""CREATE OR REPLACE TEMPORARY VIEW became USING command_bus
                  OPTIONS (url '{namespace.url}', namespace '{namespace.name}', view 'outcomes', dispatchId 'd')""")
    found = spark.sql("SELECT status, count(*) AS n FROM became GROUP BY status ORDER BY status").collect()
    spark.catalog.dropTempView("became")
    assert found == [Row(status="completed", n=1), Row(status="rejected", n=1)]


@pytest.mark.parametrize(
    ("view", "options", "message"),
    [
        ("outcomes", {"dispatchIdd": "d"}, "did you mean dispatchId"),
        ("outcome", {}, "there are outcomes, deadLetters, rejects, entities, dispatches"),
        ("entities", {"dispatchId": "d"}, "not with entities"),
    ],
)
def test_wrong_options_are_refused_at_once(
    spark: SparkSession, namespace: Namespace, view: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException, match=message):
        read(spark, namespace, view, **options)


@pytest.mark.parametrize("view", ["outcomes", "rejects", "dispatches"])
def test_an_unknown_dispatch_is_an_error_not_an_empty_table(spark: SparkSession, namespace: Namespace, view: str) -> None:
    load(namespace, [], "known")
    with pytest.raises(PySparkException, match="dispatchId = 'unknown': no such dispatch is known") as caught:
        read(spark, namespace, view, dispatchId="unknown").collect()
    assert "\tat " not in str(caught.value)
    assert "secret" not in str(caught.value)
    assert len(str(caught.value)) < 2000


def test_a_dispatch_without_outcomes_is_an_error(spark: SparkSession, namespace: Namespace) -> None:
    load(namespace, [Pay(account="a", amount=1)], keep_ms=0)
    with pytest.raises(PySparkException, match="keeps no outcomes"):
        read(spark, namespace, dispatchId="d").collect()
    assert read(spark, namespace, "rejects", dispatchId="d").collect() == []
    assert read(spark, namespace).collect() == []


def test_outcomes_may_outlive_their_dispatch(spark: SparkSession, namespace: Namespace) -> None:
    settle(namespace, "gone", range(3))
    assert read(spark, namespace, dispatchId="gone").count() == 3


def test_stream_limits_are_refused_for_batches(spark: SparkSession, namespace: Namespace) -> None:
    with pytest.raises(PySparkException, match=r"for spark\.readStream"):
        read(spark, namespace, maxOffsetsPerTrigger=5).collect()


def test_an_empty_namespace_is_empty(spark: SparkSession, namespace: Namespace) -> None:
    for view in ("outcomes", "deadLetters", "rejects", "entities", "dispatches"):
        assert read(spark, namespace, view).collect() == []
