"""From a JSON Schema to a Python type, as source: what pydantic wrote is read back, as far as it can be told.

Two things cannot: a `Decimal` looks like `float | str` and is taken for a `Decimal`; and types that travel as text (paths, addresses)
are text.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["class_name", "default_of", "members_of", "reference", "references_of", "type_of"]

Schema = Mapping[str, Any]
Names = Mapping[str, str]
"""What each definition is called in the source."""

_TEXTS = {
    "date-time": "dt.datetime",
    "date": "dt.date",
    "time": "dt.time",
    "duration": "dt.timedelta",
    "uuid": "UUID",
    "binary": "bytes",
    "base64url": "bytes",
}
_PLAIN = {"integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_CONSTRAINTS = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
    "minLength": "min_length",
    "maxLength": "max_length",
    "minItems": "min_length",
    "maxItems": "max_length",
    "pattern": "pattern",
}


def type_of(schema: Schema, names: Names) -> str:
    """The type that a schema describes."""
    if "$ref" in schema:
        return names[reference(schema)]
    if len(schema.get("allOf", ())) == 1:
        return type_of(schema["allOf"][0], names)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return _union(choices, names)
    if "const" in schema:
        return _literal([schema["const"]])
    if "enum" in schema:
        return _literal(schema["enum"])
    bare = _bare(schema, names)
    limits = _limits(schema)
    return f"Annotated[{bare}, Field({limits})]" if limits else bare


def reference(schema: Schema) -> str:
    """The name of the definition that a schema refers to."""
    return str(schema["$ref"]).rpartition("/")[2]


def references_of(value: Any) -> Iterator[str]:
    """All definitions that a schema refers to, in the order of their names in it."""
    if isinstance(value, Mapping):
        if isinstance(value.get("$ref"), str):
            yield reference(value)
        for key, each in value.items():
            if key not in ("default", "$defs", "const", "enum", "examples"):
                yield from references_of(each)
    elif isinstance(value, list):
        for each in value:
            yield from references_of(each)


def default_of(schema: Schema, kind: str) -> str | None:
    """The default of a field, as source; None if it has none."""
    if "default" not in schema:
        return None
    value = schema["default"]
    bare = kind.removeprefix("Annotated[").partition("[")[0].partition(",")[0]
    if value is None or (bare in ("str", "int", "float", "bool", "Literal") and isinstance(value, str | int | float)):
        return repr(value)
    empty = {"list": "[]", "dict": "{}", "set": "set()"}
    if bare in empty and not value:
        return empty[bare]
    if " | " in kind and isinstance(value, str | int | float):
        plain = {part.strip() for part in kind.split("|")}
        if type(value).__name__ in plain and not plain & {*_TEXTS.values(), "Decimal"}:
            return repr(value)
    return f"_default({kind}, {value!r})"


def class_name(text: str) -> str:
    """A class name out of a wire name or a definition's."""
    words = [word for word in re.split(r"\W+", text) if word]
    name = "".join(word[0].upper() + word[1:] for word in words) or "Unnamed"
    return f"_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


def members_of(schema: Schema) -> list[tuple[str, Any]]:
    """The members of an enum, named after their values."""
    values: list[Any] = schema["enum"] if "enum" in schema else [schema["const"]]
    names: dict[str, Any] = {}
    for number, value in enumerate(values):
        name = re.sub(r"\W+", "_", str(value)).strip("_").upper()
        if not name or name[0].isdigit() or not name.isidentifier() or keyword.iskeyword(name.lower()) or name in names:
            name = f"VALUE_{name or number}" if f"VALUE_{name or number}" not in names else f"VALUE_{number}_"
        names[name] = value
    return list(names.items())


def _union(choices: list[Schema], names: Names) -> str:
    kinds = [choice.get("type") for choice in choices if choice.get("type") != "null"]
    nothing = ["None"] if len(kinds) < len(choices) else []
    some = [choice for choice in choices if choice.get("type") != "null"]
    if sorted(map(str, kinds)) == ["number", "string"] and "format" not in some[kinds.index("string")]:
        limits = _limits(some[kinds.index("number")])
        parts = [f"Annotated[Decimal, Field({limits})]" if limits else "Decimal"]
    else:
        parts = [type_of(choice, names) for choice in some]
    return " | ".join(dict.fromkeys([*parts, *nothing]))


def _bare(schema: Schema, names: Names) -> str:
    match schema.get("type"):
        case "string":
            return _TEXTS.get(schema.get("format", ""), "str")
        case "array":
            return _array(schema, names)
        case "object":
            values = schema.get("additionalProperties")
            return f"dict[str, {type_of(values, names)}]" if isinstance(values, Mapping) and values else "dict[str, Any]"
        case kind:
            return _PLAIN.get(str(kind), "Any")


def _array(schema: Schema, names: Names) -> str:
    first: list[Schema] = schema.get("prefixItems", [])
    if first:
        return f"tuple[{', '.join(type_of(each, names) for each in first)}]"
    items = schema.get("items")
    inner = type_of(items, names) if isinstance(items, Mapping) and items else "Any"
    return f"{'set' if schema.get('uniqueItems') else 'list'}[{inner}]"


def _limits(schema: Schema) -> str:
    if schema.get("prefixItems") or schema.get("format") in _TEXTS:
        return ""
    return ", ".join(f"{name}={schema[key]!r}" for key, name in _CONSTRAINTS.items() if key in schema)


def _literal(values: list[Any]) -> str:
    if all(value is None for value in values):
        return "None"
    return f"Literal[{', '.join(repr(value) if not isinstance(value, float) else json.dumps(value) for value in values)}]"
