"""Rows of a DataFrame beside the rows that handlers wrote to a database."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import NullPool
from sqlalchemy.ext.asyncio import create_async_engine

from command_bus import InvalidSettings
from command_bus.spark import dispatch_dataframe, reconcile
from command_bus.sql import metadata
from tests.spark import posting
from tests.spark.trucks import Move, Namespace, working


async def _make(path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.run_sync(posting.metadata.create_all)
    await engine.dispose()


@pytest.mark.slow
def test_each_fault_of_an_effect_is_found(spark: SparkSession, namespace: Namespace, tmp_path: Path) -> None:
    path = tmp_path / "effects.db"
    asyncio.run(_make(path))
    rows = spark.createDataFrame(
        [("t", seq, 100.0 if seq == 3 else 1.0) for seq in range(6)], "truck string, seq int, load double"
    )
    report = dispatch_dataframe(
        rows, Move, key=["truck", "seq"], order_by="seq", dispatch_id="d", outcomes="1 day", **namespace.options
    )

    def effects(*statements: str) -> DataFrame:
        with closing(sqlite3.connect(path)) as connection, connection:
            for statement in statements:
                connection.execute(statement)
            found = connection.execute("SELECT command_id FROM effect").fetchall()
        return spark.createDataFrame(found, "command_id string")

    with pytest.raises(InvalidSettings, match="the effects have no column 'command_id'"):
        reconcile(report, effects=rows)
    (first, refused) = (report.commands.where(f"seq = {seq}").first()["command_id"] for seq in (0, 3))
    early = reconcile(report, effects=spark.createDataFrame([(first,), ("other",)], "command_id string"))
    assert (early.ok, early.counts["effects"]) == (True, 1)
    assert early.notes == [
        "1 pending commands have an effect already: it commits before the outcome is stored.",
        "1 effects belong to none of these commands; other dispatches may have made them.",
    ]
    with working(namespace, posting.registry_for(create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool))):
        assert reconcile(report, timeout=60).settled
    right = reconcile(report, effects=effects())
    assert right.ok
    assert (
        str(right).splitlines()[0].endswith("right: every row is accounted for, once and in order, and its effect is there once")
    )
    assert "effects" not in reconcile(report).counts
    wrong = reconcile(
        report,
        effects=effects(
            "DELETE FROM effect WHERE seq = 1",
            "INSERT INTO effect SELECT * FROM effect WHERE seq = 2",
            f"INSERT INTO effect VALUES ('{refused}', 't', 3)",
            "INSERT INTO effect VALUES (NULL, 't', 9)",
        ),
    )
    assert not wrong.ok
    faults = ("effect_missing", "effect_twice", "effect_unexpected")
    assert [[row["order_by"] for row in wrong.frame(name).collect()] for name in faults] == [[1], [2], [3]]
    assert (wrong.frame("effects").count(), wrong.counts["effects"]) == (5, 6)
    assert str(wrong.verdict) == "wrong: 1 effect missing, 1 effect twice, 1 effect unexpected"
    text = wrong.write(tmp_path).read_text()
    assert all(
        name in text for name in ("effect missing", "effect twice", "effect unexpected", "more than one effect: must be none")
    )
