"""The mapping of rows to commands: a command's kind, by class or by wire name, and the columns of its fields, checked when the query is planned."""

from __future__ import annotations

import base64
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from io import BytesIO
from operator import attrgetter, getitem
from typing import Any, Protocol, cast

import pyarrow as pa

from command_bus.errors import InvalidCommand, InvalidSettings
from command_bus.messages.message import Message, MessageSpec, canonical_entity_id
from command_bus.serialization.announcements import CommandInfo
from command_bus.serialization.limits import Limits
from command_bus.serialization.models import codec_for
from command_bus.spark.options import WriteOptions
from command_bus.spark.writing.field_checks import MISSING, FieldPlan, fits, plans_of
from command_bus.transport.flows import tenant_of

__all__ = [
    "CommandMapping",
    "check_columns",
    "command_mappings",
    "mapper_of",
    "named_command",
    "not_folded",
    "pickled",
    "unpickled",
]

_PICKLED = "pickle:"
_ALLOWED = "COMMAND_BUS_SPARK_PICKLE"


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


def pickled(thing: Any) -> str:
    """Return an object as text, pickled by value, so that executors need not import the module of a notebook."""
    from pyspark import cloudpickle

    base: Any = cloudpickle.CloudPickler  # it has no types

    class Pickler(base):  # type: ignore[misc]
        """Pickles `Command[int]` as a subscription, instead of by the module that made it first.

        It also leaves out what pydantic keeps of the function in which a model is defined: all its variables, such as a Spark session.
        """

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type) and issubclass(obj, Message):
                generic: Any = obj.__pydantic_generic_metadata__
                if generic["origin"] is not None:
                    return getitem, (generic["origin"], generic["args"])
            reduced: Any = super().reducer_override(obj)
            if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) > 2:  # else it has no state
                reduced[2][0].pop("__pydantic_parent_namespace__", None)
            return reduced

    buffer = BytesIO()
    Pickler(buffer).dump(thing)
    return _PICKLED + base64.b64encode(buffer.getvalue()).decode()


def unpickled(text: str) -> Any:
    """Return a pickled object. It comes from the user's own driver, so it is trusted like the user's code.

    Raises:
        InvalidSettings: COMMAND_BUS_SPARK_PICKLE=no forbids it, for places where options may come from other people.
    """
    if os.environ.get(_ALLOWED, "").lower() in ("no", "false", "0", "off"):
        raise InvalidSettings(
            f"{_ALLOWED} forbids classes and functions by value here: give 'package.module:name', which executors can import"
        )
    return pickle.loads(base64.b64decode(text.removeprefix(_PICKLED)))  # noqa: S301 - the driver's own option


def mapper_of(text: str) -> Callable[[dict[str, Any]], Message[Any]]:
    """Return the function that makes the command of a row: `module:function`, or one that the driver has pickled.

    Raises:
        InvalidSettings: There is no such function.
    """
    if text.startswith(_PICKLED):
        mapper: Callable[[dict[str, Any]], Message[Any]] = unpickled(text)
        return mapper
    module, _, name = text.partition(":")
    try:
        found = attrgetter(name)(import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidSettings(
            f"option mapper = {text!r}: {error}; give 'package.module:function' that executors can import"
        ) from error
    if not callable(found):
        raise InvalidSettings(f"option mapper = {text!r} is no function")
    return cast("Callable[[dict[str, Any]], Message[Any]]", found)


def command_mappings(
    options: WriteOptions, columns: Sequence[str], describe: Callable[[str], CommandInfo | None] | None = None
) -> dict[str, CommandMapping]:
    """Return the mappings of the options' commands, by wire name.

    Args:
        options: The options of the write.
        columns: The columns of the rows.
        describe: Returns what workers published of a wire name.

    Raises:
        InvalidSettings: A command cannot be found, or columns are missing.
    """
    mappings: dict[str, CommandMapping] = {}
    texts = [text.strip() for text in options.command.split(",")]
    if len(texts) > 1 and options.command_column is None:
        raise InvalidSettings(f"{len(texts)} commands need option commandColumn: the column with each row's wire name")
    for text in texts:
        mapping = _requiring_entity_id(_mapping(text, options, columns, describe))
        mappings[mapping.spec.name] = mapping
    return mappings


def _mapping(
    text: str, options: WriteOptions, columns: Sequence[str], describe: Callable[[str], CommandInfo | None] | None
) -> CommandMapping:
    if text.startswith(_PICKLED):
        return _class_mapping(unpickled(text), options, columns)
    module, colon, name = text.partition(":")
    if colon:
        found = _importable(module, name)
        if found is not None:
            return _class_mapping(found, options, columns)
    info = describe(text) if describe is not None else None
    if info is None:
        raise InvalidSettings(
            f"option command = {text!r}: no class can be imported by this name ({_why(module, name) if colon else 'it is no module:Class'}), "
            "and no running worker knows it as a wire name. Give 'package.module:Class' of a Command that is installed here and on the executors"
        )
    from command_bus.spark.writing.announced import announced_mapping

    return announced_mapping(info, options, columns)


def _requiring_entity_id(mapping: CommandMapping) -> CommandMapping:
    """Return the mapping with a short error for the commonest bad row, one without an entity id; models say it at greater length."""
    key = mapping.spec.key
    if key is None:
        return mapping
    column = mapping.columns.get(key, key)
    checked = mapping.payload

    def payload(row: dict[str, Any], limits: Limits) -> tuple[bytes, str | None, str]:
        if row.get(key) is None:
            raise InvalidCommand(f"{column} is null: it is the entity id of {mapping.spec.name}, which every row needs")
        return checked(row, limits)

    return replace(mapping, payload=payload)


def _importable(module: str, name: str) -> type[Message[Any]] | None:
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found if isinstance(found, type) and issubclass(found, Message) else None


def _why(module: str, name: str) -> str:
    try:
        found = import_module(module)
    except ImportError as error:
        return f"{error}; sys.path of {sys.executable} has no such module"
    return f"module {module} has no Command {name}" if not hasattr(found, name) else f"{module}.{name} is no Command"


def _class_mapping(message_type: type[Message[Any]], options: WriteOptions, columns: Sequence[str]) -> CommandMapping:
    spec = message_type.spec()
    if spec.unique is not None:
        raise not_folded(spec.name)
    codec = codec_for(message_type)
    codec.prepare()
    plans, vectorised = plans_of(message_type)

    def payload(row: dict[str, Any], limits: Limits) -> tuple[bytes, str | None, str]:
        message = codec.validate(row)
        entity = None if spec.key is None else canonical_entity_id(getattr(message, spec.key))
        tenant = "" if spec.fair_by is None else tenant_of(getattr(message, spec.fair_by, None))
        return codec.encode(message, limits), entity, tenant

    fed = field_columns(spec, plans, options, columns)
    vectorised = vectorised and all(plan.name in fed or plan.default is not MISSING for plan in plans)
    return CommandMapping(spec, plans, fed, vectorised, payload)


def not_folded(name: str) -> InvalidSettings:
    """Return the error of a command with a unique key."""
    return InvalidSettings(
        f"{name} has a unique key, and loads do not fold: fold the rows in the DataFrame and dispatch a class without unique=, or send them "
        "with SyncCommandBus().dispatch_batch in a function for foreachPartition"
    )


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
