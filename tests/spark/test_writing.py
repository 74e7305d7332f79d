"""Rows into commands: what lands in the mailboxes, what becomes of rows that are no commands, and what a user reads when it cannot work."""

from __future__ import annotations

import json
import logging
import math
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType
from redis import Redis

from command_bus import (
    Command,
    DispatchStalled,
    EntityId,
    EntityPolicy,
    HandlerRegistry,
    InvalidRows,
    InvalidSettings,
    Lanes,
    TransportUnavailable,
)
from command_bus.embedded import EmbeddedServer
from command_bus.spark import command_id, command_id_of, dispatch_dataframe, dispatch_report
from command_bus.spark.options import WriteOptions
from command_bus.spark.writing.writer import BatchWriter, Writing
from tests.spark.scene import Load, Move, Place, Stop, Weigh, journeys, until, working

MOVE = f"{Move.__module__}:Move"
MOVES = "truck string, seq long, load double, note string"
ROWS_OF_MOVES = f"{MOVES}, command_id string"


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"dispatchIdd": "x"}, "unknown option 'dispatchIdd': did you mean dispatchId?"),
    ({"path2": "x"}, "unknown option 'path2': there are url, namespace, command"),
    ({"dispatchId": None}, "option dispatchId is missing: name this dispatch"),
    ({"command": None}, "option command is missing: give the class as module:Class, or a wire name"),
    ({"command": "tests.spark.scene:Movv"}, "module tests.spark.scene has no Command Movv"),
    ({"command": "tests.spark.scene:Where"}, "tests.spark.scene.Where is no Command"),
    ({"command": "no_such_module:Move"}, "no class can be imported by this name (No module named 'no_such_module'"),
    ({"command": "Sail"}, "no running worker knows it as a wire name"),
    ({"command": f"{MOVE},tests.spark.scene:Stop"}, "2 commands need option commandColumn"),
    ({"entityColumn": "nope"}, "Move needs columns that are not there: truck (from column 'nope')"),
    ({"commandIdColumn": "nope"}, "option commandIdColumn = 'nope' names no column; there are truck, seq, load, note"),
    ({"commandIdColumn": "seq"}, "column 'seq' holds command ids, which are text"),
    ({"sequenceColumn": "note"}, "option sequenceColumn = 'note' is a column of integers"),
    ({"columns": "seq=note"}, "column 'note' is of type string, field seq of Move wants int: cast it"),
    ({"columns": "sek=seq"}, "option columns feeds 'sek', but Move has the fields truck, seq, load, note"),
    ({"columns": "seq"}, "option columns = 'seq': write it like 'field=column, other=column2'"),
    ({"command": None, "mapper": "tests.spark.scene:nope"}, "option mapper = 'tests.spark.scene:nope': module"),
    ({"command": None, "mapper": "nope"}, "option mapper = 'nope': No module named 'nope'"),
    ({"onInvalid": "explode"}, "option onInvalid = 'explode': there are quarantine, raise, drop"),
    ({"maxWait": "soon"}, "option maxWait = 'soon"),
    ({"batchSize": "0"}, "option batchSize = '0' is a whole number, at least 1"),
    ({"maxRejects": "0.5"}, "option maxRejects = '0.5' is a whole number, at least 0"),
    ({"namespace": "a b"}, "namespace"),
    ({"url": "http://:secret@x"}, "url = 'http://***': a server's URL begins with redis://"),
]  # fmt: skip


@pytest.fixture
def place(server: EmbeddedServer) -> Place:
    return Place(server.url)


@pytest.fixture
def full(place: Place) -> Iterator[Place]:
    """A server of its own, whose memory limit the test may play with."""
    with EmbeddedServer.start(tcp=True) as server:
        yield Place(server.url)


def write(rows: DataFrame, place: Place, mode: str = "append", **options: Any) -> None:
    """Through the bare format; an option that is None is left out."""
    given = {**place.where, "command": MOVE, "dispatchId": "d", **options}
    named = {name: str(value) for name, value in given.items() if value is not None}
    rows.write.format("command_bus").options(**named).mode(mode).save()


def rejects_of(spark: SparkSession, place: Place, dispatch: str = "d") -> list[Row]:
    reader = spark.read.format("command_bus").options(**place.where, view="rejects", dispatchId=dispatch)
    return reader.load().collect()


