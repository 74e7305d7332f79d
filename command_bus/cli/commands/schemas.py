"""Checks of values against the JSON Schemas that pydantic writes; enough to find a wrong field before it is sent.

Keywords that are not supported, such as `format`, are ignored, because the worker's model validates again. Any client may have announced the
schema, so the check is bounded: it stops after `_STEPS` comparisons, and patterns run in pydantic's own engine, whose time grows linearly
with the length of the text. A library was tried and lacks these bounds: fastjsonschema compiles the schema to Python, matches patterns with
`re`, which some patterns block for hours, and reports only that no choice of an `anyOf` fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

__all__ = ["pattern_validator", "schema_problems"]

Schema = Mapping[str, Any]

_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("at least", lambda value, bound: value >= bound),
    "maximum": ("at most", lambda value, bound: value <= bound),
    "exclusiveMinimum": ("above", lambda value, bound: value > bound),
    "exclusiveMaximum": ("below", lambda value, bound: value < bound),
}
_LENGTHS: dict[str, tuple[str, Callable[[int, int], bool]]] = {
    "minLength": ("at least", lambda size, bound: size >= bound),
    "maxLength": ("at most", lambda size, bound: size <= bound),
    "minItems": ("at least", lambda size, bound: size >= bound),
    "maxItems": ("at most", lambda size, bound: size <= bound),
}


_STEPS = 20_000
_LONGEST_PATTERN = 2_000
_DEEPEST = 100


class _Definitions(dict[str, Any]):
    """The definitions of a schema, and how many comparisons are left."""

    left = _STEPS
    depth = 0


def schema_problems(value: Any, schema: Schema) -> list[str]:
    """Return the problems of a value, one sentence each; empty if there is none, or if the check takes too long.

    Args:
        value: Data from JSON.
        schema: A schema that `sound_schema` has cleaned.
    """
    definitions = _Definitions(schema.get("$defs", {}))
    found = _problems(value, schema, definitions, "")
    return found if definitions.left > 0 else []


def _problems(value: Any, schema: Schema, definitions: _Definitions, at: str) -> list[str]:
    definitions.left -= 1
    if definitions.left <= 0 or definitions.depth >= _DEEPEST:
        definitions.left = 0
        return []
    definitions.depth += 1
    try:
        return _of_one(value, schema, definitions, at)
    finally:
        definitions.depth -= 1


def _of_one(value: Any, schema: Schema, definitions: _Definitions, at: str) -> list[str]:
    if "$ref" in schema:
        target = definitions.get(str(schema["$ref"]).rpartition("/")[2])
        return [] if target is None else _problems(value, target, definitions, at)
    for each in schema.get("allOf", ()):
        if found := _problems(value, each, definitions, at):
            return found
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        tried = [_problems(value, each, definitions, at) for each in choices]
        return [] if not all(tried) else min(tried, key=_depth)
    if "const" in schema and value != schema["const"]:
        return [f"{_name(at)} is {schema['const']!r}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{_name(at)} is one of {', '.join(map(repr, schema['enum']))}"]
    kind = schema.get("type")
    if kind in _TYPES and not _TYPES[kind](value):
        return [f"{_name(at)} is of type {kind}, not {_type_of(value)}"]
    return [*_bounds(value, schema, at), *_inside(value, schema, definitions, at)]


def _bounds(value: Any, schema: Schema, at: str) -> list[str]:
    found: list[str] = []
    if _TYPES["number"](value):
        found += [
            f"{_name(at)} is {word} {schema[key]}"
            for key, (word, holds) in _BOUNDS.items()
            if key in schema and not holds(value, schema[key])
        ]
    if isinstance(value, str | list):
        size = len(value)
        found += [
            f"{_name(at)} has {word} {schema[key]}"
            for key, (word, holds) in _LENGTHS.items()
            if key in schema and not holds(size, schema[key])
        ]
    pattern = schema.get("pattern")
    if isinstance(value, str) and pattern is not None and not _matches(pattern, value):
        found.append(f"{_name(at)} matches {pattern}")
    return found


def _inside(value: Any, schema: Schema, definitions: _Definitions, at: str) -> list[str]:
    found: list[str] = []
    if isinstance(value, dict):
        known: Mapping[str, Schema] = schema.get("properties", {})
        found += [f"{_name(_join(at, name))} is missing" for name in schema.get("required", ()) if name not in value]
        more: Any = schema.get("additionalProperties", True)
        for name, each in value.items():
            if name in known:
                found += _problems(each, known[name], definitions, _join(at, name))
            elif more is False:
                found.append(f"{_name(_join(at, name))} is unknown; there are {', '.join(known)}")
            elif isinstance(more, dict):
                found += _problems(each, more, definitions, _join(at, name))
    if isinstance(value, list):
        first: list[Schema] = schema.get("prefixItems", [])
        rest: Any = schema.get("items")
        for index, each in enumerate(value):
            inner = first[index] if index < len(first) else rest
            if isinstance(inner, dict):
                found += _problems(each, inner, definitions, _join(at, str(index)))
    return found


def _matches(pattern: str, value: str) -> bool:
    engine = pattern_validator(pattern)
    if engine is None:  # of another dialect, which the worker may support
        return True
    try:
        engine.validate_python(value)
    except ValidationError:
        return False
    return True


@lru_cache(maxsize=64)
def pattern_validator(pattern: str) -> SchemaValidator | None:
    """Return pydantic's validator of a pattern, which no pattern can block as it can `re`; None if it is too long or of another dialect."""
    if len(pattern) > _LONGEST_PATTERN:
        return None
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return None


def _depth(found: list[str]) -> int:
    """Return a sort key: the choice of which most was matched comes first, because it is the one that was meant."""
    return -max((each.split(" is ")[0].count(".") for each in found), default=0)


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _name(at: str) -> str:
    return at or "the value"


def _type_of(value: Any) -> str:
    return next((name for name, fits in _TYPES.items() if fits(value)), type(value).__name__)
