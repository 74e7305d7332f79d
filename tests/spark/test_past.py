"""The views of the past in Spark: history, events and audit, in batches and as a stream, beside the same in exported files."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import BaseModel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from command_bus import Command, EntityId, HandlerRegistry, History, Reject
from command_bus.export import Export
from tests.spark.outcomes import FourShards, read, settled
from tests.spark.trucks import working


class Line(BaseModel):
    sku: str
    number: int
    price: Decimal


class Receipt(BaseModel):
    total: float
    at: datetime
    parts: dict[str, int]


class Buy(Command[Receipt], entity="cart", history=History(age="1 day", payload=True)):
    cart: EntityId
    lines: list[Line]
    gift: bool = False
    note: str | int | None = None


AT = datetime(2026, 11, 21, 12, tzinfo=UTC)


def registry() -> HandlerRegistry:
    found = HandlerRegistry()

    @found.handles(Buy)
    def buy(command: Buy) -> Receipt:
        if not command.lines:
            raise Reject("nothing in the cart", code="empty", details={"cart": command.cart})
        return Receipt(total=1.5 * len(command.lines), at=AT, parts={line.sku: line.number for line in command.lines})

    return found


def buy(number: int) -> Buy:
    lines = [Line(sku=f"s-{at}", number=at, price=Decimal("2.50")) for at in range(number % 3)]
    return Buy(cart=f"c-{number % 7}", lines=lines, gift=number % 2 == 0, note="fragile" if number % 3 else None)


def shop(namespace: FourShards, numbers: range) -> None:
    async def send() -> None:
        async with namespace.bus() as bus:
            await bus.events.watch("cart")
            await bus.audit.write("ann", "pause", "cart:c-1", "stock-taking")
            await bus.dispatch_batch([buy(number) for number in numbers])

    asyncio.run(send())
    with working(namespace, registry()):
        settled(namespace)


def export(namespace: FourShards, folder: Path) -> None:
    async def write() -> None:
        async with namespace.bus() as bus:
            await Export(bus, folder, ["history", "events", "audit", "letters"]).run()

    asyncio.run(write())


def rows_of(frame: DataFrame, columns: list[str]) -> list[str]:
    return sorted(map(repr, frame.select(*columns).collect()))


def test_views_and_files_have_the_same_rows(spark: SparkSession, four_shards: FourShards, tmp_path: Path) -> None:
    shop(four_shards, range(30))
    export(four_shards, tmp_path)
    for view, count in (("history", 30), ("events", 90), ("audit", 1)):
        frame = read(spark, four_shards, view)
        columns = sorted(frame.columns)
        rows = rows_of(frame, columns)
        assert len(rows) == count
        assert rows_of(spark.read.parquet(str(tmp_path / view)), columns) == rows, view


@pytest.mark.slow
def test_streams_have_each_row_once(spark: SparkSession, four_shards: FourShards, tmp_path: Path) -> None:
    shop(four_shards, range(30))
    for view in ("history", "events", "audit"):
        streamed: Counter[str] = Counter()
        stream = spark.readStream.format("command_bus").options(**four_shards.options, view=view).load()
        writer = stream.writeStream.foreachBatch(
            lambda batch, _, into=streamed: into.update(f"{row['entry']} {row.asDict().get('shard')}" for row in batch.collect())
        )
        query = writer.option("checkpointLocation", str(tmp_path / view)).trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        rows = read(spark, four_shards, view).collect()
        assert streamed == Counter(f"{row['entry']} {row.asDict().get('shard')}" for row in rows)


def test_payload_and_result_of_a_command_are_structs(spark: SparkSession, four_shards: FourShards) -> None:
    shop(four_shards, range(6))
    for named in ("Buy", "tests.spark.test_past:Buy"):  # as the worker has announced it, and as its class has it
        frame = read(spark, four_shards, "history", command=named)
        rows = {(row["payload"]["cart"], row["status"]): row for row in frame.collect()}
        assert len(rows) == 6, rows
        bought = rows["c-2", "completed"]
        assert bought["payload"].asDict(recursive=True) == {
            "cart": "c-2",
            "lines": [{"sku": "s-0", "number": 0, "price": "2.50"}, {"sku": "s-1", "number": 1, "price": "2.50"}],
            "gift": True,
            "note": "fragile",
        }
        assert bought["result"].asDict(recursive=True) == {
            "total": 3.0,
            "at": AT.replace(tzinfo=None),
            "parts": {"s-0": 0, "s-1": 1},
        }
        refused = rows["c-3", "rejected"]
        assert (refused["result"], refused["error_type"]) == (None, "empty")
        assert frame.where("payload.gift and size(payload.lines) = 2").count() == 1
    with pytest.raises(PySparkException, match="no running worker knows it"):
        read(spark, four_shards, "history", command="Bye").collect()
    with pytest.raises(PySparkException, match="option command goes with the views history"):
        read(spark, four_shards, "events", command="Buy").collect()
