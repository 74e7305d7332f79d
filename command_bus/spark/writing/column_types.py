"""The Arrow types of the columns that commands are made of, and which types of Spark have no value that Python could send."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, UserDefinedType

from command_bus.errors import InvalidSettings

_REFUSED = {
    "VariantType": "a variant: take its parts (variant_get), or to_json",
    "GeometryType": "a geometry: take its text (ST_AsBinary)",
    "GeographyType": "a geography: take its text (ST_AsBinary)",
}


def types_of(schema: StructType, names: Iterable[str]) -> pa.Schema:
    """Return the Arrow types of these columns; the others are not looked at.

    Raises:
        InvalidSettings: Several columns have such a name, or a column's type has no value that a command could have.
    """
    fields: list[pa.Field] = []
    for name in dict.fromkeys(names):
        found = [each for each in schema.fields if each.name == name]
        if len(found) > 1:
            raise InvalidSettings(f"{len(found)} columns are called {name!r}: rename or drop all but one")
        fault = _fault(found[0].dataType)
        if fault is not None:
            raise InvalidSettings(f"column {name!r} is {fault}")
        fields.append(_arrow_field(StructType(found)))
    return pa.schema(fields)


def check_movable(schema: StructType) -> None:
    """Check that Spark can hand all columns to a data source, also those that no field uses.

    Raises:
        InvalidSettings: It cannot.
    """
    for each in schema.fields:
        _arrow_field(StructType([each]))


def _arrow_field(schema: StructType) -> pa.Field:
    try:
        return _arrow_schema(schema).field(0)
    except PySparkTypeError:
        name, kind = schema[0].name, schema[0].dataType.simpleString()
        raise InvalidSettings(
            f"column {name!r} is of type {kind}, which Spark does not hand to Python: cast or drop it"
        ) from None


def _arrow_schema(schema: StructType) -> pa.Schema:
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except PySparkTypeError:
        raise
    except TypeError:  # PySpark before 4.3 takes no zone, and needs none
        return to_arrow_schema(schema)


def _fault(kind: DataType) -> str | None:
    """Return what a column of a type is and what to do, if its values do not arrive in Python as what they are."""
    match kind:
        case StructType():
            repeated = [name for name in kind.names if kind.names.count(name) > 1]
            if repeated:
                return f"a struct with several fields {repeated[0]!r}: rename all but one"
            return next((fault for each in kind.fields if (fault := _fault(each.dataType))), None)
        case ArrayType():
            return _fault(kind.elementType)
        case MapType():
            if isinstance(kind.keyType, ArrayType | MapType | StructType):
                return f"a map whose keys are of type {kind.keyType.simpleString()}: Python's dicts have no such keys"
            return _fault(kind.keyType) or _fault(kind.valueType)
        case UserDefinedType():
            return f"of the user-defined type {type(kind).__name__}: take its parts"
        case _:
            return _REFUSED.get(type(kind).__name__)