def with_ids(rows: DataFrame) -> DataFrame:
    return rows.withColumn("command_id", command_id("truck", "seq"))


class TestLanding:
    def test_each_row_is_one_command_in_order_under_the_id_of_its_key(self, spark: SparkSession, place: Place) -> None:
        rows = journeys(spark, trucks=40, each=50)
        report = dispatch_dataframe(
            rows, Move, key=["truck", "seq"], order_by="seq", dispatch_id="d", partitions=4, batch_size=77, **place.where
        )
        assert (report.state, report.rows, report.added, report.entities) == ("committed", 2000, 2000, 40)
        assert (report.duplicates, report.rejected, report.resent) == (0, 0, 0)
        assert len(report.partitions) == 4
        assert sum(part.added for part in report.partitions) == 2000
        assert str(report).startswith("dispatch 'd' committed: 2,000 rows, 2,000 commands for 40 entities; 4 partitions, ")
        assert place.seqs() == {f"t{truck}": list(range(50)) for truck in range(40)}
        landed = place.landed()
        expected = {command_id_of([f"t{truck}", str(seq)]): (f"t{truck}", seq) for truck in range(40) for seq in range(50)}
        assert {each.command_id: (each.entity, each.fields["seq"]) for each in landed} == expected
        assert len(landed) == len(expected) == place.depth()
        assert {each.name for each in landed} == {"Move"}
        row = {each.entity: each.fields for each in landed if each.fields["seq"] == 1}["t2"]
        assert row == {"truck": "t2", "seq": 1, "load": 42.0, "note": "third"}
        assert {each.command_id for each in report.commands.select("command_id").collect()} == set(expected)

    def test_the_bare_format_takes_options_in_any_case(self, spark: SparkSession, place: Place) -> None:
        rows = with_ids(journeys(spark, trucks=3, each=20)).withColumnsRenamed({"command_id": "my id", "truck": "lorry"})
        ordered = rows.repartition(2, "lorry").sortWithinPartitions("seq")
        options = {
            "URL": place.url, "NameSpace": place.namespace, "COMMAND": MOVE, "dispatchid": "d", "COMMANDIDCOLUMN": "my id",
            "EntityColumn": "lorry", "sequencecolumn": "seq", "BATCHSIZE": "7", "oninvalid": "RAISE",
        }  # fmt: skip
        ordered.write.format("Command_Bus").options(**options).mode("append").save()
        assert place.seqs() == {f"t{truck}": list(range(20)) for truck in range(3)}

    def test_columns_feed_fields_of_other_names_and_the_others_are_left_alone(self, spark: SparkSession, place: Place) -> None:
        rows = spark.createDataFrame([("a", 1, 2.5, "x"), ("a", 2, 3.5, "y")], "lorry string, no int, tons double, other string")
        report = dispatch_dataframe(
            rows, Move, key="no", order_by="no", dispatch_id="d",
            columns={"truck": "lorry", "seq": "no", "load": "tons"}, **place.where,
        )  # fmt: skip
        assert report.added == 2
        assert [each.fields for each in place.mailboxes()["truck:a"]] == [
            {"truck": "a", "seq": 1, "load": 2.5, "note": None},
            {"truck": "a", "seq": 2, "load": 3.5, "note": None},
        ]

    def test_dates_decimals_and_nested_values_go_through_the_model(self, spark: SparkSession, place: Place) -> None:
        schema = (
            "truck long, seq int, at timestamp, weight decimal(10,3), where struct<town: string, at: array<double>>, "
            "tags map<string, long>, parts array<string>"
        )
        moment = datetime(2026, 11, 21, 5, 30, 0, 123456, UTC)
        good = (7, 1, moment, Decimal("1.250"), ("Ulm", [48.4, 10.0]), {"a": 1, "b": 2}, ["x", "y"])
        bad = (7, 2, moment, Decimal(1), ("Ulm", [48.4]), {"a": None}, ["x"])
        rows = spark.createDataFrame([good, bad, (*good[:1], 3, *good[2:])], schema)
        report = dispatch_dataframe(rows, Load, key="seq", order_by="seq", dispatch_id="d", **place.where)
        assert (report.added, report.rejected) == (2, 1)
        landed = place.mailboxes()["truck:7"]
        assert [each.fields["seq"] for each in landed] == [1, 3]
        registry, seen = HandlerRegistry(), list[Load]()

        @registry.handles(Load)
        async def load(command: Load) -> None:
            seen.append(command)

        with working(place, registry):
            until(lambda: len(seen) == 2)
        first = seen[0]
        assert (first.at, first.weight, first.tags, first.parts) == (moment, Decimal("1.250"), {"a": 1, "b": 2}, ["x", "y"])
        assert (first.where.town, first.where.at, str(first.truck)) == ("Ulm", (48.4, 10.0), "7")
        (reject,) = report.rejects().collect()
        assert "where.at" in reject.error
        assert "tags" in reject.error

    def test_several_commands_by_a_column_with_their_names(self, spark: SparkSession, place: Place) -> None:
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
            dispatch_id="d", **place.where,
        )  # fmt: skip
        assert (report.added, report.rejected) == (3, 2)
        assert [(each.name, each.fields["seq"]) for each in place.mailboxes()["truck:a"]] == [
            ("Move", 1),
            ("Stop", 2),
            ("Move", 4),
        ]
        assert {(row.command, row.reason, row.error) for row in report.rejects().collect()} == {
            ("Fly", "unknown_command", "unknown command 'Fly'; there are Move, Stop"),
            (None, "unknown_command", "its command is NULL"),
        }

    def test_a_function_may_make_the_commands(self, spark: SparkSession, place: Place) -> None:
        def command_of(row: dict[str, Any]) -> Any:
            if row["seq"] == 3:
                raise KeyError("no such thing")
            return "no command" if row["seq"] == 4 else Move(truck=row["truck"], seq=row["seq"], load=row["load"] / 2)

        rows = spark.createDataFrame(
            [("a", seq, seq * 10.0) for seq in range(6)] + [("b", 0, 1000.0)], "truck string, seq int, load double"
        )
        report = dispatch_dataframe(
            rows, None, mapper=command_of, entity="truck", key=["truck", "seq"], order_by="seq", dispatch_id="d", **place.where
        )
        assert (report.added, report.rejected) == (4, 3)
        assert [each.fields["load"] for each in place.mailboxes()["truck:a"]] == [0.0, 5.0, 10.0, 25.0]
        errors = sorted(row.error for row in report.rejects().collect())
        assert errors[0].startswith("the mapper gave str, not a command")
        assert errors[1].startswith("the mapper raised KeyError: 'no such thing'")
        assert errors[2].startswith("the mapper raised ValidationError: ")
        assert "less than or equal to 100" in errors[2]

    def test_a_function_is_named_to_the_bare_format_and_its_dispatch_reported(self, spark: SparkSession, place: Place) -> None:
        rows = with_ids(journeys(spark, trucks=4, each=25))
        for _ in range(2):
            write(rows.coalesce(1).sortWithinPartitions("seq"), place, command=None, mapper="tests.spark.scene:halved")
        assert [each.fields["load"] for each in place.mailboxes()["truck:t3"]][:3] == [1.5, 3.5, 5.5]
        report = dispatch_report(rows, "d", entity="truck", order_by="seq", **place.where)
        assert (report.state, report.rows, report.added, report.entities, report.resent) == ("committed", 100, 100, 4, 0)
        with pytest.raises(InvalidSettings, match="there is no dispatch 'other' at redis"):
            dispatch_report(rows, "other", **place.where)

    def test_columns_that_no_field_wants_are_not_shuffled(self, spark: SparkSession, place: Place) -> None:
        wide = journeys(spark, trucks=4, each=5).withColumn("wide.r", F.lit("x" * 100)).withColumn("by", -F.col("seq"))
        report = dispatch_dataframe(wide, Move, key=["truck", "seq"], order_by="by", dispatch_id="d", **place.where)
        assert "wide.r" in report.commands.columns
        assert place.seqs() == {f"t{truck}": [4, 3, 2, 1, 0] for truck in range(4)}

    def test_a_class_that_executors_cannot_import_travels_with_the_job(self, spark: SparkSession, place: Place) -> None:
        class Honk(Command[None], entity="truck"):
            truck: EntityId
            seq: int

        rows = journeys(spark, trucks=2, each=3)
        report = dispatch_dataframe(rows, Honk, key=["truck", "seq"], order_by="seq", dispatch_id="d", **place.where)
        assert report.added == 6
        assert {each.name for each in place.landed()} == {"Honk"}
        assert place.seqs() == {"t0": [0, 1, 2], "t1": [0, 1, 2]}

    def test_a_name_that_a_worker_knows_needs_no_class(self, spark: SparkSession, place: Place) -> None:
        registry = HandlerRegistry()

        @registry.handles(Move)
        async def move(command: Move) -> int:
            return command.seq

        with working(place, registry):
            pass  # it told the namespace what it knows, and went
        rows = spark.createDataFrame([("a", 1, 5.0, None), ("a", 2, 500.0, None), ("a", 3, 6.0, "x")], MOVES)
        report = dispatch_dataframe(rows, "Move", key="seq", order_by="seq", dispatch_id="d", **place.where)
        assert (report.added, report.rejected) == (2, 1)
        assert [each.fields for each in place.mailboxes()["truck:a"]] == [
            {"truck": "a", "seq": 1, "load": 5.0, "note": None},
            {"truck": "a", "seq": 3, "load": 6.0, "note": "x"},
        ]
        assert "load" in report.rejects().collect()[0].error

    async def test_lanes_and_shards_are_those_that_the_namespace_was_made_with(self, spark: SparkSession, place: Place) -> None:
        async with place.bus(shards=3, entities={"truck": EntityPolicy(mailbox=Lanes(5))}) as bus:
            await bus.dispatch(Move(truck="first", seq=0))
        rows = journeys(spark, trucks=30, each=4)
        report = dispatch_dataframe(
            rows, Move, key=["truck", "seq"], order_by="seq", dispatch_id="d", partitions=2, **place.where
        )
        assert report.added == 120
        mailboxes = place.mailboxes()
        assert set(mailboxes) <= {f"truck/{lane}" for lane in range(5)}
        assert len(mailboxes) > 1
        order: dict[str, list[int]] = {}
        for each in place.landed():
            order.setdefault(each.entity, []).append(each.fields["seq"])
        assert order == {"first": [0], **{f"t{truck}": list(range(4)) for truck in range(30)}}
        with Redis.from_url(place.url) as client:
            shards = {key.partition(b"}")[0] for key in client.scan_iter(f"{{{place.namespace}:*}}:m:*")}
        assert len(shards) > 1
        again = dispatch_dataframe(rows, Move, key=["truck", "seq"], order_by="seq", dispatch_id="d", **place.where)
        assert (again.state, again.added, again.rows) == ("already committed", 120, 120)
        assert len(place.landed()) == 121

    def test_sql_inserts_commands(self, spark: SparkSession, place: Place) -> None:
        with_ids(journeys(spark, trucks=2, each=10)).createOrReplaceTempView("journeys")
        options = ", ".join(f"{name} '{value}'" for name, value in {**place.where, "command": MOVE, "dispatchId": "d"}.items())
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW moves ({ROWS_OF_MOVES}) USING command_bus OPTIONS ({options})")
        try:
            insert = "INSERT INTO moves SELECT truck, seq, load, note, command_id FROM journeys DISTRIBUTE BY truck SORT BY seq"
            spark.sql(insert)
            spark.sql(insert)  # the same dispatch: nothing more
            assert place.seqs() == {"t0": list(range(10)), "t1": list(range(10))}
        finally:
            spark.catalog.dropTempView("moves")
            spark.catalog.dropTempView("journeys")

    def test_commands_without_an_entity_need_no_order(self, spark: SparkSession, place: Place) -> None:
        class Ping(Command[None]):
            number: int

        rows = spark.range(50).select(F.col("id").alias("number"))
        report = dispatch_dataframe(rows, Ping, key="number", order_by=None, dispatch_id="d", **place.where)
        assert (report.added, report.entities) == (50, 50)
        assert {each.fields["number"] for each in place.landed()} == set(range(50))


