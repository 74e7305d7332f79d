"""Columns with types of their own: payload and result of one command, as structs by its JSON Schema.

Texts, whole and other numbers, truth values, times, lists, maps with texts as keys and models have a column type. Decimals, bytes
and unions of scalars, as ids of entities are, become texts. What else has no column type (other unions, what refers to itself, models that take
further fields) stays JSON as text. A value that does not fit its type is NULL, and no other with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pydantic_core import from_json, to_json

from command_bus.export.columns import MICROS, pc
from command_bus.serialization.odd_values import pass_over

_PREFIX = "#/$defs/"
_PLAIN: dict[str, Any] = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_TYPES: dict[str, type] = {"string": str, "integer": int, "boolean": bool}


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type of a column, and how a value from JSON gets it.

    Attributes:
        arrow: The type.
        convert: Returns the value for the column; None for what does not fit.
    """

    arrow: Any
    convert: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class TypedColumns:
    """The types of payload and result of one command; data, which travels to tasks.

    Attributes:
        command: The wire name.
        payload: JSON Schema of its fields; None if that is not known.
        result: JSON Schema of its reply; None if that is not known.
    """

    command: str
    payload: Mapping[str, Any] | None
    result: Mapping[str, Any] | None

    def types(self) -> dict[str, ColumnType]:
        """Return the types of the columns."""
        return {name: column_type(getattr(self, name)) for name in ("payload", "result")}

    def of(self, batch: Any) -> Any:
        """Return the rows of the command in a batch of the history, with typed columns. What does not fit its type is NULL."""
        batch = batch.filter(pc.equal(batch.column("command"), self.command))
        completed = batch.column("status").to_pylist()
        for name, kind in self.types().items():
            values = [
                None if text is None or (name == "result" and status != "completed") else kind.convert(from_json(text))
                for text, status in zip(batch.column(name).to_pylist(), completed, strict=True)
            ]
            at = batch.schema.get_field_index(name)
            batch = batch.set_column(at, pa.field(name, kind.arrow), pa.array(values, kind.arrow))
        return batch


def column_type(schema: Mapping[str, Any] | None) -> ColumnType:
    """Return the type of a column for values of a JSON Schema."""
    if schema is None:
        return _TEXT
    return _Types(schema.get("$defs", {})).of(schema)


_TEXT = ColumnType(pa.string(), lambda value: None if value is None else to_json(value).decode())
_BARE = ColumnType(pa.string(), lambda value: value if isinstance(value, str) else _TEXT.convert(value))
"""A text as it is, and another scalar as JSON has it: a decimal, bytes, the id of an entity."""


@dataclass(slots=True)
class _Types:
    """Types by schema.

    Attributes:
        definitions: The schemas that others refer to.
        open: Those that are being looked at: one within itself has no type.
    """

    definitions: Mapping[str, Any]
    open: set[str] = field(default_factory=set[str])

    def of(self, schema: Mapping[str, Any]) -> ColumnType:
        name = str(schema.get("$ref", "")).removeprefix(_PREFIX)
        if name:
            return self._named(name)
        choices = [each for key in ("anyOf", "oneOf", "allOf") for each in schema.get(key, ()) if each.get("type") != "null"]
        if choices:
            is_bare = all(each.get("type") in _PLAIN for each in choices)
            return self.of(choices[0]) if len(choices) == 1 else _BARE if is_bare else _TEXT
        kind = schema.get("type")
        if kind == "string" and schema.get("format") == "date-time":
            return ColumnType(MICROS, _optional(_moment))
        if kind in _PLAIN:
            if "x-wire" in schema:
                return _BARE
            return ColumnType(
                _PLAIN[kind], _optional(_number if kind == "number" else lambda value: _checked(value, _TYPES[kind]))
            )
        if kind == "array" and isinstance(schema.get("items"), Mapping):
            inner = self.of(schema["items"])
            return ColumnType(
                pa.list_(inner.arrow), _optional(lambda value: [inner.convert(each) for each in _checked(value, list)])
            )
        if kind == "object":
            return self._object(schema)
        return _TEXT

    def _named(self, name: str) -> ColumnType:
        if name in self.open or name not in self.definitions:
            return _TEXT
        self.open.add(name)
        found = self.of(self.definitions[name])
        self.open.discard(name)
        return found

    def _object(self, schema: Mapping[str, Any]) -> ColumnType:
        further = schema.get("additionalProperties")
        if schema.get("properties") and not further:
            parts = {name: self.of(each) for name, each in schema["properties"].items()}
            struct = pa.struct([(name, each.arrow) for name, each in parts.items()])
            return ColumnType(
                struct, _optional(lambda value: {name: each.convert(value.get(name)) for name, each in parts.items()})
            )
        if isinstance(further, Mapping) and not {"x-keys", "properties"} & schema.keys():
            inner = self.of(further)
            items: Callable[[Any], Any] = lambda value: [(key, inner.convert(each)) for key, each in value.items()]  # noqa: E731
            return ColumnType(pa.map_(pa.string(), inner.arrow), _optional(items))
        return _TEXT


def _optional(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def converted(value: Any) -> Any:
        try:
            return None if value is None else convert(value)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            pass_over("history", type(value).__name__, error)
            return None

    return converted


def _checked(value: Any, kind: type | tuple[type, ...]) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"it is no {kind}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("it is beyond 64 bits")
    return value


def _number(value: Any) -> float:
    return float(_checked(value, (int, float)))  # Arrow refuses whole numbers that a double only has about


def _moment(value: str) -> datetime:
    found = datetime.fromisoformat(value)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
