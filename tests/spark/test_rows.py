"""Rows: keys and instants in any session's zone, values that Python cannot hold, validators that change an entity's id."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import field_validator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from command_bus import Command, EntityId, HandlerRegistry, InvalidRows, InvalidSettings
from command_bus.spark import command_id, command_id_of, dispatch_dataframe, reconcile
from command_bus.spark.options import WriteOptions
from command_bus.spark.target import Target
from command_bus.spark.writing.partition import PartitionDispatcher
from command_bus.spark.writing.writer import PartitionTask, WritePlan
from command_bus.transport.ports.bulk import Version
from tests.spark.trucks import Move, Namespace, journeys, working

ZONES = ("UTC", "Europe/Berlin", "America/New_York")


class Lowered(Command[None], entity="truck", name="test.lowered"):
    """A command of scalars whose validator changes the entity id of the column."""

    truck: EntityId
    seq: int

    @field_validator("truck")
    @classmethod
    def _lower(cls, value: str) -> str:
        return value.lower()


class Seen(Command[None], entity="truck", name="test.seen"):
    truck: EntityId
    seq: int
    note: str | None = None
    day: date | None = None
    at: datetime | None = None


LOWERED, SEEN = f"{__name__}:Lowered", f"{__name__}:Seen"


@contextmanager
def zone_of(spark: SparkSession, zone: str) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.slow
def test_a_validator_cannot_split_an_entity(spark: SparkSession, namespace: Namespace) -> None:
    """Every fifth row has the id in capitals. Such rows may be in another task than their entity's others, and are refused."""
    rows = journeys(spark, 40, 250).withColumn("truck", F.when(F.col("seq") % 5 == 0, F.upper("truck")).otherwise(F.col("truck")))
    report = dispatch_dataframe(
        rows, LOWERED, key=["truck", "seq"], order_by="seq", dispatch_id="d", partitions=4, **namespace.options
    )
    assert (report.added, report.rejected, len([part for part in report.partitions if part.rows])) == (8_000, 2_000, 4)
    assert namespace.seqs() == {f"t{truck}": [seq for seq in range(250) if seq % 5] for truck in range(40)}
    assert {each.fields["truck"] for each in namespace.landed()} == {f"t{truck}" for truck in range(40)}
    reasons = [row.error for row in report.rejects().select("error").distinct().collect()]
    assert [reason.partition(":")[0] for reason in reasons] == ["its command has another entity id than column 'truck'"]


def test_a_mapper_cannot_split_an_entity(spark: SparkSession, namespace: Namespace) -> None:
    def mapper(row: dict[str, Any]) -> Move:
        return Move(truck=row["truck"] if row["seq"] % 5 else "other", seq=row["seq"])

    report = dispatch_dataframe(
        journeys(spark, 10, 50), None, mapper=mapper, key=["truck", "seq"], order_by="seq", entity="truck", dispatch_id="d",
        partitions=4, **namespace.options,
    )  # fmt: skip
    assert (report.added, report.rejected) == (400, 100)
    assert namespace.seqs() == {f"t{truck}": [seq for seq in range(50) if seq % 5] for truck in range(10)}


def keys(spark: SparkSession) -> DataFrame:
    """Return keys of all kinds, in one row."""
    return spark.sql(
        """SELECT 'a' t, 'C:\\\\x' back, 5 i, 7L l, true b, DATE'2026-01-01' d, CAST('-12.50' AS DECIMAL(10, 2)) m, X'61' bin, 'x\u001fy' sep,
                  TIMESTAMP'2026-10-25T00:30:00.5Z' ts, TIMESTAMP_NTZ'2026-10-25 00:30:00.5' ntz, CAST(NULL AS TIMESTAMP) nothing"""
    )


