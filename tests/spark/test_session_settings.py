"""Settings of a session: each that is true or false is tried the other way round, and changes nothing of what is sent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from command_bus import Command, EntityId
from command_bus.spark import dispatch_dataframe
from tests.spark.trucks import Namespace

TOGETHER = 16
"""Settings of one dispatch; where that differs, each half is tried, down to the ones by which it does."""


class Part(BaseModel):
    name: str | None
    cost: Decimal


class Filled(Command[None], entity="tank", name="test.filled"):
    tank: EntityId
    seq: int
    small: int
    large: int
    ratio: float
    price: Decimal
    fraction: Decimal
    day: date
    moment: datetime
    wall: datetime
    span: timedelta
    raw: bytes
    text: str
    parts: list[Part]
    counts: dict[str, int]
    nothing: str | None


SCHEMA = """
tank string, seq bigint, small tinyint, large bigint, ratio double, price decimal(10,2), fraction decimal(12,10), day date, moment timestamp,
wall timestamp_ntz, span interval day to second, raw binary, text string, parts array<struct<name:string,cost:decimal(9,8)>>,
counts map<string,int>, nothing string
"""
KEY = ["tank", "seq", "small", "price", "fraction", "day", "moment", "wall", "text"]


def frame(spark: SparkSession) -> DataFrame:
    rows: Any = [
        (
            f"t{number % 3}", number, -number, 2**62 + number, math.pi * 10**number, Decimal(number) / 4, Decimal(f"{number}E-10"),
            date(1582, 10, 1) + timedelta(days=number), datetime(1883, 11, 18, 12, number, tzinfo=UTC), datetime(2026, 3, 29, 2, number),
            timedelta(days=-number, microseconds=1), bytes([number, 255]), " é\n " * number,
            [{"name": None, "cost": Decimal(f"{number}E-8")}], {"b": number, "a": 1}, None,
        )
        for number in range(8)
    ]  # fmt: skip
    schema: Any = StructType.fromDDL(SCHEMA)
    return spark.createDataFrame(rows, schema)


@contextmanager
def flipped(spark: SparkSession, settings: Sequence[tuple[str, str]]) -> Iterator[None]:
    for name, value in settings:
        spark.conf.set(name, "false" if value == "true" else "true")
    try:
        yield
    finally:
        for name, value in settings:
            spark.conf.set(name, value)


def sent(spark: SparkSession, url: str) -> Any:
    """Return what a dispatch of the rows sends, or how it ends."""
    namespace = Namespace(url)
    try:
        dispatch_dataframe(frame(spark), Filled, key=KEY, order_by="seq", dispatch_id="d", **namespace.options)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    return sorted((each.command_id, each.entity, repr(each.fields)) for each in namespace.landed()), namespace.seqs()


def deciding(spark: SparkSession, url: str, settings: Sequence[tuple[str, str]], wanted: Any) -> list[tuple[str, Any]]:
    """Return those by which something else is sent."""
    with flipped(spark, settings):
        found = sent(spark, url)
    if found == wanted:
        return []
    if len(settings) == 1:
        return [(settings[0][0], found)]
    half = len(settings) // 2
    return deciding(spark, url, settings[:half], wanted) + deciding(spark, url, settings[half:], wanted)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_is_sent_depends_on_no_setting(spark: SparkSession, server: Any) -> None:
    wanted = sent(spark, server.url)
    assert len(wanted[0]) == 8
    rows = spark.sql("SET -v").collect()
    settings = [(row[0], row[1]) for row in rows if row[1] in ("true", "false") and spark.conf.isModifiable(row[0])]
    assert len(settings) > 100
    settings = [(name, spark.conf.get(name)) for name, _ in settings]
    found: list[tuple[str, Any]] = []
    for start in range(0, len(settings), TOGETHER):
        found += deciding(spark, server.url, settings[start : start + TOGETHER], wanted)
    assert not found, "\n".join(f"{name}: {str(each)[:600]}" for name, each in found)
