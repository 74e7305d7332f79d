"""The commands that the options of a write name: by class, by value or by wire name, the mapping of rows to each, and the checks of both."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.types import StructType

from command_bus.errors import InvalidCommand, InvalidSettings
from command_bus.export.typed import TypedColumns
from command_bus.messages.event import Publish
from command_bus.messages.history import history_of
from command_bus.messages.message import Event, Message, MessageSpec, canonical_entity_id, is_internal
from command_bus.messages.policies import PRIORITIES, Delivery, Priority, delivered_name
from command_bus.messages.unique import Unique
from command_bus.sending.envelope_builder import message_of
from command_bus.sending.options import give
from command_bus.serialization.announcements import CommandInfo
from command_bus.serialization.json_fields import JsonFields
from command_bus.serialization.json_schemas import fields_schema, reply_schema
from command_bus.serialization.limits import PayloadLimits
from command_bus.serialization.models import codec_for
from command_bus.serialization.msgpack import pack
from command_bus.spark.options import WriteOptions
from command_bus.spark.writing.column_types import types_of
from command_bus.spark.writing.command_mapping import CommandMapping, check_named, check_taken, check_types, field_columns
from command_bus.spark.writing.field_checks import MISSING, FieldPlan, plans_of
from command_bus.spark.writing.interpreters import is_pickled, pickled, unpickled
from command_bus.spark.writing.named_imports import checked_mapper, import_named, may_import
from command_bus.transport.flows import tenant_of


def announced_mapping(info: CommandInfo, options: WriteOptions, columns: Sequence[str]) -> CommandMapping:
    """Return the mapping of an announced command.

    Raises:
        InvalidSettings: Columns are missing, or the announcement cannot be used.
    """
    required, fields = set(info.schema.get("required", ())), info.schema.get("properties", {})
    if info.key is not None and info.key not in fields:
        raise InvalidSettings(
            f"what workers publish of {info.name!r} cannot be used (no field {info.key}): give the class as module:Class"
        )
    delivery: Delivery = "at_most_once" if info.delivery == "at_most_once" else "at_least_once"
    given, tenant_field = info.policy.get("priority"), info.policy.get("fair_by")
    priority: Priority | None = given if given in PRIORITIES else None
    spec = MessageSpec(
        info.name,
        info.entity,
        info.key,
        delivery=delivery,
        version=info.version,
        priority=priority,
        fair_by=tenant_field,
        unique=_unique(info),
    )
    plans = [FieldPlan(field, None, required=field in required) for field in fields]
    reader = JsonFields(info.schema)

    def payload(row: dict[str, Any], limits: PayloadLimits) -> tuple[bytes, str | None, str]:
        row = reader.read(info.name, row)
        tenant = "" if tenant_field is None else tenant_of(row.get(tenant_field))
        return pack(row, limits), None if spec.key is None else canonical_entity_id(row.get(spec.key)), tenant

    return CommandMapping(spec, plans, field_columns(spec, plans, options, columns), vectorised=False, payload=payload)


def _unique(info: CommandInfo) -> Unique | None:
    """Return how an announced command folds, or None.

    Raises:
        InvalidSettings: The announcement says it in a way that this release does not know.
    """
    facts = info.policy.get("unique")
    if facts is None:
        return None
    try:
        return Unique(**facts)
    except (TypeError, InvalidCommand) as error:
        raise InvalidSettings(
            f"what workers publish of {info.name!r} cannot be used (its unique key: {error}): give the class as module:Class, or install the "
            "workers' release of command_bus"
        ) from None


def named_command(command: Any) -> str:
    """Return the option text for a command: `module:Class` if executors can import the class, else the class itself, pickled.

    Raises:
        InvalidSettings: `command` is neither a command class nor a name.
    """
    if isinstance(command, str):
        return command
    if isinstance(command, type) and issubclass(command, Message):
        if command.__module__ == "__main__" or "<locals>" in command.__qualname__:
            return pickled(command)
        return f"{command.__module__}:{command.__qualname__}"
    raise InvalidSettings(f"a command is a class such as Deposit, 'module:Deposit' or a wire name, not {command!r}")


def mapper_of(text: str) -> Callable[[dict[str, Any]], Message[Any]]:
    """Return the function that makes the command of a row: `module:function`, or one that the driver has pickled.

    Raises:
        InvalidSettings: There is no such function.
    """
    if is_pickled(text):
        mapper: Callable[[dict[str, Any]], Message[Any]] = unpickled(text)
        return mapper
    module, _, name = text.partition(":")
    try:
        found = import_named(module, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidSettings(
            f"option mapper = {text!r}: {error}; give 'package.module:function' that executors can import"
        ) from error
    return cast("Callable[[dict[str, Any]], Message[Any]]", checked_mapper(text, found))


def command_mappings(
    options: WriteOptions, columns: Sequence[str], describe: Callable[[str], CommandInfo | None] | None = None
) -> dict[str, CommandMapping]:
    """Return the mappings of the options' commands, by wire name.

    Args:
        options: What the write was given.
        columns: Names of the rows' columns.
        describe: Returns what workers published of a wire name.

    Raises:
        InvalidSettings: A command cannot be found, or columns are missing.
    """
    mappings: dict[str, CommandMapping] = {}
    texts = [text.strip() for text in options.command.split(",")]
    if len(texts) > 1 and options.command_column is None:
        raise InvalidSettings(f"{len(texts)} commands need option commandColumn: the column with each row's wire name")
    for text in texts:
        mapping, is_event = _mapping(text, options, columns, describe)
        if (name := mapping.spec.name) in mappings:
            raise InvalidSettings(f"option command = {options.command!r} names {name} twice")
        mapping = _requiring_entity_id(mapping)
        mappings[name] = _published(mapping) if is_event else mapping
    return mappings


def _published(mapping: CommandMapping) -> CommandMapping:
    """Return the mapping of an event's rows: each becomes the command that publishes it, in a line of the event's entity."""
    spec, of_event, codec = mapping.spec, mapping.payload, codec_for(Publish)
    kept = None if spec.history is None else history_of(spec.history)
    options = give(message_of(spec, "-", b"", at_most_once=False), {}, kept).options

    def payload(row: dict[str, Any], limits: PayloadLimits) -> tuple[bytes, str | None, str]:
        packed, entity, tenant = of_event(row, limits)
        wrapped = Publish(event=spec.name, payload=packed, options=options, priority=spec.priority, tenant=tenant)
        return codec.encode(wrapped, limits), entity, tenant

    line = delivered_name(spec.entity or "", "")
    made = replace(Publish.spec(), entity=line, key=spec.key, priority=spec.priority, fair_by=spec.fair_by)
    return replace(mapping, spec=made, vectorised=False, payload=payload)


def typed_columns(text: str, describe: Callable[[str], CommandInfo | None]) -> TypedColumns:
    """Return the types of payload and result of a command: `module:Class`, a pickled class, or a wire name that workers announced.

    Raises:
        InvalidSettings: There is no such command.
    """
    module, colon, name = text.partition(":")
    found = unpickled(text) if is_pickled(text) else _importable(module, name) if colon else None
    if found is not None:
        spec = found.spec()
        return TypedColumns(spec.name, fields_schema(found), reply_schema(spec.reply))
    info = describe(text)
    if info is None:
        raise _unknown(text)
    return TypedColumns(info.name, info.schema, info.reply)


def _unknown(text: str) -> InvalidSettings:
    module, colon, name = text.partition(":")
    return InvalidSettings(
        f"option command = {text!r}: no class can be imported by this name ({_why(module, name) if colon else 'it is no module:Class'}), "
        "and no running worker knows it as a wire name. Give 'package.module:Class' of a Command that is installed here and on the executors"
    )


def _mapping(
    text: str, options: WriteOptions, columns: Sequence[str], describe: Callable[[str], CommandInfo | None] | None
) -> tuple[CommandMapping, bool]:
    """Return the mapping of what a text names, and whether it is an event."""
    if is_pickled(text):
        kind = unpickled(text)
        return _class_mapping(kind, options, columns), issubclass(kind, Event)
    module, colon, name = text.partition(":")
    if colon:
        found = _importable(module, name)
        if found is not None:
            return _class_mapping(found, options, columns), issubclass(found, Event)
    info = describe(text) if describe is not None else None
    if info is None:
        raise _unknown(text)
    return announced_mapping(info, options, columns), info.kind == "event"


def _requiring_entity_id(mapping: CommandMapping) -> CommandMapping:
    """Return the mapping with a short error for the commonest bad row, one without an entity id; models say it at greater length."""
    key = mapping.spec.key
    if key is None:
        return mapping
    column = mapping.columns.get(key, key)
    checked = mapping.payload

    def payload(row: dict[str, Any], limits: PayloadLimits) -> tuple[bytes, str | None, str]:
        if row.get(key) is None:
            raise InvalidCommand(f"{column} is null: it is the entity id of {mapping.spec.name}, which every row needs")
        return checked(row, limits)

    return replace(mapping, payload=payload)


def _importable(module: str, name: str) -> type[Message[Any]] | None:
    try:
        found: Any = import_named(module, name) if may_import(module) else None
    except (ImportError, AttributeError, ValueError):
        return None
    is_command = isinstance(found, type) and issubclass(found, Message) and not is_internal(found.spec().name)
    return found if is_command else None


def _why(module: str, name: str) -> str:
    try:
        import_named(module, name)
    except InvalidSettings as error:
        return error.message
    except ImportError as error:
        return f"{error}; sys.path of {sys.executable} has no such module"
    except (AttributeError, ValueError):
        return f"module {module} has no Command {name}"
    return f"{module}.{name} is no Command"


def _class_mapping(message_type: type[Message[Any]], options: WriteOptions, columns: Sequence[str]) -> CommandMapping:
    spec = message_type.spec()
    if spec.durable:
        raise InvalidSettings(
            f"{spec.name} is durable, and a load remembers none of its commands by id: no signal would find one. Load a plain command whose "
            "handler sends it by context.send"
        )
    codec = codec_for(message_type)
    codec.prepare()
    plans, vectorised = plans_of(message_type)

    def payload(row: dict[str, Any], limits: PayloadLimits) -> tuple[bytes, str | None, str]:
        message = codec.validate(row)
        entity = None if spec.key is None else canonical_entity_id(getattr(message, spec.key))
        tenant = "" if spec.fair_by is None else tenant_of(getattr(message, spec.fair_by, None))
        return codec.encode(message, limits), entity, tenant

    fed = field_columns(spec, plans, options, columns)
    vectorised = vectorised and all(plan.name in fed or plan.default is not MISSING for plan in plans)
    return CommandMapping(spec, plans, fed, vectorised, payload)


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