def test_ids_equal_those_of_plain_python_in_every_zone(spark: SparkSession) -> None:
    values = ("a", "C:\\x", 5, 7, True, date(2026, 1, 1), Decimal("-12.50"), b"a", "x\x1fy", datetime(2026, 10, 25, 0, 30, 0, 500_000, UTC),
              datetime(2026, 10, 25, 0, 30, 0, 500_000), None)  # fmt: skip
    frame = keys(spark)
    for zone in ZONES:
        with zone_of(spark, zone):
            found = frame.select(
                *(command_id(name).alias(name) for name in frame.columns), command_id(*frame.columns).alias("all")
            )
            assert list(found.collect()[0]) == [*(command_id_of([value]) for value in values), command_id_of(values)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("TIMESTAMP'2026-10-25T02:30:00+02:00'", "TIMESTAMP'2026-10-25T02:30:00+01:00'"),
        ("X'80'", "X'81'"),
        ("CAST(X'80' AS STRING)", "CAST(X'81' AS STRING)"),
        ("array('x', 'y')", "array('x, y')"),
        ("named_struct('a', CAST(NULL AS STRING))", "named_struct('a', 'null')"),
        ("array(TIMESTAMP'2026-10-25T02:30:00+02:00')", "array(TIMESTAMP'2026-10-25T02:30:00+01:00')"),
        ("CAST(NULL AS STRING)", "'\u0000'"),
    ],
)
def test_ids_are_distinct_and_independent_of_the_zone(spark: SparkSession, one: str, other: str) -> None:
    frame = spark.sql(f"SELECT {one} k UNION ALL SELECT {other}")
    found = set()
    for zone in ZONES:
        with zone_of(spark, zone):
            found |= {row[0] for row in frame.select(command_id("k")).collect()}
    assert len(found) == 2


def test_digests_and_separators_as_keys(spark: SparkSession) -> None:
    digests = [hashlib.sha1(b"%d" % number).digest()[:3] for number in range(2000)]
    frame = spark.createDataFrame([(each,) for each in set(digests)], "k binary")
    assert frame.select(command_id("k")).distinct().count() == len(set(digests))
    pairs = spark.createDataFrame(
        [("x\x1fy", "z"), ("x", "y\x1fz"), ("x\x00", "\x02z"), ("x", "\x00\x02z")], "a string, b string"
    )
    assert pairs.select(command_id("a", "b")).distinct().count() == 4


@pytest.mark.parametrize("kind", ["map('a', 1)", "array(map('a', 1))", "parse_json('{}')"])
def test_a_key_of_an_unsupported_type_is_refused(spark: SparkSession, namespace: Namespace, kind: str) -> None:
    frame = spark.sql(f"SELECT 't1' truck, 1L seq, {kind} k")
    with pytest.raises(InvalidSettings, match="key column 'k': a command id cannot be made of a map or a variant"):
        dispatch_dataframe(frame, SEEN, key="k", order_by="seq", dispatch_id="d", **namespace.options)
    with pytest.raises(Exception, match="a command id cannot be made of a map or a variant"):
        frame.select(command_id("k")).collect()


@pytest.mark.promise("A row's id depends on its key")
def test_a_run_that_is_completed_in_a_session_of_another_zone(spark: SparkSession, namespace: Namespace) -> None:
    rows = spark.range(1000, numPartitions=4).select(
        F.concat(F.lit("t"), (F.col("id") % 7).cast("string")).alias("truck"),
        F.col("id").alias("seq"),
        F.timestamp_seconds(F.lit(1_792_880_000) + F.col("id") * 900).alias("at"),
    )
    with zone_of(spark, "Europe/Berlin"):
        most = rows.where("seq < 900").withColumn("command_id", command_id("at"))
        options = WriteOptions.parse({"command": SEEN, "dispatchId": "d", **namespace.options})
        task = PartitionTask(WritePlan.build(options, most.schema), Version("d"))
        most.repartition(1).sortWithinPartitions("seq").mapInArrow(task, task.RESULT).collect()  # and never committed
    assert namespace.depth() == 900
    with zone_of(spark, "America/New_York"):
        report = dispatch_dataframe(rows, SEEN, key="at", order_by="seq", dispatch_id="d", partitions=4, **namespace.options)
    assert (report.rows, report.added, report.rejected) == (1000, 1000, 0)
    assert {each.fields["at"].utcoffset().total_seconds() for each in namespace.landed()} == {0}


def dirty(spark: SparkSession) -> DataFrame:
    """Return 10,000 rows of 20 trucks. Of every thousand, one has text that is no UTF-8, one a wrong date and one a wrong time."""
    seq = F.col("id")
    text = F.when(seq % 1000 == 7, F.unhex(F.lit("6fff"))).otherwise(F.encode(F.concat(F.lit("n"), seq.cast("string")), "UTF-8"))
    return spark.range(10_000, numPartitions=4).select(
        F.concat(F.lit("t"), (seq % 20).cast("string")).alias("truck"),
        seq.alias("seq"),
        text.cast("string").alias("note"),
        F.expr("date_from_unix_date(if(id % 1000 = 8, 9000000, 20000))").alias("day"),
        F.expr("if(id % 1000 = 9, timestamp_seconds(1700000000000), timestamp_seconds(1700000000))").alias("at"),
    )


