"""The checks of a write before anything is sent: that what the options name is there, and that the commands take it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.types import StructType

from command_bus.serialization.announcements import CommandInfo
from command_bus.spark.options import WriteOptions
from command_bus.spark.writing.column_types import types_of
from command_bus.spark.writing.command_lookup import command_mappings, mapper_of
from command_bus.spark.writing.command_mapping import CommandMapping, check_named, check_taken, check_types


def planned(
    options: WriteOptions, schema: StructType, describe: Callable[[str], CommandInfo | None] | None = None
) -> tuple[dict[str, CommandMapping], pa.Schema]:
    """Return the mappings of the commands by wire name, empty with a mapper, and the types of the columns that are read.

    A mapper reads all columns. Of other columns nothing is checked.

    Raises:
        InvalidSettings: An option names what is not there or what no command takes, or a column has a type that no field takes.
    """
    names = schema.names
    check_named(options, names)
    if options.mapper is not None:
        mapper_of(options.mapper)
        types = types_of(schema, names)
        check_types(options, {}, types)
        return {}, types
    mappings = command_mappings(options, names, describe)
    read = columns_read(options, mappings)
    check_taken(options, mappings, names, read)
    types = types_of(schema, [name for name in names if name in read])
    check_types(options, mappings, types)
    return mappings, types


def columns_read(options: WriteOptions, mappings: Mapping[str, CommandMapping]) -> set[str]:
    """Return the columns that commands are made of."""
    named: Sequence[str | None] = (
        options.command_id_column, options.command_column, options.entity_column, options.sequence_column, options.priority_column
    )  # fmt: skip
    fed = (column for mapping in mappings.values() for column in mapping.columns.values())
    return {name for name in (*named, *fed) if name is not None}
