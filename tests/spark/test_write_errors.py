"""Errors are short and typed, and raised before a task runs if possible."""

from __future__ import annotations

from functools import partial
from threading import Lock
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from command_bus import (
    InvalidSettings,
    TransportUnavailable,
)
from command_bus.spark import dispatch_dataframe
from command_bus.spark.options import WriteOptions
from command_bus.spark.writing.writer import BatchWriter, WritePlan
from tests.spark.trucks import Move, Namespace, halved
from tests.spark.writes import MOVE, MOVES, ROWS_OF_MOVES, write

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"dispatchIdd": "x"}, "unknown option 'dispatchIdd': did you mean dispatchId?"),
    ({"path2": "x"}, "unknown option 'path2': there are url, namespace, command"),
    ({"dispatchId": None}, "option dispatchId is missing: name this dispatch"),
    ({"command": None}, "option command is missing: give the class as module:Class, or a wire name"),
    ({"command": "tests.spark.trucks:Movv"}, "module tests.spark.trucks has no Command Movv"),
    ({"command": "tests.spark.trucks:Where"}, "tests.spark.trucks.Where is no Command"),
    ({"command": "no_such_module:Move"}, "no class can be imported by this name (No module named 'no_such_module'"),
    ({"command": "..:Move"}, "no class can be imported by this name (it begins with a dot"),
    ({"command": "Sail"}, "no running worker knows it as a wire name"),
    ({"command": f"{MOVE},tests.spark.trucks:Stop"}, "2 commands need option commandColumn"),
    ({"entityColumn": "nope"}, "option entityColumn = 'nope' names no column; there are truck, seq, load, note, command_id"),
    ({"commandIdColumn": "nope"}, "option commandIdColumn = 'nope' names no column; there are truck, seq, load, note"),
    ({"commandIdColumn": "seq"}, "column 'seq' holds command ids, which are text"),
    ({"sequenceColumn": "note"}, "option sequenceColumn = 'note' is a column of integers"),
    ({"columns": "seq=note"}, "column 'note' is of type string, field seq of Move wants int: cast it"),
    ({"columns": "sek=seq"}, "option columns feeds 'sek', but Move has the fields truck, seq, load, note"),
    ({"columns": "seq"}, "option columns = 'seq': write it like 'field=column, other=column2'"),
    ({"command": None, "mapper": "tests.spark.trucks:nope"}, "option mapper = 'tests.spark.trucks:nope': module"),
    ({"command": None, "mapper": "nope"}, "option mapper = 'nope': No module named 'nope'"),
    ({"onInvalid": "explode"}, "option onInvalid = 'explode': there are quarantine, raise, drop"),
    ({"maxWait": "soon"}, "option maxWait = 'soon"),
    ({"batchSize": "0"}, "option batchSize = '0' is a whole number, at least 1"),
    ({"maxRejects": "0.5"}, "option maxRejects = '0.5' is a whole number, at least 0"),
    ({"namespace": "a b"}, "namespace"),
    ({"url": "http://:secret@x"}, "url = 'http://***': a server's URL begins with redis://"),
]  # fmt: skip  # fmt: skip


@pytest.mark.parametrize(("options", "text"), MISTAKES, ids=lambda value: value[:30] if isinstance(value, str) else "")
def test_wrong_options_are_refused_at_planning(
    spark: SparkSession, namespace: Namespace, options: dict[str, Any], text: str
) -> None:
    given = {**namespace.options, "command": MOVE, "dispatchId": "d", **options}
    schema = StructType.fromDDL(ROWS_OF_MOVES)
    with pytest.raises(InvalidSettings) as caught:
        BatchWriter(WritePlan.build(WriteOptions.parse({name: value for name, value in given.items() if value}), schema))
    assert text in str(caught.value)
    assert len(str(caught.value)) < 350