REASONS = {
    "column 'note' holds bytes that are no UTF-8 text",
    "column 'day' holds a date or time outside the years 1 to 9999",
    "column 'at' holds a date or time outside the years 1 to 9999",
}


@pytest.mark.promise("A row is what Python would send")
@pytest.mark.parametrize("policy", ["quarantine", "drop"])
def test_poison_is_set_aside_row_by_row(spark: SparkSession, namespace: Namespace, policy: Any) -> None:
    report = dispatch_dataframe(
        dirty(spark), SEEN, key="seq", order_by="seq", dispatch_id="d", on_invalid=policy, partitions=4, **namespace.options
    )
    assert (report.rows, report.added, report.rejected) == (10_000, 9_970, 30)
    good = [seq for seq in range(10_000) if seq % 1000 not in (7, 8, 9)]
    assert namespace.seqs() == {f"t{truck}": [seq for seq in good if seq % 20 == truck] for truck in range(20)}
    if policy == "quarantine":
        rejects = report.rejects().select("error", "reason", "command_id").collect()
        assert {(row.error, row.reason) for row in rejects} == {(reason, "invalid") for reason in REASONS}
        bad = [seq for seq in range(10_000) if seq % 1000 in (7, 8, 9)]
        assert sorted(row.command_id for row in rejects) == sorted(command_id_of([seq]) for seq in bad)


def test_poison_fails_a_dispatch_with_on_invalid_raise(spark: SparkSession, namespace: Namespace) -> None:
    with pytest.raises(InvalidRows, match=r"a row is no valid command: column '(note|day|at)' holds"):
        dispatch_dataframe(
            dirty(spark), SEEN, key="seq", order_by="seq", dispatch_id="d", on_invalid="raise", **namespace.options
        )


