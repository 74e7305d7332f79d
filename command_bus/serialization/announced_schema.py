"""Announced JSON Schemas, made safe to walk: a client that may announce a command may write anything there.

The keywords that the tools read then have the type that they expect, or are left out. Other keywords are passed on unchanged. Nothing is
deeper than `DEEPEST` levels, no reference is dangling or leads, by references alone, back to itself, and numbers are finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

DEEPEST: Final = 60
"""Levels of nesting; a model that anybody would write has a dozen."""

Schema = dict[str, Any]
_PREFIX = "#/$defs/"


def sound_schema(found: Any) -> Schema | None:
    """Return the schema without what does not fit; None if it is no object."""
    if not isinstance(found, Mapping):
        return None
    whole: Mapping[str, Any] = found
    given: Any = whole.get("$defs")
    definitions: dict[str, Mapping[str, Any]] = {}
    if isinstance(given, Mapping):
        definitions = {name: each for name, each in given.items() if isinstance(each, Mapping)}
    known = set(definitions)
    schema = _schema(whole, known, 0)
    if definitions:
        schema["$defs"] = _without_circles({name: _schema(each, known, 1) for name, each in definitions.items()})
    return schema


def plain_data(value: Any, depth: int = 0) -> Any:
    """Return data from JSON without numbers that are none and references, with None for what is nested too deep.

    A reference in data refers to nothing, but programs that read an OpenAPI document follow each that they meet.
    """
    if depth > DEEPEST and isinstance(value, Mapping | list):
        return None
    if isinstance(value, Mapping):
        return {str(name): plain_data(each, depth + 1) for name, each in value.items() if name != "$ref"}
    if isinstance(value, list):
        return [plain_data(each, depth + 1) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _schema(found: Mapping[str, Any], known: set[str], depth: int) -> Schema:
    """Return a schema's keywords, without values that do not fit."""
    if depth > DEEPEST:
        return {}
    schema: Schema = {}
    for name, value in found.items():
        if name == "$ref":
            if _refers(value, known):
                schema[name] = value
        elif name in _INNER:
            if (inner := _INNER[name](value, known, depth + 1)) is not None:
                schema[name] = inner
        elif name not in _FITS or _FITS[name](value):
            schema[name] = plain_data(value, depth + 1)
    return schema


def _refers(value: Any, known: set[str]) -> bool:
    return isinstance(value, str) and value.startswith(_PREFIX) and value.removeprefix(_PREFIX) in known


def _one(value: Any, known: set[str], depth: int) -> Any:
    if isinstance(value, bool):
        return value
    return _schema(value, known, depth) if isinstance(value, Mapping) else None


def _several(value: Any, known: set[str], depth: int) -> list[Schema] | None:
    """Return a list of schemas; an empty one if an item is no schema, because a missing alternative would reject valid values."""
    if not isinstance(value, list) or not value or not all(isinstance(each, Mapping) for each in value):
        return None
    return [_schema(each, known, depth) for each in value]


def _named(value: Any, known: set[str], depth: int) -> dict[str, Schema] | None:
    if not isinstance(value, Mapping):
        return None
    return {str(name): _schema(each, known, depth) if isinstance(each, Mapping) else {} for name, each in value.items()}


def _without_circles(definitions: dict[str, Schema]) -> dict[str, Schema]:
    """Drop definitions that refer only to themselves: they define nothing."""
    for name in definitions:
        seen, at = {name}, name
        while (target := str(definitions[at].get("$ref", "")).removeprefix(_PREFIX)) in definitions:
            if target in seen:
                definitions[at] = {}
                break
            seen.add(target)
            at = target
    return definitions


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


_INNER: Final[dict[str, Callable[[Any, set[str], int], Any]]] = {
    "properties": _named,
    "items": _one,
    "additionalProperties": _one,
    "anyOf": _several,
    "oneOf": _several,
    "allOf": _several,
    "prefixItems": _several,
    "x-keys": _one,
}
_FITS: Final[dict[str, Callable[[Any], bool]]] = {
    "$defs": lambda _: False,  # those of the whole schema count
    "type": _is_text,
    "title": _is_text,
    "description": _is_text,
    "format": _is_text,
    "pattern": _is_text,
    "enum": _is_list,
    "required": _is_texts,
    "uniqueItems": lambda value: isinstance(value, bool),
    "x-wire": _is_text,
    "x-packed": _is_texts,
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), _is_number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _is_count),
}
