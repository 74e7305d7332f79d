"""Rows become commands in mailboxes."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from redis import Redis

from command_bus import (
    Command,
    EntityId,
    EntityPolicy,
    HandlerRegistry,
    InvalidSettings,
    Lanes,
)
from command_bus.spark import command_id_of, dispatch_dataframe, dispatch_report
from tests.spark.trucks import Load, Move, Namespace, Stop, journeys, until, working
from tests.spark.writes import MOVE, MOVES, ROWS_OF_MOVES, with_ids, write


def test_each_row_becomes_one_command_in_order(spark: SparkSession, namespace: Namespace) -> None:
    rows = journeys(spark, trucks=40, each=50)
    report = dispatch_dataframe(
        rows, Move, key=["truck", "seq"], order_by="seq", dispatch_id="d", partitions=4, batch_size=77, **namespace.options
    )
    assert (report.state, report.rows, report.added, report.entities) == ("committed", 2000, 2000, 40)
    assert (report.duplicates, report.rejected, report.resent) == (0, 0, 0)
    assert len(report.partitions) == 4
    assert sum(part.added for part in report.partitions) == 2000
    assert str(report).startswith("dispatch 'd' committed: 2,000 rows, 2,000 commands for 40 entities; 4 partitions, ")
    assert namespace.seqs() == {f"t{truck}": list(range(50)) for truck in range(40)}
    landed = namespace.landed()
    expected = {command_id_of([f"t{truck}", str(seq)]): (f"t{truck}", seq) for truck in range(40) for seq in range(50)}
    assert {each.command_id: (each.entity, each.fields["seq"]) for each in landed} == expected
    assert len(landed) == len(expected) == namespace.depth()
    assert {each.name for each in landed} == {"Move"}
    row = {each.entity: each.fields for each in landed if each.fields["seq"] == 1}["t2"]
    assert row == {"truck": "t2", "seq": 1, "load": 42.0, "note": "third"}
    assert {each.command_id for each in report.commands.select("command_id").collect()} == set(expected)


@pytest.mark.slow
def test_option_names_ignore_case(spark: SparkSession, namespace: Namespace) -> None:
    rows = with_ids(journeys(spark, trucks=3, each=20)).withColumnsRenamed({"command_id": "my id", "truck": "lorry"})
    ordered = rows.repartition(2, "lorry").sortWithinPartitions("seq")
    options = {
        "URL": namespace.url, "NameSpace": namespace.name, "COMMAND": MOVE, "dispatchid": "d", "COMMANDIDCOLUMN": "my id",
        "EntityColumn": "lorry", "sequencecolumn": "seq", "BATCHSIZE": "7", "oninvalid": "RAISE",
    }  # fmt: skip
    ordered.write.format("Command_Bus").options(**options).mode("append").save()
    assert namespace.seqs() == {f"t{truck}": list(range(20)) for truck in range(3)}


def test_columns_are_mapped_to_fields(spark: SparkSession, namespace: Namespace) -> None:
    rows = spark.createDataFrame([("a", 1, 2.5, "x"), ("a", 2, 3.5, "y")], "lorry string, no int, tons double, other string")
    report = dispatch_dataframe(
        rows, Move, key="no", order_by="no", dispatch_id="d",
        columns={"truck": "lorry", "seq": "no", "load": "tons"}, **namespace.options,
    )  # fmt: skip
    assert report.added == 2
    assert [each.fields for each in namespace.mailboxes()["truck:a"]] == [
        {"truck": "a", "seq": 1, "load": 2.5, "note": None},
        {"truck": "a", "seq": 2, "load": 3.5, "note": None},
    ]


def test_nested_values_are_validated_by_the_model(spark: SparkSession, namespace: Namespace) -> None:
    schema = (
        "truck long, seq int, at timestamp, weight decimal(10,3), where struct<town: string, at: array<double>>, "
        "tags map<string, long>, parts array<string>"
    )
    moment = datetime(2026, 11, 21, 5, 30, 0, 123456, UTC)
    good = (7, 1, moment, Decimal("1.250"), ("Ulm", [48.4, 10.0]), {"a": 1, "b": 2}, ["x", "y"])
    bad = (7, 2, moment, Decimal(1), ("Ulm", [48.4]), {"a": None}, ["x"])
    rows = spark.createDataFrame([good, bad, (*good[:1], 3, *good[2:])], schema)
    report = dispatch_dataframe(rows, Load, key="seq", order_by="seq", dispatch_id="d", **namespace.options)
    assert (report.added, report.rejected) == (2, 1)
    landed = namespace.mailboxes()["truck:7"]
    assert [each.fields["seq"] for each in landed] == [1, 3]
    registry, seen = HandlerRegistry(), list[Load]()

    @registry.handles(Load)
    async def load(command: Load) -> None:
        seen.append(command)

    with working(namespace, registry):
        until(lambda: len(seen) == 2)
    first = seen[0]
    assert (first.at, first.weight, first.tags, first.parts) == (moment, Decimal("1.250"), {"a": 1, "b": 2}, ["x", "y"])
    assert (first.where.town, first.where.at, str(first.truck)) == ("Ulm", (48.4, 10.0), "7")
    (reject,) = report.rejects().collect()
    assert "where.at" in reject.error
    assert "tags" in reject.error


def test_a_column_selects_the_command(spark: SparkSession, namespace: Namespace) -> None:
    data = [
        ("a", 1, "Move", None),
        ("a", 2, "Stop", "lunch"),
        ("a", 3, "Fly", "?"),
        ("b", 1, None, "?"),
        ("a", 4, "Move", None),
    ]
    rows = spark.createDataFrame(data, "truck string, seq long, kind string, why string").withColumn("load", F.lit(1.0))
    report = dispatch_dataframe(
        rows, [Move, f"{Stop.__module__}:Stop"], command_column="kind", key=["truck", "seq"], order_by="seq",
        dispatch_id="d", **namespace.options,
    )  # fmt: skip
    assert (report.added, report.rejected) == (3, 2)
    assert [(each.name, each.fields["seq"]) for each in namespace.mailboxes()["truck:a"]] == [
        ("Move", 1),
        ("Stop", 2),
        ("Move", 4),
    ]
    assert {(row.command, row.reason, row.error) for row in report.rejects().collect()} == {
        ("Fly", "unknown_command", "unknown command 'Fly'; there are Move, Stop"),
        (None, "unknown_command", "its command is NULL"),
    }


def test_a_mapper_makes_the_commands(spark: SparkSession, namespace: Namespace) -> None:
    def command_of(row: dict[str, Any]) -> Any:
        if row["seq"] == 3:
            raise KeyError("no such thing")
        return "no command" if row["seq"] == 4 else Move(truck=row["truck"], seq=row["seq"], load=row["load"] / 2)

    rows = spark.createDataFrame(
        [("a", seq, seq * 10.0) for seq in range(6)] + [("b", 0, 1000.0)], "truck string, seq int, load double"
    )
    report = dispatch_dataframe(
        rows, None, mapper=command_of, entity="truck", key=["truck", "seq"], order_by="seq", dispatch_id="d", **namespace.options
    )
    assert (report.added, report.rejected) == (4, 3)
    assert [each.fields["load"] for each in namespace.mailboxes()["truck:a"]] == [0.0, 5.0, 10.0, 25.0]
    errors = sorted(row.error for row in report.rejects().collect())
    assert errors[0].startswith("the mapper gave str, not a command")
    assert errors[1].startswith("the mapper raised KeyError: 'no such thing'")
    assert errors[2].startswith("the mapper raised ValidationError: ")
    assert "less than or equal to 100" in errors[2]


def test_the_format_takes_a_mapper_by_name(spark: SparkSession, namespace: Namespace) -> None:
    rows = with_ids(journeys(spark, trucks=4, each=25))
    for _ in range(2):
        write(rows.coalesce(1).sortWithinPartitions("seq"), namespace, command=None, mapper="tests.spark.trucks:halved")
    assert [each.fields["load"] for each in namespace.mailboxes()["truck:t3"]][:3] == [1.5, 3.5, 5.5]
    report = dispatch_report(rows, "d", entity="truck", order_by="seq", **namespace.options)
    assert (report.state, report.rows, report.added, report.entities, report.resent) == ("committed", 100, 100, 4, 0)
    with pytest.raises(InvalidSettings, match="there is no dispatch 'other' at redis"):
        dispatch_report(rows, "other", **namespace.options)


def test_unused_columns_are_not_shuffled(spark: SparkSession, namespace: Namespace) -> None:
    wide = journeys(spark, trucks=4, each=5).withColumn("wide.r", F.lit("x" * 100)).withColumn("by", -F.col("seq"))
    report = dispatch_dataframe(wide, Move, key=["truck", "seq"], order_by="by", dispatch_id="d", **namespace.options)
    assert "wide.r" in report.commands.columns
    assert namespace.seqs() == {f"t{truck}": [4, 3, 2, 1, 0] for truck in range(4)}


def test_a_local_class_is_pickled(spark: SparkSession, namespace: Namespace) -> None:
    class Honk(Command[None], entity="truck"):
        truck: EntityId
        seq: int

    rows = journeys(spark, trucks=2, each=3)
    report = dispatch_dataframe(rows, Honk, key=["truck", "seq"], order_by="seq", dispatch_id="d", **namespace.options)
    assert report.added == 6
    assert {each.name for each in namespace.landed()} == {"Honk"}
    assert namespace.seqs() == {"t0": [0, 1, 2], "t1": [0, 1, 2]}


def test_a_wire_name_needs_no_class(spark: SparkSession, namespace: Namespace) -> None:
    registry = HandlerRegistry()

    @registry.handles(Move)
    async def move(command: Move) -> int:
        return command.seq

    with working(namespace, registry):
        pass  # it published its commands, and stopped
    rows = spark.createDataFrame([("a", 1, 5.0, None), ("a", 2, 500.0, None), ("a", 3, 6.0, "x")], MOVES)
    report = dispatch_dataframe(rows, "Move", key="seq", order_by="seq", dispatch_id="d", **namespace.options)
    assert (report.added, report.rejected) == (2, 1)
    assert [each.fields for each in namespace.mailboxes()["truck:a"]] == [
        {"truck": "a", "seq": 1, "load": 5.0, "note": None},
        {"truck": "a", "seq": 3, "load": 6.0, "note": "x"},
    ]
    assert "load" in report.rejects().collect()[0].error


async def test_lanes_and_shards_are_read_from_the_namespace(spark: SparkSession, namespace: Namespace) -> None:
    async with namespace.bus(shards=3, entities={"truck": EntityPolicy(mailbox=Lanes(5))}) as bus:
        await bus.dispatch(Move(truck="first", seq=0))
    rows = journeys(spark, trucks=30, each=4)
    report = dispatch_dataframe(
        rows, Move, key=["truck", "seq"], order_by="seq", dispatch_id="d", partitions=2, **namespace.options
    )
    assert report.added == 120
    mailboxes = namespace.mailboxes()
    assert set(mailboxes) <= {f"truck/{lane}" for lane in range(5)}
    assert len(mailboxes) > 1
    order: dict[str, list[int]] = {}
    for each in namespace.landed():
        order.setdefault(each.entity, []).append(each.fields["seq"])
    assert order == {"first": [0], **{f"t{truck}": list(range(4)) for truck in range(30)}}
    with Redis.from_url(namespace.url) as client:
        shards = {key.partition(b"}")[0] for key in client.scan_iter(f"{{{namespace.name}:*}}:m:*")}
    assert len(shards) > 1
    again = dispatch_dataframe(rows, Move, key=["truck", "seq"], order_by="seq", dispatch_id="d", **namespace.options)
    assert (again.state, again.added, again.rows) == ("already committed", 120, 120)
    assert len(namespace.landed()) == 121


def test_sql_inserts_commands(spark: SparkSession, namespace: Namespace) -> None:
    with_ids(journeys(spark, trucks=2, each=10)).createOrReplaceTempView("journeys")
    options = ", ".join(f"{name} '{value}'" for name, value in {**namespace.options, "command": MOVE, "dispatchId": "d"}.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW moves ({ROWS_OF_MOVES}) USING command_bus OPTIONS ({options})")
    try:
        insert = "INSERT INTO moves SELECT truck, seq, load, note, command_id FROM journeys DISTRIBUTE BY truck SORT BY seq"
        spark.sql(insert)
        spark.sql(insert)  # the same dispatch: nothing more
        assert namespace.seqs() == {"t0": list(range(10)), "t1": list(range(10))}
    finally:
        spark.catalog.dropTempView("moves")
        spark.catalog.dropTempView("journeys")


def test_commands_without_an_entity_need_no_order(spark: SparkSession, namespace: Namespace) -> None:
    class Ping(Command[None]):
        number: int

    rows = spark.range(50).select(F.col("id").alias("number"))
    report = dispatch_dataframe(rows, Ping, key="number", order_by=None, dispatch_id="d", **namespace.options)
    assert (report.added, report.entities) == (50, 50)
    assert {each.fields["number"] for each in namespace.landed()} == set(range(50))
