"""Names and types: each is checked before anything is sent, each error is ours, and columns of the rows keep what they hold."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from command_bus import Command, CommandBusError, EntityId, HandlerRegistry, InvalidSettings
from command_bus.spark import command_id, command_id_of, dispatch_dataframe, dispatch_report, in_order, reconcile
from tests.spark.test_generated_rows import session
from tests.spark.trucks import Move, Namespace, halved, working
from tests.spark.writes import write

SESSIONS = [
    {},
    {"ansi_enabled": "false"},
    {"session_timeZone": "America/New_York", "caseSensitive": "true"},
    {"legacy_timeParserPolicy": "LEGACY", "ansi_enabled": "false"},
]


class Named(Command[None], entity="truck", name="test.named"):
    truck: EntityId
    seq: int
    command_id: str | None = None
    reason: str | None = None
    rank: int | None = None


ROWS = "SELECT 't' truck, 1L seq, 2D load, 'n' note, map('a', 1) m, parse_json('1') v, INTERVAL '1' MONTH i"
TWO_LOADS = f"{ROWS}, 3D `Load`"

MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "key missing": ({"key": "sek"}, "there is no column 'sek'; there are truck, seq"),
    "key in another case": ({"key": "SEQ"}, "there is no column 'SEQ'"),
    "key of a struct that is none": ({"key": "seq.a"}, "Spark refuses these rows or columns: [INVALID_EXTRACT"),
    "key as a column that is not there": ({"key": F.col}, ""),
    "no key": ({"key": []}, r"key = []: name the columns"),
    "key of another type": ({"key": 5}, "key = 5: name the columns"),
    "key ambiguous": ({"key": "load", "rows": TWO_LOADS}, "Spark cannot tell the columns 'load', 'Load' apart"),
    "order missing": ({"order_by": ["seq", "Seq"]}, "there is no column 'Seq'"),
    "order of another type": ({"order_by": 5}, "order_by = 5: name the columns"),
    "order by a map": ({"order_by": "m"}, "Spark refuses these rows or columns: "),
    "entity in another case": ({"entity": "Truck"}, "option entityColumn = 'Truck' names no column"),
    "entity as a column": ({"entity": 5}, "entityColumn = 5: give the name of a column"),
    "entity of a map": ({"entity": "m"}, "an entity id wants text or integers"),
    "a field with a default from nowhere": ({"columns": {"note": "nota"}}, "= 'nota' names no column"),
    "a field with a default from another case": ({"columns": {"note": "Note"}}, "= 'Note' names no column"),
    "no field": ({"columns": {"Note": "note"}}, "option columns feeds 'Note', but Move has the fields"),
    "columns as a list": ({"columns": [("note", "note")]}, "columns = [('note', 'note')]: give the name of a column"),
    "a variant": ({"columns": {"note": "v"}}, "column 'v' is a variant"),
    "an interval": ({"columns": {"note": "i"}}, "column 'i' is of type interval month, which Spark does not hand to Python"),
    "the mapper's rows have a variant": ({"mapper": halved, "entity": "truck"}, "column 'v' is a variant"),
    "no priority": ({"priority": "urgent"}, "option priority = 'urgent'"),
    "a column of priorities": ({"priority": "seq"}, "is a column of texts"),
    "no command column": ({"command_column": "kind"}, "option commandColumn = 'kind' names no column"),
}  # fmt: skip


def test_mistakes_are_errors_of_ours_and_nothing_is_sent(spark: SparkSession, namespace: Namespace) -> None:
    wrong: list[str] = []
    for name, (arguments, text) in MISTAKES.items():
        given = {"key": "seq", "order_by": "seq", "dispatch_id": "d", **namespace.options, **arguments}
        if given["key"] is F.col:
            given["key"] = F.col("nope")
        try:
            dispatch_dataframe(spark.sql(given.pop("rows", ROWS)), None if "mapper" in given else Move, **given)
        except InvalidSettings as error:
            if text not in error.message or len(error.message) > 1100:
                wrong.append(f"{name}: {error.message}")
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
        else:
            wrong.append(f"{name}: passed over")
    assert not wrong, "\n".join(wrong)
    with pytest.raises(InvalidSettings, match="there is no dispatch 'd'"):
        dispatch_report(spark.sql(ROWS), "d", **namespace.options)


@pytest.mark.slow
def test_what_no_field_uses_is_not_checked(spark: SparkSession, namespace: Namespace) -> None:
    """Not a variant, an interval, nor two columns of one name."""
    rows = spark.sql(TWO_LOADS).toDF("truck", "seq", "other", "note", "other", "v", "i", "Other")
    report = dispatch_dataframe(rows, Move, key="seq", order_by="seq", dispatch_id="d", **namespace.options)
    assert (report.added, report.rejected) == (1, 0)
    twice = rows.toDF("truck", "seq", "note", "note", "other", "v", "i", "Other")
    with pytest.raises(InvalidSettings, match="2 columns are called 'note'"):
        dispatch_dataframe(twice, Move, key="seq", order_by="seq", dispatch_id="e", **namespace.options)


def test_a_column_that_differs_from_a_field_in_its_case_is_refused(spark: SparkSession, namespace: Namespace) -> None:
    rows = spark.sql("SELECT 't' truck, 1L seq, 'n' NOTE")
    with pytest.raises(InvalidSettings, match="column 'NOTE' does not feed field note of Move, which is spelt otherwise"):
        dispatch_dataframe(rows, Move, key="seq", order_by="seq", dispatch_id="d", **namespace.options)


@pytest.mark.slow
def test_the_data_source_refuses_what_spark_does_not_hand_over(spark: SparkSession, namespace: Namespace) -> None:
    rows = spark.sql(ROWS).select("truck", "seq", "i").withColumn("command_id", command_id("seq"))
    with pytest.raises(AnalysisException, match="InvalidSettings: column 'i' is of type interval month"):
        write(rows, namespace)


def test_ids_are_the_same_in_every_session(spark: SparkSession) -> None:
    """Below 0.000001 Spark writes an exponent, but not by ANSI's rules."""
    values = [Decimal(text) for text in ("0E-8", "1E-8", "-1.23E-7", "0.00000123", "-0.000001", "12.50000000", "1E+3")]
    frame = spark.createDataFrame(
        [(value.quantize(Decimal("1E-8")), [value]) for value in values], "k decimal(20,8), a array<decimal(20,8)>"
    )
    wanted = [command_id_of([value.quantize(Decimal("1E-8"))]) for value in values]
    arrays = set()
    for settings in SESSIONS:
        with session(spark, **settings):
            found = frame.select(command_id("k"), command_id("a"), command_id(F.col("k") + 0)).collect()
            assert [row[0] for row in found] == wanted, settings
            arrays.add(tuple(row[1] for row in found))
    assert len(arrays) == 1