class TestRejects:
    """Each row's fate, and that its neighbours have theirs."""

    def test_rows_that_are_no_commands_are_set_aside_with_the_reason(self, spark: SparkSession, place: Place) -> None:
        long = "é" * 3000  # over the 4096 bytes of an entity id
        bad: dict[str, tuple[Any, ...]] = {  # by their ids: what differs from a good row, and what the reason tells
            "null-field": ("a", 1, None, None),
            "null-entity": (None, 1, 1.0, None),
            "empty-entity": ("", 1, 1.0, None),
            "long-entity": (long, 1, 1.0, None),
            "null-seq": ("a", None, 1.0, None),
            "nan": ("a", 1, float("nan"), None),
            "infinite": ("a", 1, float("inf"), None),
            "below": ("a", 1, -0.5, None),
            "above": ("a", 1, 100.5, None),
        }
        told = {
            "null-field": "load", "null-entity": "truck", "empty-entity": "truck", "long-entity": "truck", "null-seq": "seq",
            "nan": "load", "infinite": "load", "below": "greater than or equal to 0", "above": "less than or equal to 100",
        }  # fmt: skip
        good = [("a" if number % 2 else "b", number, 1.0, None, f"good-{number}") for number in range(20)]
        rows: list[tuple[Any, ...]] = [("a", 1, 1.0, None, None), ("a", 1, 2.0, None, ""), ("a", 1, 3.0, None, "i" * 513)]
        for number, (name, values) in enumerate(bad.items()):
            rows += [good[number], (*values, name)]
        rows += good[len(bad) :]
        write(spark.createDataFrame(rows, ROWS_OF_MOVES).coalesce(1), place)
        assert place.seqs() == {"a": list(range(1, 20, 2)), "b": list(range(0, 20, 2))}
        rejects = rejects_of(spark, place)
        assert len(rejects) == len(bad) + 3
        assert {row.reason for row in rejects} == {"invalid"}
        assert {row.command for row in rejects} == {"Move"}
        errors = {row.command_id: row.error for row in rejects if row.command_id and not row.command_id.startswith("i" * 9)}
        for name, part in told.items():
            assert part in errors[name], (name, errors[name])
        without_id = [row for row in rejects if not row.command_id]
        assert [json.loads(row.row)["load"] for row in sorted(without_id, key=lambda row: row.row)] == [1.0, 2.0]
        assert all("its command id is NULL or empty" in row.error for row in without_id)
        (too_long,) = [row for row in rejects if row.command_id == "i" * 513]
        assert "more than 512 bytes" in too_long.error
        row = next(row for row in rejects if row.command_id == "above")
        assert (row.entity, json.loads(row.row)) == ("a", {"truck": "a", "seq": 1, "load": 100.5, "note": None})

    def test_nan_is_no_number_unless_the_model_says_that_it_is_one(self, spark: SparkSession, place: Place) -> None:
        rows = [("a", 1, 1.0, 1.0), ("a", 2, float("nan"), 1.0), ("a", 3, 1.0, float("nan")), ("a", 4, 1.0, float("-inf"))]
        frame = spark.createDataFrame(rows, "truck string, seq long, free double, finite double")
        report = dispatch_dataframe(frame, Weigh, key="seq", order_by="seq", dispatch_id="d", **place.where)
        assert [each.fields["seq"] for each in place.landed()] == [1, 2]
        assert math.isnan(place.landed()[1].fields["free"])
        assert [row.error for row in report.rejects().collect()] == ["Weigh: finite: Input should be a finite number"] * 2

    def test_rows_that_contradict_others_are_set_aside_and_equal_ones_count_once(self, spark: SparkSession, place: Place) -> None:
        rows = [
            ("a", 1, 1.0, None, "1"),
            ("a", 1, 1.0, None, "1"),  # the same row again: a duplicate
            ("a", 1, 2.0, None, "1"),  # another one under its id
            ("b", 5, 1.0, None, "2"),
            ("a", 3, 1.0, None, "3"),
            ("a", 2, 1.0, None, "4"),  # behind its turn
            ("a", 3, 9.0, None, "5"),  # another one with its number
            ("b", 6, 1.0, None, "6"),
            ("a", 4, 1.0, None, "7"),
        ]
        frame = spark.createDataFrame(rows, ROWS_OF_MOVES).coalesce(1)
        write(frame, place, sequenceColumn="seq", batchSize=4)
        assert place.seqs() == {"a": [1, 3, 4], "b": [5, 6]}
        assert {row.command_id: row.reason for row in rejects_of(spark, place)} == {
            "1": "conflict",
            "4": "out_of_sequence",
            "5": "out_of_sequence",
        }
        write(frame, place, sequenceColumn="seq", dispatchId="other")
        assert len(place.landed()) == 5 + 5  # ids and numbers are told apart within a dispatch only

    def test_invalid_rows_fail_the_dispatch_where_they_may_not_be(self, spark: SparkSession, place: Place) -> None:
        rows = spark.createDataFrame([("a", 1, 1.0, None), ("a", 2, 200.0, None), ("a", 3, 1.0, None)], MOVES).coalesce(1)

        def dispatch(**options: Any) -> Any:
            return dispatch_dataframe(rows, Move, key="seq", order_by="seq", dispatch_id="d", **options, **place.where)

        with pytest.raises(InvalidRows) as caught:
            dispatch(on_invalid="raise")
        text = str(caught.value)
        assert "dispatch 'd': a row is no valid command: Move: load" in text
        assert "on_invalid = quarantine" in text
        assert len(text) < 400
        with pytest.raises(InvalidRows, match="more than 0 rows are no valid commands"):
            dispatch(max_rejects=0.1)
        with pytest.raises(InvalidRows, match="more than 0 rows"):
            dispatch(max_rejects=0, on_invalid="drop")
        report = dispatch(max_rejects=1)  # the same dispatch goes on
        assert (report.added, report.rejected, report.state) == (2, 1, "committed")
        assert place.seqs() == {"a": [1, 3]}

    def test_rows_rejects_and_commands_are_told_apart(self, spark: SparkSession, place: Place) -> None:
        bad = [("a", 1, 500.0, None)] * 3 + [(None, 2, 1.0, None)] * 2 + [("a", 3, 700.0, None)]
        rows = spark.createDataFrame([*bad, ("a", 4, 1.0, None), ("a", 4, 1.0, None), ("b", 5, 1.0, None)], MOVES)
        given: dict[str, Any] = {"key": "seq", "order_by": "seq", "dispatch_id": "d", **place.where}
        planned = dispatch_dataframe(rows, Move, dry_run=True, **given)
        assert (planned.state, place.depth()) == ("dry run", 0)
        with Redis.from_url(place.url) as client:
            assert not [key for key in client.scan_iter(f"{{{place.namespace}:*") if b":b:" in key or b":m:" in key]
        report = dispatch_dataframe(rows, Move, **given)
        for each in (planned, report):
            assert (each.rows, each.added, each.duplicates, each.rejected, each.distinct_rejects) == (9, 2, 1, 6, 3)
            assert "9 rows, 2 commands for 2 entities, 1 rows that repeat others, 6 rows rejected (3 different);" in str(each)
            assert (
                sorted(row.error for row in each.rejects().collect())[2]
                == "truck is null: it is the entity id of Move, which every row needs"
            )
            assert each.rejects().count() == 3
        assert str(planned).startswith("dispatch 'd' dry run, nothing was sent; what would be: 9 rows")
        with pytest.raises(InvalidSettings, match="a dry run has no outcomes"):
            planned.outcomes()

    def test_rows_may_be_dropped(self, spark: SparkSession, place: Place) -> None:
        rows = spark.createDataFrame([("a", seq, 60.0 * seq, None) for seq in range(4)], MOVES)
        report = dispatch_dataframe(rows, Move, key="seq", order_by="seq", dispatch_id="d", on_invalid="drop", **place.where)
        assert (report.added, report.rejected, report.rejects().count()) == (2, 2, 0)
        assert place.seqs() == {"a": [0, 1]}


