"""The columns of the views as Spark's schemas."""

from __future__ import annotations

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from command_bus.export.views import COLUMNS, Kind, View

_SPARK: dict[Kind, DataType] = {
    "text": StringType(),
    "int": IntegerType(),
    "long": LongType(),
    "real": DoubleType(),
    "flag": BooleanType(),
    "time": TimestampType(),
}


def schema_of(view: View) -> StructType:
    """Return the columns of a view."""
    return StructType([StructField(name, _SPARK[kind]) for name, kind in COLUMNS[view].items()])
