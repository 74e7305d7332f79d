"""Rows of events: each becomes the command that publishes it, so that every subscription gets each event once, in the order of its entity."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from command_bus import Command, EntityId, Event, HandlerRegistry, RawEvent
from command_bus.spark import dispatch_dataframe, reconcile
from tests.spark.trucks import Namespace, journeys, until, working
from tests.spark.writes import rejects_of


class Moved(Event, entity="truck", name="truck.moved", fair_by="note"):
    truck: EntityId
    seq: int
    load: float
    note: str | None = None


class Move(Command[None], entity="truck", name="truck.move"):
    truck: EntityId
    seq: int


Seen = dict[str, list[Any]]


def _handlers(seen: Seen) -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.subscribes("ledger", Moved)
    async def post(event: Moved) -> None:
        seen[f"ledger {event.truck}"].append(event.seq)

    @registry.subscribes("audit", "truck.*")
    async def write_down(event: RawEvent) -> None:
        seen[f"audit {event.id}"].append((event.fields["seq"], event.event_id))

    @registry.handles(Move)
    async def move(command: Move) -> None:
        seen[f"moved {command.truck}"].append(command.seq)

    return registry


async def _run(namespace: Namespace, seen: Seen) -> None:
    async with namespace.bus(registry=_handlers(seen)) as bus, bus.worker():
        await bus.wait_idle(60)
        assert not [each async for each in bus.dead_letters.list()]


def test_each_subscription_gets_each_row_once_and_in_order(spark: SparkSession, namespace: Namespace) -> None:
    seen: Seen = defaultdict(list)
    rows = journeys(spark, 5, 30)
    asyncio.run(_put(namespace, seen))
    given = {"key": ["truck", "seq"], "order_by": "seq", "dispatch_id": "d", "outcomes": "1 day", **namespace.options}
    dispatch_dataframe(rows, Moved, **given)
    report = dispatch_dataframe(rows, Moved, **given)  # finds all of it there
    assert (report.rows, report.added, report.rejected) == (150, 150, 0)
    asyncio.run(_run(namespace, seen))
    for truck in range(5):
        assert seen[f"ledger t{truck}"] == list(range(30))
        assert [seq for seq, _ in seen[f"audit t{truck}"]] == list(range(30))
        assert len({event_id for _, event_id in seen[f"audit t{truck}"]}) == 30
    assert reconcile(report).ok


async def _put(namespace: Namespace, seen: Seen) -> None:
    async with namespace.bus(registry=_handlers(seen)) as bus:
        await bus.subscriptions.sync(_handlers(seen))


@pytest.mark.slow
def test_an_event_that_workers_announce_needs_no_class(spark: SparkSession, namespace: Namespace) -> None:
    seen: Seen = defaultdict(list)
    asyncio.run(_put(namespace, seen))
    given = {"key": ["truck", "seq"], "order_by": "seq", "dispatch_id": "d", **namespace.options}
    with working(namespace, _handlers(seen)):
        report = dispatch_dataframe(journeys(spark, 2, 10), "truck.moved", **given)
        assert (report.rows, report.rejected) == (20, 0)
        until(lambda: sum(map(len, seen.values())) == 40)
    assert seen["ledger t0"] == seen["ledger t1"] == list(range(10))


@pytest.mark.slow
def test_a_load_may_mix_events_and_commands_and_refuses_rows_that_are_none(spark: SparkSession, namespace: Namespace) -> None:
    seen: Seen = defaultdict(list)
    asyncio.run(_put(namespace, seen))
    kind = F.when(F.col("seq") % 2 == 0, "truck.moved").otherwise("truck.move")
    rows = journeys(spark, 2, 10).withColumn("kind", kind).withColumn("at", F.col("seq"))
    rows = rows.withColumn("load", F.when(F.col("seq") == 4, F.lit(None)).otherwise(F.col("load")))
    both = f"{__name__}:Moved,{__name__}:Move"
    given = {"key": ["truck", "at"], "order_by": "at", "dispatch_id": "d", **namespace.options}
    report = dispatch_dataframe(rows, both, command_column="kind", **given)
    assert (report.rows, report.rejected) == (20, 2)
    asyncio.run(_run(namespace, seen))
    assert [seen["ledger t0"], seen["moved t0"]] == [[0, 2, 6, 8], [1, 3, 5, 7, 9]]
    assert {(each.command, each.reason) for each in rejects_of(spark, namespace)} == {("command_bus.Publish", "invalid")}
