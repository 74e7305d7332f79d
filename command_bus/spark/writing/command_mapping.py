"""The mapping of rows to one kind of command, and the columns of its fields, checked when the query is planned."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from command_bus.errors import InvalidSettings
from command_bus.messages.message import MessageSpec
from command_bus.serialization.limits import PayloadLimits
from command_bus.spark.options import WriteOptions
from command_bus.spark.quoting import there_are
from command_bus.spark.writing.field_checks import FieldPlan, fits, is_entity_column

_Codec = Callable[[dict[str, Any], PayloadLimits], tuple[bytes, str | None, str]]
"""Makes a payload of plain values, and returns entity and tenant of its command; or raises with the reason why it is none."""


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
        InvalidSettings: A required field has no column, or two options name two columns for the entity id.
    """
    given = dict(options.columns)
    if options.entity_column is not None and spec.key is not None:
        fed_from = given.setdefault(spec.key, options.entity_column)
        if fed_from != options.entity_column:
            raise InvalidSettings(
                f"option columns feeds {spec.key}, the entity id of {spec.name}, from {fed_from!r}, option entityColumn from "
                f"{options.entity_column!r}: name one of them"
            )
    made = options.command_id_column if options.made_ids else None
    fed = {plan.name: given.get(plan.name, plan.name) for plan in plans}
    fed = {name: column for name, column in fed.items() if name in given or column != made}
    missing = [plan.name for plan in plans if plan.required and fed.get(plan.name) not in columns]
    if missing:
        wanted = ", ".join(f"{name} (from column {fed[name]!r})" if fed.get(name, name) != name else name for name in missing)
        raise InvalidSettings(
            f"{spec.name} needs columns that are not there: {wanted}; {there_are(columns)}. Rename them, or map them with option columns"
        )
    return {name: column for name, column in fed.items() if column in columns}


def check_named(options: WriteOptions, columns: Sequence[str]) -> None:
    """Check that each option that names a column names one that is there.

    Raises:
        InvalidSettings: The message names the option.
    """
    named = {
        "commandIdColumn": options.command_id_column,
        "commandColumn": options.command_column,
        "entityColumn": options.entity_column,
        "sequenceColumn": options.sequence_column,
        **{f"columns, field {name}": column for name, column in options.columns.items()},
    }
    for option, column in named.items():
        if column is not None and column not in columns:
            raise InvalidSettings(f"option {option} = {column!r} names no column; {there_are(columns)}")
    if options.priority_column is not None and options.priority_column not in columns:
        raise InvalidSettings(
            f"option priority = {options.priority_column!r}: 'high', 'normal' or 'low' for all rows, or a column with these; {there_are(columns)}"
        )


def check_taken(
    options: WriteOptions, mappings: Mapping[str, CommandMapping], columns: Sequence[str], read: Collection[str]
) -> None:
    """Check that the commands take what the options name, and that no column is passed over for its spelling alone.

    Raises:
        InvalidSettings: The message names the option or the column.
    """
    names = ", ".join(mappings)
    fields = dict.fromkeys(plan.name for mapping in mappings.values() for plan in mapping.fields)
    for name in options.columns:
        if name not in fields:
            raise InvalidSettings(f"option columns feeds {name!r}, but {names} has the fields {', '.join(fields)}")
    for mapping in mappings.values():
        if mapping.spec.others:
            raise InvalidSettings(
                f"{mapping.spec.name} is of several entities: the rows of one belong to two partitions, so that no order of theirs is kept. "
                "Load commands of one entity whose handler dispatches it"
            )
    if options.entity_column is not None and all(mapping.spec.key is None for mapping in mappings.values()):
        raise InvalidSettings(f"option entityColumn = {options.entity_column!r}: {names} has no entity")
    unread = {column.casefold(): column for column in columns if column not in read}
    for mapping in mappings.values():
        for name in (plan.name for plan in mapping.fields if plan.name not in mapping.columns):
            near = unread.get(name.casefold(), name)
            if near != name:
                raise InvalidSettings(
                    f"column {near!r} does not feed field {name} of {mapping.spec.name}, which is spelt otherwise: rename the column, name "
                    "it in option columns, or drop it"
                )


def check_types(options: WriteOptions, mappings: Mapping[str, CommandMapping], types: pa.Schema) -> None:
    """Check that no column has a type that its field or option refuses in every row.

    Raises:
        InvalidSettings: The message names column, type and field.
    """
    for option, column in (("commandColumn", options.command_column), ("priority", options.priority_column)):
        if column is not None and not pa.types.is_string(types.field(column).type):
            raise InvalidSettings(
                f"option {option} = {column!r} is a column of texts, this one is of type {types.field(column).type}"
            )
    if not pa.types.is_string(types.field(options.command_id_column).type):
        raise InvalidSettings(f"column {options.command_id_column!r} holds command ids, which are text: see command_id(…)")
    if options.sequence_column is not None and not pa.types.is_integer(types.field(options.sequence_column).type):
        raise InvalidSettings(f"option sequenceColumn = {options.sequence_column!r} is a column of integers")
    entity = options.entity_column
    if entity is not None and not is_entity_column(types.field(entity).type):
        raise InvalidSettings(
            f"column {entity!r} is of type {types.field(entity).type}, an entity id wants text or integers: cast it"
        )
    for mapping in mappings.values():
        for plan in mapping.fields:
            column = mapping.columns.get(plan.name)
            if column is None:
                continue
            kind, is_key = types.field(column).type, plan.name == mapping.spec.key
            if not fits(plan, kind) or (is_key and not is_entity_column(kind)):
                wanted = "text or integers" if is_key else plan.kind
                raise InvalidSettings(
                    f"column {column!r} is of type {kind}, field {plan.name} of {mapping.spec.name} wants {wanted}: cast it"
                )
