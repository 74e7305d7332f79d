"""The mapping of rows to one kind of command, and the columns of its fields, checked when the query is planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from command_bus.errors import InvalidSettings
from command_bus.messages.message import MessageSpec
from command_bus.serialization.limits import Limits
from command_bus.spark.options import WriteOptions
from command_bus.spark.writing.field_checks import FieldPlan, fits

__all__ = ["CommandMapping", "check_columns", "field_columns"]


class _Codec(Protocol):
    """Makes a payload of plain values, and returns entity and tenant of its command; or raises with the reason why it is none."""

    def __call__(self, row: dict[str, Any], limits: Limits) -> tuple[bytes, str | None, str]: ...


@dataclass(frozen=True)
class CommandMapping:
    """The mapping of rows to one kind of command.

    Attributes:
        spec: Its wire name, entity type, key and delivery.
        fields: In the order of the payload.
        columns: The column of each field that has one.
        vectorised: Whether Arrow can check all fields.
        payload: Checks and packs one row; returns the payload, the canonical entity id of its command (None without an entity) and its
            tenant (empty without one).
    """

    spec: MessageSpec
    fields: list[FieldPlan]
    columns: dict[str, str]
    vectorised: bool
    payload: _Codec = field(repr=False)

    @property
    def tenant(self) -> FieldPlan | None:
        """The field that names the tenant, or None."""
        return next((plan for plan in self.fields if plan.name == self.spec.fair_by), None)


def field_columns(spec: MessageSpec, plans: Sequence[FieldPlan], options: WriteOptions, columns: Sequence[str]) -> dict[str, str]:
    """Return the column that feeds each field.

    Raises:
        InvalidSettings: A required field has no column, or an option names a field or column that does not exist.
    """
    names = [plan.name for plan in plans]
    given = dict(options.columns)
    if options.entity_column is not None and spec.key is not None:
        given.setdefault(spec.key, options.entity_column)
    if options.command_column is None:
        for name in given:
            if name not in names:
                raise InvalidSettings(f"option columns feeds {name!r}, but {spec.name} has the fields {', '.join(names)}")
    fed = {name: given.get(name, name) for name in names}
    missing = [plan.name for plan in plans if plan.required and fed[plan.name] not in columns]
    if missing:
        wanted = ", ".join(f"{name} (from column {fed[name]!r})" if fed[name] != name else name for name in missing)
        raise InvalidSettings(
            f"{spec.name} needs columns that are not there: {wanted}; there are {', '.join(columns)}. Rename them, or map them with option columns"
        )
    return {name: column for name, column in fed.items() if column in columns}


def check_columns(options: WriteOptions, mappings: Mapping[str, CommandMapping], schema: pa.Schema) -> None:
    """Check that the columns in options exist, and that no column has a type that its field refuses in every row.

    Raises:
        InvalidSettings: The message names column, type and field.
    """
    named = {
        "commandIdColumn": options.command_id_column,
        "commandColumn": options.command_column,
        "entityColumn": options.entity_column,
        "sequenceColumn": options.sequence_column,
    }
    for option, column in named.items():
        if column is not None and column not in schema.names:
            raise InvalidSettings(f"option {option} = {column!r} names no column; there are {', '.join(schema.names)}")
    if not pa.types.is_string(schema.field(options.command_id_column).type):
        raise InvalidSettings(f"column {options.command_id_column!r} holds command ids, which are text: see command_id(…)")
    if options.priority_column is not None:
        _check_priority_column(options.priority_column, schema)
    if options.sequence_column is not None and not pa.types.is_integer(schema.field(options.sequence_column).type):
        raise InvalidSettings(f"option sequenceColumn = {options.sequence_column!r} is a column of integers")
    for mapping in mappings.values():
        for plan in mapping.fields:
            column = mapping.columns.get(plan.name)
            if column is not None and not fits(plan, schema.field(column).type):
                wanted = "text or integers" if plan.kind == "entity" else plan.kind
                raise InvalidSettings(
                    f"column {column!r} is of type {schema.field(column).type}, field {plan.name} of {mapping.spec.name} wants {wanted}: cast it"
                )


def _check_priority_column(column: str, schema: pa.Schema) -> None:
    if column not in schema.names:
        raise InvalidSettings(
            f"option priority = {column!r}: 'high', 'normal' or 'low' for all rows, or a column with these; there are {', '.join(schema.names)}"
        )
    if not pa.types.is_string(schema.field(column).type):
        raise InvalidSettings(f"option priority = {column!r} is a column of texts: 'high', 'normal', 'low', or NULL")