@pytest.mark.slow
def test_a_load_is_completed_in_a_session_with_other_rules(spark: SparkSession, namespace: Namespace) -> None:
    rows = spark.range(40).selectExpr("concat('t', id % 3) truck", "id seq", "CAST(id AS DECIMAL(20, 8)) / 100000000 price")
    given: dict[str, Any] = {"key": "price", "order_by": "seq", **namespace.options}
    broken = rows.withColumn("note", F.when(F.col("seq") == 30, F.raise_error(F.lit("by half"))).cast("string"))
    with pytest.raises(CommandBusError, match="by half"):
        dispatch_dataframe(broken, Move, dispatch_id="d", batch_size=5, partitions=1, **given)
    with session(spark, ansi_enabled="false"):
        report = dispatch_dataframe(rows.withColumn("note", F.lit(None).cast("string")), Move, dispatch_id="d", **given)
    assert sorted(seq for seqs in namespace.seqs().values() for seq in seqs) == list(range(40))
    assert report.added == 40


class TestOurNames:
    """Columns of the rows under names that we use ourselves."""

    def test_ids_of_their_own_are_not_replaced(self, spark: SparkSession, namespace: Namespace) -> None:
        rows = spark.sql("SELECT 't' truck, 1L seq, 'mine' command_id")
        given: dict[str, Any] = {"order_by": "seq", "dispatch_id": "d", **namespace.options}
        for frame in (rows, rows.withColumnRenamed("command_id", "Command_ID")):
            with pytest.raises(InvalidSettings, match="of their own, which is where key=… puts the ids"):
                dispatch_dataframe(frame, Named, key="seq", **given)
        dispatch_dataframe(rows, Named, key=None, **given)
        (landed,) = namespace.landed()
        assert (landed.command_id, landed.fields["command_id"]) == ("mine", "mine")

    def test_ids_that_we_make_feed_no_field(self, spark: SparkSession, namespace: Namespace) -> None:
        rows = spark.sql("SELECT 't' truck, 1L seq")
        given: dict[str, Any] = {"key": "seq", "order_by": "seq", **namespace.options}
        dispatch_dataframe(rows, Named, dispatch_id="d", **given)
        dispatch_dataframe(rows, Named, dispatch_id="e", columns={"command_id": "command_id"}, **given)
        assert [each.fields["command_id"] for each in namespace.landed()] == [None, command_id_of([1])]

    @pytest.mark.slow
    def test_other_names_keep_what_they_hold(self, spark: SparkSession, namespace: Namespace) -> None:
        registry = HandlerRegistry()

        @registry.handles(Named)
        async def named(command: Named) -> None: ...

        names = [
            "reason",
            "rank",
            "__command_bus_rank",
            "__entity",
            "entity",
            "owner",
            "row",
            "state",
            "status",
            "order_by",
            "kind",
            "v",
        ]
        rows = spark.range(4).selectExpr(
            "'t' truck", "id seq", *(f"string({number}) `{name}`" for number, name in enumerate(names))
        )
        rows = rows.withColumn("rank", F.lit(7))
        given: dict[str, Any] = {"key": "seq", "order_by": [F.desc("seq"), "reason"], "outcomes": "1 day", **namespace.options}
        report = dispatch_dataframe(rows, Named, dispatch_id="d", **given)
        with pytest.raises(
            InvalidSettings, match=r"rename it, and load them as dispatch_report\(rows, 'd', entity=…\)\.pending\(\)"
        ):
            report.pending()
        renamed = report.commands.withColumnRenamed("reason", "why").withColumnRenamed("truck", "reason.of")
        pending = dispatch_report(renamed, "d", entity="reason.of", **namespace.options).pending()
        assert sorted(pending.columns) == sorted([*renamed.columns, "reason"])
        assert {(row["entity"], row["owner"], row["rank"], row["reason"]) for row in pending.collect()} == {
            ("4", "5", 7, "waiting")
        }
        with working(namespace, registry):
            result = reconcile(report, timeout=60)
        assert result.ok, result
        assert result.counts["completed"] == 4


