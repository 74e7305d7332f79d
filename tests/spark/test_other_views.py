"""Reading the views of dead letters, rejects, entities and dispatches."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession

from command_bus import EntityState
from command_bus.spark import PartitionDispatcher
from command_bus.spark.writing import partition as dispatching
from tests.spark.outcomes import (
    Lock,
    Pay,
    Slow,
    load,
    read,
    registry_of,
    settled,
    target_of,
)
from tests.spark.trucks import Namespace, until, working


@contextmanager
def stopped(namespace: Namespace, *entities: tuple[str, str]) -> Iterator[None]:
    """Pause these entities."""

    async def change(verb: str) -> None:
        async with namespace.bus() as bus:
            for kind, name in entities:
                await getattr(bus.entity(kind, name), verb)()

    asyncio.run(change("pause"))
    yield
    asyncio.run(change("resume"))


class Wallet(EntityState, entity="wallet"):
    cents: int = 0


class Purse(EntityState, entity="purse"):
    cents: int = 0


def test_states(spark: SparkSession, four_shards: Namespace) -> None:
    async def put() -> None:
        async with four_shards.bus() as bus:
            for number in range(20):
                await bus.states.put(f"w{number}", Wallet(cents=number))
            await bus.states.put("p/ü", Purse(cents=7))

    asyncio.run(put())
    rows = {(row["entity_type"], row["entity"]): row for row in read(spark, four_shards, "states").collect()}
    assert {name: json.loads(row["state"])["cents"] for name, row in rows.items()} == {
        **{("wallet", f"w{number}"): number for number in range(20)},
        ("purse", "p/ü"): 7,
    }
    row = rows["purse", "p/ü"]
    assert (row["version"], row["revision"] > 0, row["bytes"] > 10, row["changed_at"] is not None) == (1, True, True, True)
    assert read(spark, four_shards, "states", entityType="purse").count() == 1


@pytest.mark.slow
def test_dead_letters(spark: SparkSession, four_shards: Namespace) -> None:
    load(four_shards, [Pay(account="a", amount=13), Lock(locker="l", broken=True), Lock(locker="l")])
    load(four_shards, [Pay(account="b", amount=13)], "kept-none", keep_ms=0)
    with working(four_shards, registry_of()):
        until(lambda: read(spark, four_shards, "deadLetters").count() == 3)
    rows = {(row["dispatch_id"], row["command_id"]): row for row in read(spark, four_shards, "deadLetters").collect()}
    assert set(rows) == {("d", "c0"), ("d", "c1"), (None, "c0")}
    pay, lock = rows["d", "c0"], rows["d", "c1"]
    assert (pay["command"], pay["entity_type"], pay["entity"], pay["reason"], pay["attempts"]) == (
        "Pay",
        "account",
        "a",
        "failed",
        2,
    )
    assert (pay["error_type"], pay["error_message"], pay["parked"]) == ("ValueError", "unlucky", False)
    assert json.loads(pay["payload"]) == {"account": "a", "amount": 13}
    assert "unlucky" not in pay["payload"]
    assert "in pay" in pay["traceback"]
    assert pay["accepted_at"] <= pay["first_started_at"] <= pay["failed_at"]
    assert (lock["parked"], lock["entity"]) == (True, "l")
    assert {row["command_id"] for row in read(spark, four_shards, "deadLetters", dispatchId="d").collect()} == {"c0", "c1"}
    assert read(spark, four_shards, "deadLetters", endingTimestamp=1).count() == 0
    assert read(spark, four_shards, "deadLetters", startingTimestamp=1).count() == 3
    outcomes = Counter(row["status"] for row in read(spark, four_shards, dispatchId="d").collect())
    assert outcomes == {"dead_lettered": 1, "parked": 1}


def test_rejects(spark: SparkSession, namespace: Namespace) -> None:
    with PartitionDispatcher(target_of(namespace), dispatch_id="d") as dispatcher:
        for number in range(450):
            dispatcher.reject(
                dispatching.RowReject.of(
                    command_id=f"c{number}",
                    command="Pay",
                    entity="a",
                    reason="invalid",
                    error="amount: text",
                    row={"amount": f"{number} é"},
                )
            )
    rows = sorted(
        read(spark, namespace, "rejects", dispatchId="d", pageSize=100).collect(), key=lambda row: int(row["command_id"][1:])
    )
    assert [row["command_id"] for row in rows] == [f"c{number}" for number in range(450)]
    assert rows[3].asDict() == {
        "dispatch_id": "d", "command_id": "c3", "command": "Pay", "entity": "a", "reason": "invalid", "error": "amount: text",
        "row": '{"amount": "3 é"}',
    }  # fmt: skip
    assert read(spark, namespace, "rejects").count() == 450


def test_entities(spark: SparkSession, four_shards: Namespace) -> None:
    let_go = threading.Event()
    load(
        four_shards,
        [
            Slow(snail="runs"),
            Slow(snail="runs"),
            Slow(snail="sick", sick=True),
            Lock(locker="parked", broken=True),
            Lock(locker="parked"),
        ],
    )
    with stopped(four_shards, ("snail", "paused"), ("snail", "idle")), working(four_shards, registry_of(let_go=let_go)):
        until(
            lambda: {row["state"] for row in read(spark, four_shards, "entities").collect()} >= {"running", "retrying", "parked"}
        )
        load(four_shards, [Slow(snail="paused")], "e")
        found = read(spark, four_shards, "entities").collect()
        let_go.set()
    rows = {row["entity"]: row for row in found}
    assert len(rows) == len(found), "once each, though some are in several keys"
    assert {name: (row["state"], row["depth"], row["entity_type"]) for name, row in rows.items()} == {
        "runs": ("running", 2, "snail"), "sick": ("retrying", 1, "snail"), "parked": ("parked", 2, "locker"),
        "paused": ("paused", 1, "snail"), "idle": ("paused", 0, "snail"),
    }  # fmt: skip
    assert rows["idle"]["oldest_accepted_at"] is None
    assert rows["runs"]["oldest_accepted_at"] > datetime.now(UTC).replace(tzinfo=None) - timedelta(minutes=2)
    assert (rows["runs"]["attempt"], rows["sick"]["attempt"], rows["paused"]["attempt"]) == (1, 1, 0)
    assert rows["runs"]["mailbox"] == "snail:runs"


def test_many_waiting_entities_are_read_once_each(spark: SparkSession, four_shards: Namespace) -> None:
    load(four_shards, [Pay(account=f"a{number}", amount=1) for number in range(3000)])
    frame = read(spark, four_shards, "entities")
    assert frame.rdd.getNumPartitions() == 4
    rows = frame.collect()
    assert sorted(row["entity"] for row in rows) == sorted(f"a{number}" for number in range(3000))
    assert {(row["state"], row["depth"], row["attempt"]) for row in rows} == {("waiting", 1, 0)}


def test_dispatches(spark: SparkSession, four_shards: Namespace) -> None:
    load(four_shards, [Pay(account=f"a{number}", amount=number) for number in range(20)], "done")
    with working(four_shards, registry_of()):
        settled(four_shards)
    load(four_shards, [Pay(account="a", amount=1)], "open", commit=False)
    load(four_shards, [Pay(account="a", amount=1)], "bare", keep_ms=0)
    rows = {row["dispatch_id"]: row for row in read(spark, four_shards, "dispatches").collect()}
    shown = {
        name: tuple(
            row[column]
            for column in ("state", "version", "added", "duplicates", "rejected", "outcomes", "trimmed", "pending", "what")
        )
        for name, row in rows.items()
    }
    assert shown == {
        "done": ("committed", 0, 20, 0, 0, 20, 0, 0, "tests"),
        "open": ("open", None, 1, 0, 0, 0, 0, 1, "tests"),
        "bare": ("committed", 0, 1, 0, 0, None, None, None, "tests"),
    }
    done = rows["done"]
    assert done["opened_at"] <= done["committed_at"] < done["outcomes_until"] < done["remembered_until"]
    assert json.loads(done["summary"])["partitions"][0]["added"] == 20
    assert rows["open"]["committed_at"] is None
    assert [row["dispatch_id"] for row in read(spark, four_shards, "dispatches", dispatchId="bare").collect()] == ["bare"]
