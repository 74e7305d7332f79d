"""Rows of generated schemas: each becomes the command that plain Python sends, in any session, or the whole is refused with a reason of ours.

A schema has columns of all of Spark's types, nested ones too, names with any character, columns that no field uses, and now and then two
columns that differ in their case or not at all. A session has ANSI's rules or not, a zone, and tells cases apart or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, create_model
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from command_bus import Command, EntityId, InvalidSettings
from command_bus.serialization.models import codec_for
from command_bus.serialization.msgpack import unpack
from command_bus.spark import command_id, command_id_of, dispatch_dataframe
from command_bus.spark.quoting import column_named
from tests.spark.trucks import Namespace

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
INSTANTS = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).map(lambda value: value.replace(tzinfo=UTC))
MICROS = st.integers(-(10**15), 10**15).map(lambda value: timedelta(microseconds=value))


class Place(BaseModel):
    town: str | None
    since: datetime | None
    cost: Decimal | None


@dataclass(frozen=True)
class Kind:
    """A type of columns: the field that it feeds, its values, and whether `command_id_of` knows these."""

    ddl: str
    annotation: Any
    values: st.SearchStrategy[Any]
    is_key: bool = True


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    return st.integers(-(10**precision) + 1, 10**precision - 1).map(lambda value: Decimal(value).scaleb(-scale, Context(prec=60)))


SMALL = st.integers(-99, 99).map(lambda value: Decimal(value).scaleb(-10))  # Java writes them with an exponent
PLACES = st.fixed_dictionaries({"town": TEXT, "since": INSTANTS, "cost": decimals(9, 8)})
KINDS = [
    Kind("string", str, TEXT),
    Kind("binary", bytes, st.binary(max_size=4)),
    Kind("boolean", bool, st.booleans()),
    Kind("tinyint", int, st.integers(-128, 127)),
    Kind("smallint", int, st.integers(-(2**15), 2**15 - 1)),
    Kind("int", int, st.integers(-(2**31), 2**31 - 1)),
    Kind("bigint", int, st.integers(-(2**63), 2**63 - 1)),
    Kind("float", float, st.floats(width=32, allow_nan=False, allow_infinity=False), is_key=False),
    Kind("double", float, st.floats(allow_nan=False, allow_infinity=False), is_key=False),
    Kind("decimal(10,2)", Decimal, decimals(10, 2)),
    Kind("decimal(12,10)", Decimal, st.one_of(SMALL, decimals(12, 10))),
    Kind("decimal(38,38)", Decimal, decimals(20, 38)),
    Kind("decimal(38,0)", Decimal, decimals(38, 0)),
    Kind("date", date, st.dates(date(1, 1, 1))),
    Kind("timestamp", datetime, INSTANTS),
    Kind("timestamp_ntz", datetime, st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))),
    Kind("time", time, st.times(), is_key=False),
    Kind("interval day to second", timedelta, MICROS, is_key=False),
    Kind("array<decimal(12,10)>", list[Decimal | None], st.lists(st.none() | SMALL, max_size=3), is_key=False),
    Kind("array<timestamp>", list[datetime | None], st.lists(st.none() | INSTANTS, max_size=2), is_key=False),
    Kind("map<string,array<int>>", dict[str, list[int]], st.dictionaries(TEXT, st.lists(st.integers(0, 9), max_size=2), max_size=2), is_key=False),
    Kind("map<date,timestamp>", dict[date, datetime], st.dictionaries(st.dates(date(1900, 1, 1)), INSTANTS, max_size=2), is_key=False),
    Kind("struct<town:string,since:timestamp,cost:decimal(9,8)>", Place, PLACES, is_key=False),
    Kind("array<struct<town:string,since:timestamp,cost:decimal(9,8)>>", list[Place], st.lists(PLACES, max_size=2), is_key=False),
    Kind("void", str, st.none()),
]  # fmt: skip
REFUSED = ["parse_json('1')", "array(parse_json('1'))", "INTERVAL '1' MONTH", "make_interval(1)", "map(struct(1), 1)",
           "named_struct('a', 1, 'a', 2)"]  # fmt: skip
"""Columns without a value that plain Python could send."""
NAMES = [
    "a.b",
    "a`b",
    "a,b",
    "a b",
    " a",
    "a=b",
    "a;b",
    "`",
    ".",
    "a'\"b",
    "{",
    "é",
    "a\nb",
    "reason",
    "__entity",
    "rank",
    "v",
    "row",
]
"""Names with any character, and those that we use ourselves."""


@dataclass(frozen=True)
class Example:
    """Fields by name with their kinds and columns, the rows' values, and columns that no field uses."""

    fields: dict[str, Kind]
    columns: dict[str, str]
    rows: list[dict[str, Any]]
    key: list[str]
    extra: list[tuple[str, str]]
    ansi: bool
    zone: str
    exact: bool
    priority: str | None

    @property
    def model(self) -> type[Command[None]]:
        fields: dict[str, Any] = {name: (kind.annotation | None, None) for name, kind in self.fields.items()}
        return create_model(
            "Generated", __base__=Command[None], __module__="__main__", __cls_kwargs__={"entity": "thing"}, thing=(EntityId, ...), seq=(int, ...),
            **fields,
        )  # fmt: skip

    @property
    def refused(self) -> bool:
        """Whether no id can be made of the key, or two columns have a name that is used, as Spark tells names apart."""
        if any(name in self.fields and self.fields[name].ddl.startswith("map") for name in self.key):
            return True
        names = ["thing", "seq", *self.columns.values()]
        for each, _ in self.extra:
            if each in names or each.casefold() == "command_id":
                return True
            if not self.exact and each.casefold() in {name.casefold() for name in names}:
                return True
        return False

    def frame(self, spark: SparkSession) -> DataFrame:
        parts = [f"`{self.columns[name].replace('`', '``')}` {kind.ddl}" for name, kind in self.fields.items()]
        schema: Any = StructType.fromDDL(", ".join(["thing string", "seq bigint", *parts]))
        rows: Any = [(row["thing"], row["seq"], *(row[name] for name in self.fields)) for row in self.rows]
        frame = spark.createDataFrame(rows, schema).repartition(2)
        names = frame.columns + [name for name, _ in self.extra]
        return frame.select("*", *(F.expr(text).alias(f"x{number}") for number, (_, text) in enumerate(self.extra))).toDF(*names)