@pytest.mark.slow
def test_poison_in_a_stream_does_not_stop_it(spark: SparkSession, namespace: Namespace, tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    raw = dirty(spark).withColumn("note", F.col("note").cast("binary"))
    for number in range(2):
        raw.where(f"seq % 2 = {number}").write.parquet(str(source / f"part={number}"))
    arrivals = spark.readStream.schema(raw.schema).parquet(str(source / "part=*"))
    rows = arrivals.withColumn("note", F.col("note").cast("string")).withColumn("command_id", command_id("seq"))
    options = {**namespace.options, "command": SEEN, "checkpointLocation": str(checkpoint), "keepOrder": "false"}
    query = rows.writeStream.format("command_bus").options(**options).trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.exception() is None
    assert sorted(seq for seqs in namespace.seqs().values() for seq in seqs) == [
        seq for seq in range(10_000) if seq % 1000 not in (7, 8, 9)
    ]


def test_order_by_several_columns_and_directions(spark: SparkSession, namespace: Namespace) -> None:
    rows = journeys(spark, 20, 100).withColumn("day", F.floor(F.col("seq") / 10)).withColumn("k", F.col("seq") % 10)
    given = {"key": ["truck", "seq"], "partitions": 4, **namespace.options}
    dispatch_dataframe(rows, Move, order_by=["day", F.desc("k")], dispatch_id="d", **given)
    wanted = [day * 10 + k for day in range(10) for k in reversed(range(10))]
    assert namespace.seqs() == {f"t{truck}": wanted for truck in range(20)}
    other = Namespace(namespace.url)
    dispatch_dataframe(rows, Move, order_by=F.col("seq").desc(), dispatch_id="d", **given | other.options)
    assert other.seqs() == {f"t{truck}": [*reversed(range(100))] for truck in range(20)}
    with pytest.raises(InvalidSettings, match="there is no column 'dey'; there are truck, seq"):
        dispatch_dataframe(rows, Move, order_by=["dey", "k"], dispatch_id="e", **given)
    with pytest.raises(InvalidSettings, match=r"order_by = \[\]: name the columns"):
        dispatch_dataframe(rows, Move, order_by=[], dispatch_id="e", **given)


@pytest.mark.slow
def test_columns_with_dots(spark: SparkSession, namespace: Namespace) -> None:
    rows = journeys(spark, 10, 20).withColumnsRenamed({"truck": "truck.id", "seq": "n.1"})
    columns = {"truck": "truck.id", "seq": "n.1"}
    report = dispatch_dataframe(
        rows,
        Move,
        key=["truck.id", "n.1"],
        order_by="n.1",
        columns=columns,
        dispatch_id="d",
        outcomes="1 day",
        partitions=3,
        **namespace.options,
    )
    assert namespace.seqs() == {f"t{truck}": list(range(20)) for truck in range(10)}
    assert {row.command_id for row in report.commands.select("command_id").collect()} == {
        command_id_of([f"t{truck}", seq]) for truck in range(10) for seq in range(20)
    }
    assert report.pending().count() == 200
    nested = rows.select(F.struct(F.col("`n.1`").alias("n")).alias("s"), "*")
    ids = nested.select(command_id("s.n").alias("id")).collect()
    assert {row.id for row in ids} == {command_id_of([seq]) for seq in range(20)}


def test_limits_of_the_driver_hold_in_its_tasks(
    spark: SparkSession, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMAND_BUS_MAX_PAYLOAD", "100")
    rows = journeys(spark, 5, 20).withColumn("note", F.when(F.col("seq") % 2 == 0, F.repeat(F.lit("x"), 200)))
    report = dispatch_dataframe(
        rows, Move, key=["truck", "seq"], order_by="seq", dispatch_id="d", partitions=2, **namespace.options
    )
    assert (report.added, report.rejected) == (50, 50)
    assert "the limit is 100" in report.rejects().select("error").first()[0]


@pytest.mark.slow
def test_a_conflict_with_an_earlier_run_is_counted_apart(spark: SparkSession, namespace: Namespace) -> None:
    """The first run died after 500 of 1,000 rows. Its payload has the time of the run, so the second one's differs."""
    rows = journeys(spark, 10, 100).withColumn("note", F.current_timestamp().cast("string"))
    with PartitionDispatcher(Target.resolve(**namespace.options), dispatch_id="d"):
        pass
    options = WriteOptions.parse({"command": "tests.spark.trucks:Move", "dispatchId": "d", **namespace.options})
    half = rows.where("seq < 50").withColumn("command_id", command_id("truck", "seq"))
    task = PartitionTask(WritePlan.build(options, half.schema), Version("d"))
    half.repartition(1).sortWithinPartitions("seq").mapInArrow(task, task.RESULT).collect()
    report = dispatch_dataframe(
        rows, Move, key=["truck", "seq"], order_by="seq", dispatch_id="d", partitions=2, **namespace.options
    )
    assert (report.rows, report.added, report.rejected, report.conflicts) == (1000, 1000, 500, 500)
    assert "500 rows rejected (500 of them because their command ids are in with other payloads)" in str(report)
    assert "one of its columns changes with every run" in report.rejects().select("error").first()[0]
    assert namespace.seqs() == {f"t{truck}": list(range(100)) for truck in range(10)}


@pytest.mark.slow
def test_rows_in_descending_order_are_reconciled(spark: SparkSession, namespace: Namespace) -> None:
    registry = HandlerRegistry()

    @registry.handles(Move)
    async def move(command: Move) -> int:
        return command.seq

    rows = journeys(spark, 4, 25).withColumn("day", F.col("seq") % 3)
    with working(namespace, registry):
        report = dispatch_dataframe(
            rows,
            Move,
            key=["truck", "seq"],
            order_by=[F.desc("day"), "seq"],
            dispatch_id="d",
            outcomes="1 day",
            **namespace.options,
        )
        result = reconcile(report, timeout=60)
    assert result.ok, result
    assert result.counts["completed"] == 100
    wrong = reconcile(
        dispatch_id="d",
        commands=report.commands,
        entity_column="truck",
        order_by=[F.asc("day"), "seq"],
        url=namespace.url,
        namespace=namespace.name,
    )
    assert not wrong.ok
    with pytest.raises(InvalidSettings, match="give entity_column, the column within which it orders"):
        reconcile(dispatch_id="d", commands=report.commands, order_by=["day", "seq"], url=namespace.url, namespace=namespace.name)
