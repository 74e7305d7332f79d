"""Rows wait by their priority and their tenant, as commands that are dispatched do."""

from __future__ import annotations

import asyncio

import pytest
from pyspark.sql import DataFrame, SparkSession

from command_bus import Command, EntityId, InvalidSettings
from command_bus.spark import dispatch_dataframe
from tests.spark.trucks import Namespace
from tests.spark.writes import rejects_of

PARCELS = [
    ("p1", "acme", "high"),
    ("p2", "acme", None),
    ("p3", None, "low"),
    ("p4", "small", "urgent"),
    ("p5", "small", "normal"),
]


class Parcel(Command[None], entity="parcel", priority="low", fair_by="customer"):
    parcel: EntityId
    customer: str | None


def parcels(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(PARCELS, "parcel string, customer string, urgency string")


def places(namespace: Namespace) -> dict[str, tuple[str, str | None]]:
    """Return what each entity waits in: a priority and a tenant."""

    async def read() -> dict[str, tuple[str, str | None]]:
        async with namespace.bus() as bus:
            found = (await bus.entities.list()).entities
            return {each.name.removeprefix("parcel:"): (each.priority, each.tenant) for each in found}

    return asyncio.run(read())


@pytest.mark.promise("A row waits where Python's would")
def test_a_column_and_the_class_say_where_rows_wait(spark: SparkSession, namespace: Namespace) -> None:
    rows = parcels(spark)
    arguments = {"key": "parcel", "order_by": "parcel", "dispatch_id": "d", **namespace.options}
    report = dispatch_dataframe(rows, Parcel, priority="urgency", **arguments)
    assert (report.rows, report.added, report.rejected) == (5, 4, 1)
    assert places(namespace) == {"p1": ("high", "acme"), "p2": ("low", "acme"), "p3": ("low", None), "p5": ("normal", "small")}
    (reject,) = rejects_of(spark, namespace)
    assert "'urgent'" in reject.error
    with pytest.raises(InvalidSettings, match="'high', 'normal' or 'low' for all rows, or a column"):
        dispatch_dataframe(rows, Parcel, priority="soon", **{**arguments, "dispatch_id": "other"})


@pytest.mark.slow
def test_the_format_has_the_option_for_all_rows(spark: SparkSession, namespace: Namespace) -> None:
    rows = parcels(spark).withColumnRenamed("urgency", "command_id").na.fill("c", ["command_id"])
    writer = rows.where("command_id != 'c'").write.format("command_bus").mode("append")
    writer.options(**namespace.options, command=f"{__name__}:Parcel", dispatchId="d", priority="high").save()
    assert places(namespace) == {"p1": ("high", "acme"), "p3": ("high", None), "p4": ("high", "small"), "p5": ("high", "small")}
