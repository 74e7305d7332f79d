"""Rows of a DataFrame beside the rows that handlers wrote to a database."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import NullPool
from sqlalchemy.ext.asyncio import create_async_engine

from command_bus import InvalidSettings
from command_bus.spark import dispatch_dataframe, reconcile
from command_bus.spark.reconciliation.statuses import statuses_of, with_effects
from command_bus.sql import metadata
from tests.spark import posting
from tests.spark.test_statuses import LOOKED, OUTCOME, outcome
from tests.spark.trucks import Move, Namespace, working


async def _make(path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.run_sync(posting.metadata.create_all)
    await engine.dispose()


BAD_EFFECTS = {
    "truck string, seq int": "the effects have no column 'command_id'; there are truck, seq",
    "command_id binary": "of type binary: select it as the text",
    "command_id struct<a: int>": "of type struct<a:int>: select it as the text",
    "command_id double": "of type double: select it as the text",
    "command_id string, COMMAND_ID string": "cannot tell the columns 'command_id', 'COMMAND_ID' apart",
}
"""Columns of effects, and why they are refused."""


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
            found = connection.execute("SELECT command_id, 100 - rowid FROM effect").fetchall()
        return spark.createDataFrame(found, "command_id string, fence long")

    for columns, fault in BAD_EFFECTS.items():
        with pytest.raises(InvalidSettings, match=fault):
            reconcile(report, effects=spark.createDataFrame([], columns))
    (first, refused) = (report.commands.where(f"seq = {seq}").first()["command_id"] for seq in (0, 3))
    early = reconcile(report, effects=spark.createDataFrame([(first,), ("other",)], "command_id string"))
    assert (early.ok, early.counts["effects"]) == (True, 1)
    assert [each["entity"] for each in early.frame("effect_early").collect()] == ["t"]
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
    loud = reconcile(report, effects=spark.createDataFrame([(first.upper(),)], "command_id string"))
    assert loud.counts["effect_missing"] == 5
    assert "are these the same ids?" in loud.notes[-1]
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
    assert [tuple(each) for each in wrong.frame("effect_unasked").collect()] == [(None, 1, [92])]
    (twice,) = wrong.frame("effect_twice").collect()
    assert len(twice["fences"]) == 2
    assert twice["fences"] == sorted(twice["fences"])
    assert str(wrong.verdict) == "wrong: 1 effect missing, 1 effect twice, 1 effect unexpected"
    text = wrong.write(tmp_path).read_text()
    assert all(
        name in text for name in ("effect missing", "effect twice", "effect unexpected", "more than one effect: must be none")
    )


STATUSES = ("completed", "rejected", "dead_lettered", "expired", "waits", "bad", "mended", "gone", "stranger")


def test_effects_are_those_of_the_same_join_in_pandas(spark: SparkSession) -> None:
    """Random commands of each status have no effect, one, or several; some effects are of none of them, or have no id.

    Rows without an id, and rows of one id, are where joins go wrong: datafold/data-diff#634 and #527, SQLMesh/sqlmesh#5007.
    """
    random = Random(7)
    kinds = {f"{number:04}": random.choice(STATUSES) for number in range(400)}
    ids: list[str | None] = [each for each in kinds for _ in range(random.choice((0, 1, 1, 1, 2, 3)))]
    ids = [*ids, *(f"other-{number % 30}" for number in range(40)), *[None] * 5]
    random.shuffle(ids)
    of = {status: [each for each, kind in kinds.items() if kind == status] for status in STATUSES}
    outcomes = [outcome(each, at, "completed" if kind == "stranger" else kind) for at, (each, kind) in enumerate(kinds.items(), 1)
                if kind in (*STATUSES[:4], "stranger")]  # fmt: skip
    statuses = statuses_of(
        spark.createDataFrame(
            [
                *((each, 1) for each in kinds if each not in of["stranger"]),
                (None, 1),
                (None, 2),
                *((each, 2) for each in of["gone"]),
            ],
            "command_id string, seq long",
        ),
        spark.createDataFrame(outcomes, OUTCOME),
        spark.createDataFrame(
            [*((each, "invalid") for each in of["bad"]), *((each, "repaired") for each in of["mended"])],
            "command_id string, reason string",
        ),
        spark.createDataFrame([(each, False) for each in of["waits"]], "command_id string, parked boolean"),
        order_by="seq",
        looked_ms=LOOKED,
    )
    joined, others = with_effects(statuses, spark.createDataFrame([(each,) for each in ids], "command_id string"))
    found = {row["command_id"]: row for row in joined.collect()}

    table = pd.DataFrame({"command_id": list(kinds), "kind": list(kinds.values())})
    effects = pd.DataFrame({"command_id": ids}).groupby("command_id", dropna=False).size().rename("effects").reset_index()
    full = table.query("kind != 'stranger'").merge(effects, on="command_id", how="outer").fillna({"effects": 0})
    known, unasked = full[full["kind"].notna()], full[full["kind"].isna()]
    wanted = {
        "effect_missing": known.query("kind == 'completed' and effects == 0"),
        "effect_twice": known.query("effects > 1"),
        "effect_unexpected": known.query("kind in ['rejected', 'dead_lettered', 'expired', 'bad'] and effects > 0"),
        "effect_early": known.query("kind == 'waits' and effects > 0"),
    }
    for flag, rows in wanted.items():
        assert {each for each, row in found.items() if row[flag]} == set(rows["command_id"]), flag
        assert len(rows) > 3, "the load has this fault"
    assert sum(row["effects"] for row in found.values()) == known["effects"].sum()
    counts = dict(zip(unasked["command_id"].where(unasked["command_id"].notna(), None), unasked["effects"], strict=True))
    assert {row["command_id"]: row["effects"] for row in others.collect()} == counts
    assert (counts[None], counts["other-0"]) == (5, 2)
    assert set(of["stranger"]) & set(counts), "a command of the dispatch, of none of the rows"
