"""The table *what names a column × how the name is wrong*: each cell is refused before anything is sent, and each odd name is found.

No server and no Spark session is needed: these are the checks of a query's plan.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from command_bus import Command, InvalidSettings
from command_bus.spark.options import WriteOptions
from command_bus.spark.writing.command_lookup import planned
from tests.tables.spark_names import NAMES, OPTIONS, WRONG


class Named(Command[None]):
    seq: int
    command_id: str | None = None


class Alone(Command[None]):
    """A command without an entity."""

    seq: int


KINDS: dict[str, DataType] = {
    "string": StringType(), "bigint": LongType(), "double": DoubleType(), "decimal(9,2)": DecimalType(9, 2), "variant": VariantType(),
    "interval month": YearMonthIntervalType(),
}  # fmt: skip
OWN = {"truck": StringType(), "seq": LongType(), "command_id": StringType()}


def schema_of(columns: list[tuple[str, str]]) -> StructType:
    kinds = [StructField(name, KINDS[kind]) for name, kind in columns]
    return StructType([StructField(name, kind) for name, kind in OWN.items()] + kinds)


def options_of(option: str, name: str) -> WriteOptions:
    given = {"command": "tests.spark.trucks:Move", "dispatchId": "d", **OPTIONS[option][2](name)}
    return WriteOptions.parse({key: text for key, text in given.items() if text})


def test_191_a_wrong_name_is_refused_before_anything_is_sent() -> None:
    passed: list[str] = []
    for option, (kind, other, _) in OPTIONS.items():
        for wrong, columns in WRONG.items():
            schema = schema_of(columns("wanted", kind, other))
            try:
                planned(options_of(option, "wanted"), schema)
            except InvalidSettings as error:
                if "wanted" not in error.message:
                    passed.append(f"{option}, {wrong}: {error.message}")
            else:
                passed.append(f"{option}, {wrong}: passed over")
    assert not passed, "\n".join(passed)


def test_a_name_may_have_any_character() -> None:
    wrong: list[str] = []
    for option, (kind, _, _) in OPTIONS.items():
        for name in NAMES:
            try:
                _, types = planned(options_of(option, name), schema_of([(name, kind)]))
            except InvalidSettings as error:
                wrong.append(f"{option} = {name!r}: {error.message}")
            else:
                assert name in types.names
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"columns": "sek=seq"}, "option columns feeds 'sek', but Move has the fields truck, seq, load, note"),
        ({"columns": "seq=seq,seq=other"}, "names a field twice"),
        ({"columns": '{"seq": 1}'}, "as a JSON object of texts"),
        ({"columns": "truck=other", "entityColumn": "truck"}, "name one of them"),
        ({"command": "tests.spark.trucks:Move,tests.spark.trucks:Move", "commandColumn": "other"}, "names Move twice"),
        (
            {"command": "tests.tables.test_spark_names:Alone", "entityColumn": "other"},
            "entityColumn = 'other': Alone has no entity",
        ),
    ],
)
def test_what_no_command_takes_is_refused(options: dict[str, str], text: str) -> None:
    given = {"command": "tests.spark.trucks:Move", "dispatchId": "d", **options}
    with pytest.raises(InvalidSettings) as caught:
        planned(WriteOptions.parse(given), schema_of([("other", "string")]))
    assert text in caught.value.message


def test_a_column_that_differs_from_a_field_in_its_case_is_refused() -> None:
    given = WriteOptions.parse({"command": "tests.spark.trucks:Move", "dispatchId": "d"})
    with pytest.raises(InvalidSettings, match="column 'NOTE' does not feed field note of Move, which is spelt otherwise"):
        planned(given, schema_of([("NOTE", "string")]))
    planned(given, schema_of([("NOTE", "variant"), ("note", "string")]))


def test_ids_that_we_make_feed_a_field_only_if_an_option_says_so() -> None:
    for given, fed in (({}, {"seq"}), ({"columns": "command_id=command_id"}, {"seq", "command_id"})):
        options = WriteOptions.parse({"command": "tests.tables.test_spark_names:Named", "dispatchId": "d", **given})
        mappings, _ = planned(replace(options, made_ids=True), schema_of([]))
        assert set(mappings["Named"].columns) == fed