class TestErrors:
    """What is wrong is said in short, by a type, before a task runs where that can be known."""

    @pytest.mark.parametrize(("options", "text"), MISTAKES, ids=lambda value: value[:30] if isinstance(value, str) else "")
    def test_what_does_not_fit_is_refused_when_it_is_planned(
        self, spark: SparkSession, place: Place, options: dict[str, Any], text: str
    ) -> None:
        given = {**place.where, "command": MOVE, "dispatchId": "d", **options}
        schema = StructType.fromDDL(ROWS_OF_MOVES)
        with pytest.raises(InvalidSettings) as caught:
            BatchWriter(Writing.plan(WriteOptions.parse({name: value for name, value in given.items() if value}), schema))
        assert text in str(caught.value)
        assert len(str(caught.value)) < 350

    @pytest.mark.parametrize(("mode", "options", "text"), [
        ("append", {"dispatchIdd": "x"}, "InvalidSettings: unknown option 'dispatchidd': did you mean dispatchId?"),
        ("append", {"columns": "seq=note"}, "InvalidSettings: column 'note' is of type string, field seq of Move wants int: cast it"),
        ("overwrite", {}, 'InvalidSettings: commands cannot be overwritten: write with mode("append")'),
    ], ids=["unknown", "type", "overwrite"])  # fmt: skip
    def test_spark_shows_it_without_a_wall_of_text(
        self, spark: SparkSession, place: Place, mode: str, options: dict[str, Any], text: str
    ) -> None:
        rows = spark.createDataFrame([("a", 1, 1.0, None, "1")], ROWS_OF_MOVES)
        with pytest.raises(AnalysisException) as caught:
            write(rows, place, mode, **options)
        assert f"command_bus.errors.{text}" in str(caught.value)
        assert len(str(caught.value)) < 700
        assert "\tat " not in str(caught.value)  # of the JVM
        assert not place.mailboxes()

    def test_a_missing_column_is_named_with_those_that_are_there(self, spark: SparkSession, place: Place) -> None:
        rows = spark.createDataFrame([("a", 1.0)], "truck string, load double")

        def dispatch(**arguments: Any) -> None:
            given: dict[str, Any] = {"key": "truck", "order_by": None, "dispatch_id": "d", **place.where, **arguments}
            dispatch_dataframe(rows, given.pop("command", Move), **given)

        with pytest.raises(
            InvalidSettings, match="Move needs columns that are not there: seq; there are truck, load, command_id"
        ):
            dispatch()
        with pytest.raises(InvalidSettings, match="there is no column 'when'; there are truck, load, command_id"):
            dispatch(columns={"seq": "load"}, order_by="when")
        with pytest.raises(InvalidSettings, match="column 'load' is of type double, field seq of Move wants int: cast it"):
            dispatch(columns={"seq": "load"})
        with pytest.raises(InvalidSettings, match="a command is a class such as Deposit"):
            dispatch(command=int)
        with pytest.raises(InvalidSettings, match="say which column holds the entity id"):
            dispatch(command=None, mapper=lambda row: row)

    def test_a_server_that_is_not_there_is_said_in_a_line(self, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = spark.createDataFrame([("a", 1, 1.0, None)], MOVES)
        nowhere = {"url": "redis://:secret@127.0.0.1:1", "namespace": "nowhere"}
        monkeypatch.setattr("command_bus.spark.dispatch.PLANNING", 0.3)
        with pytest.raises(TransportUnavailable) as facade:
            dispatch_dataframe(rows, Move, key="seq", order_by="seq", dispatch_id="d", **nowhere)
        monkeypatch.setattr("command_bus.spark.writing.writer.PLANNING", 0.3)
        with pytest.raises(TransportUnavailable) as planned:
            Writing.plan(WriteOptions.parse({"command": MOVE, "dispatchId": "d", **nowhere}), rows.schema)
        for text in (str(facade.value), str(planned.value)):
            assert "127.0.0.1:1" in text
            assert "secret" not in text
            assert len(text) < 300


class TestLimits:
    """What is full is waited for."""

    def test_writers_wait_for_workers(self, spark: SparkSession, place: Place) -> None:
        registry, seen, most = HandlerRegistry(), list[tuple[str, int]](), [0]

        @registry.handles(Move)
        def move(command: Move) -> int:
            most[0] = max(most[0], place.depth())
            seen.append((str(command.truck), command.seq))
            return 0

        rows = journeys(spark, trucks=10, each=40)
        with working(place, registry, concurrency=2):
            report = dispatch_dataframe(
                rows,
                Move,
                key=["truck", "seq"],
                order_by="seq",
                dispatch_id="d",
                max_backlog=30,
                batch_size=20,
                partitions=2,
                **place.where,
            )
            until(lambda: len(seen) == 400, 60)
        assert (report.added, report.duplicates) == (400, 0)
        assert report.waited > 0
        assert most[0] <= 30
        for truck in range(10):
            assert [seq for name, seq in seen if name == f"t{truck}"] == list(range(40))

    async def test_a_full_entity_holds_up_its_own_rows_and_no_worker_is_told_in_time(
        self, spark: SparkSession, place: Place
    ) -> None:
        rows = journeys(spark, trucks=2, each=30)

        def dispatch(**options: Any) -> Any:
            return dispatch_dataframe(
                rows,
                Move,
                key=["truck", "seq"],
                order_by="seq",
                dispatch_id="d",
                partitions=1,
                batch_size=10,
                **options,
                **place.where,
            )

        with pytest.raises(DispatchStalled) as caught:
            dispatch(max_backlog=25, max_wait=0.5)
        assert caught.value.accepted == 25  # by the first attempt; the task that Spark runs again adds nothing
        text = str(caught.value)
        assert (
            "nothing could be added for 0.5 s (total limit), 25 rows of it are in their mailboxes. Are workers running?" in text
        )
        assert len(text) < 300
        assert place.depth() == 25
        for mailbox in place.seqs().values():
            assert mailbox == list(range(len(mailbox)))
        report = dispatch()
        assert (report.state, report.added, report.duplicates, report.resent) == ("committed", 60, 0, 25)
        assert place.seqs() == {"t0": list(range(30)), "t1": list(range(30))}

    @pytest.mark.timeout(120)
    def test_a_job_that_stands_still_warns_the_driver_and_tells_its_progress(
        self, spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("command_bus.spark.writing.progress._TELL_EVERY", 1.0)
        with caplog.at_level(logging.INFO, "command_bus.spark"), pytest.raises(DispatchStalled):
            dispatch_dataframe(
                journeys(spark, trucks=2, each=30), Move, key=["truck", "seq"], order_by="seq", dispatch_id="d", partitions=1,
                max_backlog=25, max_wait=9, **place.where,
            )  # fmt: skip
        said = [(each.levelname, each.getMessage()) for each in caplog.records]
        first = next(text for level, text in said if level == "WARNING")
        assert first.startswith(f"no worker lives in namespace {place.namespace!r} on ")
        (stall, *_) = [text for level, text in said if "nothing could be added for 8 s" in text]
        assert stall.startswith(
            "dispatch 'd', partition 0: nothing could be added for 8 s (total limit); no worker lives there; it gives up in 1 s"
        )
        assert any(level == "INFO" and text == "dispatch 'd': 25 rows sent, 0 rows/s" for level, text in said)

    def test_the_format_warns_before_the_write_where_nobody_works(
        self, spark: SparkSession, place: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Makes the writer here, as Spark does in a process of its own."""
        options = WriteOptions.parse({**place.where, "command": MOVE, "dispatchId": "d"})
        with caplog.at_level(logging.WARNING, "command_bus.spark"):
            BatchWriter(Writing.plan(options, StructType.fromDDL(ROWS_OF_MOVES)))
        (said,) = [each.getMessage() for each in caplog.records]
        assert said.startswith(f"no worker lives in namespace {place.namespace!r} on ")

    def test_the_format_says_the_same(self, spark: SparkSession, place: Place) -> None:
        with pytest.raises(PythonException) as caught:
            write(with_ids(journeys(spark, trucks=2, each=30)), place, maxBacklog=25, maxWait="300 ms")
        assert "DispatchStalled: dispatch 'd', partition" in str(caught.value)
        assert len(str(caught.value)) < 1000
        assert "\tat " not in str(caught.value)

    @pytest.mark.parametrize("from_the_start", [True, False])
    def test_a_server_out_of_memory_is_waited_for(self, spark: SparkSession, full: Place, from_the_start: bool) -> None:
        rows = journeys(spark, trucks=20, each=50).withColumn("note", F.repeat("truck", 900))
        with Redis.from_url(full.url, decode_responses=True) as client:
            if not from_the_start:  # room for some hundred of a thousand
                client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + 1_000_000)
            else:
                dispatch_dataframe(rows.limit(1), Move, key="seq", order_by="seq", dispatch_id="0", **full.where)
                client.config_set("maxmemory", 1)
            refused: list[int] = []

            def relieve() -> None:
                until(lambda: _refusals(client) > 10, 60)
                refused.append(_refusals(client))
                client.config_set("maxmemory", 0)

            helper = threading.Thread(target=relieve)
            helper.start()
            report = dispatch_dataframe(
                rows, Move, key=["truck", "seq"], order_by="seq", dispatch_id="d", partitions=2, batch_size=50, **full.where
            )
            helper.join()
        assert refused
        assert (report.added, report.duplicates, report.resent) == (1000, 0, 0)
        ids = Counter(each.command_id for each in full.landed())
        assert set(ids.values()) == {1}
        assert len(ids) == 1000 + from_the_start
        if not from_the_start:
            assert full.seqs() == {f"t{truck}": list(range(50)) for truck in range(20)}
            assert report.waited > 0


def _refusals(client: Redis) -> int:
    """How often the server said that it has no memory."""
    return int(client.info("errorstats").get("errorstat_OOM", {"count": 0})["count"])
