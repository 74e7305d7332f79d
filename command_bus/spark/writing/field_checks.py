"""The checks of a command's fields that Arrow can do in bulk, read from the model's core schema.

A model of scalars with bounds needs no Python per row: types are the column's, and NULL, NaN and bounds take a few vector operations.
Only rows that fail these, and commands with other fields (validators, dates, nested models), go through pydantic, which decides and
gives the reasons.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import pyarrow as pa
import pyarrow.compute
from pydantic import TypeAdapter
from pydantic_core import CoreSchema

from command_bus.errors import CommandBusError
from command_bus.messages.message import MAX_ENTITY_ID_BYTES, EntityId, Message
from command_bus.serialization.certainty import strict_validator
from command_bus.serialization.msgpack import pack_flat
from command_bus.serialization.schemas import Packing, packing_of_fields

pc = cast("Any", pyarrow.compute)
MISSING: Any = object()

Kind = Literal["entity", "str", "int", "float", "bool", "bytes"]
_BOUNDS = ("ge", "gt", "le", "lt")
_LEAF_KEYS = frozenset({"type", "strict", "metadata", "allow_inf_nan", "min_length", "max_length", "pattern", *_BOUNDS})
_CHANGING = ("str_strip_whitespace", "str_to_lower", "str_to_upper", "str_min_length", "str_max_length", "coerce_numbers_to_str")
# Leaves out classes that mean more in one of the two engines, and negations of them.
_PORTABLE = re.compile(
    r"(?:[^\\\[({]|\{(?!,)|\\[dws.\-/+*?()\[\]{}|^$\\]|\((?!\?)"
    r"|\[(?!\^)(?:[^\\\[\]&~-]|-(?!-)|&(?!&)|~(?!~)|\\[dws.\-/+*?()\[\]{}|^$\\])+\])*"
)
_DEFAULT_KEYS = frozenset(
    {"type", "schema", "default", "default_factory", "default_factory_takes_data", "copy_default", "metadata"}
)
_NULLABLE_KEYS = frozenset({"type", "schema", "metadata"})
_EXACT = 2**53  # up to here each integer is also a float
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """The check of one field in bulk.

    Attributes:
        name: What the field is called.
        kind: The type that the column must have; None if only the model can check it.
        nullable: Whether NULL is a value.
        default: The value if there is no column; `MISSING` if a column is required, or if only the model can make the default.
        bounds: Those of `ge`, `gt`, `le`, `lt`.
        lengths: Least and greatest length, in characters (for bytes: in bytes).
        pattern: The regular expression that the text must match somewhere.
        required: Whether the model has no default.
    """

    name: str
    kind: Kind | None
    nullable: bool = False
    default: Any = MISSING
    bounds: tuple[tuple[str, Any], ...] = ()
    lengths: tuple[int, int | None] = (0, None)
    pattern: str | None = None
    required: bool = True


def plans_of(message_type: type[Message[Any]]) -> tuple[list[FieldPlan], bool]:
    """Return the fields of a class in order, and whether Arrow can check all of them, so that the columns' values are the payload."""
    fields = message_type.model_fields
    schemas = _field_schemas(message_type)
    key = message_type.spec().key
    plans: list[FieldPlan] = []
    for name, info in fields.items():
        required = info.is_required()
        if schemas is None:
            plans.append(FieldPlan(name, None, required=required))
        elif name == key:
            plans.append(FieldPlan(name, "entity" if _is_bare(schemas[name]) else None))
        else:
            plans.append(_plan(name, schemas[name], required=required))
    sent_as_they_are = packing_of_fields(message_type.__pydantic_core_schema__) is Packing.FLAT  # no custom serializer
    return plans, schemas is not None and sent_as_they_are and all(plan.kind is not None for plan in plans)


def _is_bare(schema: dict[str, Any]) -> bool:
    """Return whether a field is a plain `EntityId`: a validator may change the id in the column."""
    return {name: part for name, part in schema.items() if name != "metadata"} == _BARE


_BARE = {name: part for name, part in TypeAdapter(EntityId).core_schema.items() if name != "metadata"}


def _field_schemas(message_type: type[Message[Any]]) -> dict[str, dict[str, Any]] | None:
    """Return the schemas of the fields, or None if something acts on the model as a whole."""
    node = cast("dict[str, Any]", message_type.__pydantic_core_schema__)
    config: dict[str, Any] = node.get("config", {})
    if node["type"] != "model" or node.get("custom_init") or node.get("post_init") or any(config.get(name) for name in _CHANGING):
        return None
    inner = node["schema"]
    if inner["type"] != "model-fields" or inner.get("computed_fields") or inner.get("extra_behavior") == "allow":
        return None
    return {name: field["schema"] for name, field in inner["fields"].items()}