@st.composite
def examples(draw: Any) -> Example:
    fields = {f"f{number}": kind for number, kind in enumerate(draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4)))}
    odd = draw(st.lists(st.sampled_from(NAMES), min_size=len(fields), max_size=len(fields), unique=True))
    columns = {name: draw(st.sampled_from([name, other])) for name, other in zip(fields, odd, strict=True)}
    values = {name: st.one_of(kind.values, kind.values, st.none()) for name, kind in fields.items()}
    rows = draw(st.lists(st.fixed_dictionaries({"thing": st.sampled_from("abc"), **values}), min_size=1, max_size=6))
    rows = [{**row, "seq": seq} for seq, row in enumerate(rows)]
    free = [name for name in NAMES if name not in columns.values()]
    wild = ["command_id", "COMMAND_ID", "Thing", "thing", "SEQ", "F0"]
    names = st.one_of(st.sampled_from(free), st.sampled_from(free), st.sampled_from(wild))
    extra = draw(st.lists(st.tuples(names, st.sampled_from([*REFUSED, "1", "'x'"])), max_size=2))
    key = ["seq", *draw(st.lists(st.sampled_from(sorted(fields)), max_size=2, unique=True))]
    return Example(
        fields, columns, rows, key, extra, draw(st.booleans()), draw(st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"])),
        draw(st.booleans()), draw(st.sampled_from([None, "low"])),
    )  # fmt: skip


@contextmanager
def session(spark: SparkSession, **settings: str) -> Iterator[None]:
    names = {name: f"spark.sql.{name.replace('_', '.', 1)}" for name in settings}
    before = {name: spark.conf.get(full) for name, full in names.items()}
    for name, full in names.items():
        spark.conf.set(full, settings[name])
    try:
        yield
    finally:
        for name, full in names.items():
            spark.conf.set(full, before[name])


def check(spark: SparkSession, url: str, example: Example) -> None:
    namespace = Namespace(url)
    given = {
        "ansi_enabled": str(example.ansi).lower(),
        "session_timeZone": example.zone,
        "caseSensitive": str(example.exact).lower(),
    }
    columns = {name: column for name, column in example.columns.items() if name != column}
    key = [example.columns.get(name, name) for name in example.key]
    model = example.model
    with session(spark, **given):
        frame = example.frame(spark)
        try:
            report = dispatch_dataframe(
                frame,
                model,
                key=key,
                order_by="seq",
                dispatch_id="d",
                columns=columns,
                priority=example.priority,
                **namespace.options,
            )
        except InvalidSettings:
            if not example.refused:
                raise
            assert not namespace.mailboxes()
            event("refused")
            return
        found = {each.command_id: each for each in namespace.landed()}
    assert not example.refused
    wanted: dict[str, tuple[str, dict[str, Any]]] = {}
    ids = _ids(spark, example)
    for identity, row in zip(ids, example.rows, strict=True):
        values = {name: row[name] for name in model.model_fields}
        wanted[identity] = (row["thing"], unpack(codec_for(model).encode(model(**values))))
    assert report.added == len(example.rows)
    assert {each: (landed.entity, _form(landed.fields)) for each, landed in found.items()} == {
        each: (entity, _form(fields)) for each, (entity, fields) in wanted.items()
    }
    for thing, seqs in namespace.seqs().items():
        assert seqs == [row["seq"] for row in example.rows if f"thing:{row['thing']}" == thing]


def _form(value: Any) -> str:
    """Return a value and its types as text; a map of Spark has no order."""
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{_form(key)}: {_form(each)}' for key, each in value.items()))}}}"
    return f"[{', '.join(map(_form, value))}]" if isinstance(value, list) else repr(value)


def _ids(spark: SparkSession, example: Example) -> list[str]:
    """Return the ids of the rows: those of plain Python where it knows all values, else those of a plain session."""
    if all(name == "seq" or example.fields[name].is_key for name in example.key):
        return [command_id_of([row[name] for name in example.key]) for row in example.rows]
    keys = [column_named(example.columns.get(name, name)) for name in example.key]
    plain = Example(**{**example.__dict__, "extra": []}).frame(spark)
    return [row[0] for row in plain.select(command_id(*keys), "seq").orderBy("seq").collect()]


@settings(max_examples=3, suppress_health_check=list(HealthCheck))
@given(example=examples())
def test_a_row_becomes_what_plain_python_sends(spark: SparkSession, server: Any, example: Example) -> None:
    check(spark, server.url, example)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(example=examples())
def test_rows_of_many_schemas_become_what_plain_python_sends(spark: SparkSession, server: Any, example: Example) -> None:
    check(spark, server.url, example)