def test_in_order_names_what_is_wrong(spark: SparkSession) -> None:
    with pytest.raises(InvalidSettings, match="there is no column 'Truck'"):
        in_order(spark.sql(ROWS), "Truck", "seq")
    with pytest.raises(InvalidSettings, match="Spark cannot tell the columns 'load', 'Load' apart"):
        in_order(spark.sql(TWO_LOADS), "truck", "load")
    with session(spark, caseSensitive="true"):
        in_order(spark.sql(TWO_LOADS), "truck", "load")


WAYS = pytest.mark.parametrize("way", ["facade", pytest.param("data source", marks=pytest.mark.slow)])


@WAYS
def test_a_load_without_rows_leaves_nothing_behind(spark: SparkSession, namespace: Namespace, way: str) -> None:
    """The nightly run that comes too early does not use up its name."""
    rows = spark.range(6).selectExpr("'t' truck", "id seq")
    given: dict[str, Any] = {"key": "seq", "order_by": "seq", "dispatch_id": "d", **namespace.options}

    def load(frame: DataFrame) -> None:
        if way == "facade":
            report = dispatch_dataframe(frame, Move, **given)
            assert report.state in ("empty", "committed")
        else:
            write(frame.withColumn("command_id", command_id("seq")), namespace, keepOrder="false")

    load(rows.where("seq > 99"))
    with pytest.raises(InvalidSettings, match="there is no dispatch 'd'"):
        dispatch_report(rows, "d", **namespace.options)
    load(rows)
    assert dispatch_report(rows, "d", **namespace.options).added == 6
    with pytest.raises((CommandBusError, AnalysisException), match="6 rows then, 0 now"):
        load(rows.where("seq > 99"))