@pytest.mark.parametrize(("mode", "options", "text"), [
    ("append", {"dispatchIdd": "x"}, "InvalidSettings: unknown option 'dispatchidd': did you mean dispatchId?"),
    pytest.param(
        "append",
        {"columns": "seq=note"},
        "InvalidSettings: column 'note' is of type string, field seq of Move wants int: cast it",
        marks=pytest.mark.slow,
    ),
    pytest.param("overwrite", {}, 'InvalidSettings: commands cannot be overwritten: write with mode("append")', marks=pytest.mark.slow),
], ids=["unknown", "type", "overwrite"])  # fmt: skip
def test_spark_shows_a_short_error(
    spark: SparkSession, namespace: Namespace, mode: str, options: dict[str, Any], text: str
) -> None:
    rows = spark.createDataFrame([("a", 1, 1.0, None, "1")], ROWS_OF_MOVES)
    with pytest.raises(AnalysisException) as caught:
        write(rows, namespace, mode, **options)
    assert f"command_bus.errors.{text}" in str(caught.value)
    assert len(str(caught.value)) < 700
    assert "\tat " not in str(caught.value)  # of the JVM
    assert not namespace.mailboxes()


def test_a_missing_column_is_named(spark: SparkSession, namespace: Namespace) -> None:
    rows = spark.createDataFrame([("a", 1.0)], "truck string, load double")

    def dispatch(**arguments: Any) -> None:
        given: dict[str, Any] = {"key": "truck", "order_by": None, "dispatch_id": "d", **namespace.options, **arguments}
        dispatch_dataframe(rows, given.pop("command", Move), **given)

    with pytest.raises(InvalidSettings, match="Move needs columns that are not there: seq; there are truck, load, command_id"):
        dispatch()
    with pytest.raises(InvalidSettings, match="there is no column 'when'; there are truck, load, command_id"):
        dispatch(columns={"seq": "load"}, order_by="when")
    with pytest.raises(InvalidSettings, match="column 'load' is of type double, field seq of Move wants int: cast it"):
        dispatch(columns={"seq": "load"})
    with pytest.raises(InvalidSettings, match="a command is a class such as Deposit"):
        dispatch(command=int)
    with pytest.raises(InvalidSettings, match="say which column holds the entity id"):
        dispatch(command=None, mapper=lambda row: row)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"mapper": 3}, "mapper = 3: give a function from a row to a command"),
        ({"mapper": partial(halved, Lock())}, "make its locks, connections and sessions where it runs"),
        ({"dispatch_id": "\ud800"}, "name this dispatch"),
        ({"remember_for": "0 s"}, "rememberFor = '0 s' is no time at all"),
        ({"max_wait": 0}, "maxWait = '0 s' is no time at all"),
    ],
)
def test_an_argument_that_nothing_can_be_done_with_is_refused(
    spark: SparkSession, namespace: Namespace, arguments: dict[str, Any], text: str
) -> None:
    given: dict[str, Any] = {
        "key": "seq",
        "order_by": "seq",
        "dispatch_id": "d",
        "entity": "truck",
        **namespace.options,
        **arguments,
    }
    with pytest.raises(InvalidSettings) as caught:
        dispatch_dataframe(spark.createDataFrame([("a", 1, 1.0, None)], MOVES), None if "mapper" in arguments else Move, **given)
    assert text in caught.value.message


def test_an_unreachable_server_gives_a_short_error(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = spark.createDataFrame([("a", 1, 1.0, None)], MOVES)
    nowhere = {"url": "redis://:secret@127.0.0.1:1", "namespace": "nowhere"}
    monkeypatch.setattr("command_bus.spark.dispatch.PLANNING_PATIENCE", 0.3)
    with pytest.raises(TransportUnavailable) as facade:
        dispatch_dataframe(rows, Move, key="seq", order_by="seq", dispatch_id="d", **nowhere)
    monkeypatch.setattr("command_bus.spark.writing.writer.PLANNING_PATIENCE", 0.3)
    with pytest.raises(TransportUnavailable) as planned:
        WritePlan.build(WriteOptions.parse({"command": MOVE, "dispatchId": "d", **nowhere}), rows.schema)
    for text in (str(facade.value), str(planned.value)):
        assert "127.0.0.1:1" in text
        assert "secret" not in text
        assert len(text) < 300