def _plan(name: str, schema: dict[str, Any], *, required: bool) -> FieldPlan:
    default, nullable = MISSING, False
    unknown = FieldPlan(name, None, required=required)
    if schema["type"] == "default":
        default = schema.get("default", MISSING)
        if schema.keys() - _DEFAULT_KEYS or not (default is MISSING or _is_sent(default)):
            return unknown
        schema = schema["schema"]
        if not (default is MISSING or strict_validator(cast("CoreSchema", schema)).isinstance_python(default, strict=True)):
            default = MISSING  # a sender in Python refuses it, as the worker could not read it
    if schema["type"] == "nullable":
        nullable = True
        if schema.keys() - _NULLABLE_KEYS:
            return unknown
        schema = schema["schema"]
    kind = schema["type"]
    if kind not in ("str", "int", "float", "bool", "bytes") or schema.keys() - _LEAF_KEYS:
        return unknown
    pattern = schema.get("pattern")
    if pattern is not None and not _is_portable(pattern):
        return unknown
    bounds = tuple((bound, schema[bound]) for bound in _BOUNDS if bound in schema)
    if not all(_is_compared(kind, bound) for _, bound in bounds):
        return unknown
    lengths = (schema.get("min_length", 0), schema.get("max_length"))
    return FieldPlan(name, kind, nullable, default, bounds, lengths, pattern, required)


def _is_sent(default: Any) -> bool:
    """Return whether a default is a scalar that MessagePack packs as it is."""
    if type(default) not in (str, int, float, bool, bytes, type(None)):
        return False
    try:
        pack_flat(default)
    except CommandBusError:
        return False
    return True


def _is_portable(pattern: Any) -> bool:
    """Return whether Arrow's and the model's engine read a pattern alike."""
    if not isinstance(pattern, str) or not _PORTABLE.fullmatch(pattern):
        return False
    try:
        pc.match_substring_regex(pa.array([""]), pattern)
    except pa.ArrowException:
        return False
    return True


def _is_compared(kind: str, bound: Any) -> bool:
    """Return whether Arrow compares values of a kind with a bound exactly."""
    if type(bound) is int:
        return bound in _INT64 if kind == "int" else kind == "float" and abs(bound) <= _EXACT
    return type(bound) is float and kind == "float"


_ACCEPTED: dict[Kind, tuple[Callable[[pa.DataType], bool], ...]] = {
    "entity": (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string), "str": (pa.types.is_string, pa.types.is_large_string),
    "int": (pa.types.is_integer,), "float": (pa.types.is_floating, pa.types.is_integer), "bool": (pa.types.is_boolean,),
    "bytes": (pa.types.is_binary, pa.types.is_large_binary),
}  # fmt: skip


def fits(plan: FieldPlan, kind: pa.DataType) -> bool:
    """Return whether values of an Arrow type can be what the field wants; True if only the model can check it."""
    if plan.kind is None or pa.types.is_null(kind):
        return plan.kind is None or plan.nullable
    return any(accepts(kind) for accepts in _ACCEPTED[plan.kind])


def is_entity_column(kind: pa.DataType) -> bool:
    """Return whether a column's values have one text in every session, as entity ids need: text, integers, dates."""
    return bool(pa.types.is_integer(kind) or is_text(kind) or pa.types.is_date(kind))


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column holds texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


_TYPES: dict[Kind | None, pa.DataType] = {
    "str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "bytes": pa.binary()
}  # fmt: skip


def typed_for(plan: FieldPlan, column: pa.Array) -> pa.Array:
    """Return a column as the field wants it: integers become the nearest floats, and a column without a type has that of its field."""
    if pa.types.is_null(column.type):
        return column.cast(_TYPES.get(plan.kind, column.type))
    if plan.kind == "float" and pa.types.is_integer(column.type):
        return column.cast(pa.float64(), safe=False)
    return column


def mask_of(plan: FieldPlan, column: pa.Array) -> pa.Array | None:
    """Return the rows that the field certainly accepts; None if it accepts all. The column's type must fit."""
    masks: list[Any] = []
    if plan.kind == "entity" and is_text(column.type):
        size = pc.binary_length(column)
        masks += [pc.greater(size, 0), pc.less_equal(size, MAX_ENTITY_ID_BYTES)]
    elif plan.kind == "float" and pa.types.is_floating(column.type):
        masks.append(pc.is_finite(column))
    elif plan.kind in ("str", "bytes") and plan.lengths != (0, None):
        size = pc.utf8_length(column) if plan.kind == "str" else pc.binary_length(column)
        least, most = plan.lengths
        masks.append(pc.greater_equal(size, least))
        if most is not None:
            masks.append(pc.less_equal(size, most))
    if plan.pattern is not None:
        masks.append(pc.match_substring_regex(column, plan.pattern))
    masks += [_COMPARE[bound](column, value) for bound, value in plan.bounds]
    if plan.nullable:
        masks = [pc.fill_null(mask, True) for mask in masks]
    elif column.null_count:
        masks.append(pc.is_valid(column))
    return all_of(masks)


_COMPARE: dict[str, Any] = {"ge": pc.greater_equal, "gt": pc.greater, "le": pc.less_equal, "lt": pc.less}


def all_of(masks: list[Any]) -> pa.Array | None:
    """Return the rows that all masks accept; None if these are all rows."""
    mask = None
    for each in masks:
        if pc.all(each, skip_nulls=False).as_py() is not True:
            filled = pc.fill_null(each, False)
            mask = filled if mask is None else pc.and_(mask, filled)
    return mask


def widest_of(column: pa.Array) -> int:
    """Return the approximate size of the column's widest value in bytes; numbers and booleans take nine at most."""
    kind = column.type
    if is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return int(pc.max(pc.binary_length(column)).as_py() or 0)
    return 9


def size_of(default: Any) -> int:
    """Return the approximate size of a default in bytes, for rows without its column."""
    return len(default.encode()) if isinstance(default, str) else len(default) if isinstance(default, bytes) else 9
