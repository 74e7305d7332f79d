"""Python types, as source, from JSON Schemas that pydantic wrote, as far as a schema determines the type.

Types that are sent as text (paths, addresses) are read as `str`.
"""

from __future__ import annotations

import base64
import json
import keyword
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from command_bus.cli.codegen.checked_source import IMPORTED
from command_bus.serialization.limits import Undecodable
from command_bus.serialization.msgpack import unpack
from command_bus.serialization.schema_check import pattern_validator

Schema = Mapping[str, Any]
Names = Mapping[str, str]
"""The name of each definition in the source."""

_NO_NAME = re.compile(r"\W+")
_LONGEST = 200  # characters of a name
_TAKEN = {*(name for names in IMPORTED.values() for name in names), "dt", "_default"}
_OF_MODELS = {"model_config", "model_fields", "model_computed_fields"}
_TEXTS = {
    "date-time": "dt.datetime",
    "date": "dt.date",
    "time": "dt.time",
    "duration": "dt.timedelta",
    "uuid": "UUID",
}
_ENCODED = {"base64": "Base64", "base64url": "Base64Url"}
LITERAL = (str, bytes, int, bool, float, type(None))
_PLAIN = {"integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_OF_NUMBERS = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
}
_CONSTRAINTS = {  # by type: with a limit on another type the class could not be created
    "integer": _OF_NUMBERS,
    "number": _OF_NUMBERS,
    "string": {"minLength": "min_length", "maxLength": "max_length", "pattern": "pattern"},
    "array": {"minItems": "min_length", "maxItems": "max_length"},
}


def python_type(schema: Schema, names: Names) -> str:
    """Return the type that a schema describes."""
    if "$ref" in schema:
        return names[reference(schema)]
    if len(schema.get("allOf", ())) == 1:
        return python_type(schema["allOf"][0], names)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if schema.get("x-wire") == "decimal":
        limits = _limits(choices[0]) if choices else ""
        return f"Annotated[Decimal, Field({limits})]" if limits else "Decimal"
    if choices:
        return _union(choices, names, plain=schema.get("x-wire") == "plain")
    if "const" in schema or "enum" in schema:
        values = listed_values(schema)
        return _literal(values) if all(isinstance(value, LITERAL) for value in values) else "Any"
    bare = _bare(schema, names)
    limits = _limits(schema)
    return f"Annotated[{bare}, Field({limits})]" if limits else bare


def listed_values(schema: Schema) -> list[Any]:
    """Return the values of an enum or literal, as they travel."""
    forms: list[Any] = schema["enum"] if "enum" in schema else [schema["const"]]
    try:
        return [unpack(base64.b64decode(each)) for each in schema["x-packed"]] if "x-packed" in schema else forms
    except (ValueError, Undecodable):
        return forms


def reference(schema: Schema) -> str:
    """Return the name of the definition that a schema refers to."""
    return str(schema["$ref"]).rpartition("/")[2]


def iter_references(value: Any) -> Iterator[str]:
    """Yield all definitions that a schema refers to, in the order in which they occur."""
    if isinstance(value, Mapping):
        if isinstance(value.get("$ref"), str):
            yield reference(value)
        for key, each in value.items():
            if key not in ("default", "$defs", "const", "enum", "examples"):
                yield from iter_references(each)
    elif isinstance(value, list):
        for each in value:
            yield from iter_references(each)


def default_source(schema: Schema, kind: str) -> str | None:
    """Return the default of a field as source; None if it has none."""
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
    """Return a class name for a wire name or a definition: letters, digits and underscores, and no name that the source uses otherwise."""
    words = _NO_NAME.split(_identifiable(text))
    name = "".join(word[0].upper() + word[1:] for word in words if word) or "Unnamed"
    if name[0].isdigit() or keyword.iskeyword(name):
        name = f"_{name}"
    return f"{name}_" if name in _TAKEN or name.startswith("__") else name


def field_name_problem(name: str) -> str | None:
    """Return why a class cannot have a field of this name; None if it can."""
    if not name.isidentifier() or keyword.iskeyword(name):
        return "no name in Python"
    if unicodedata.normalize("NFKC", name) != name:
        return "a name that Python reads as another one"
    if name.startswith("_") or name in _OF_MODELS:
        return "a name that pydantic keeps for itself"
    return None


def enum_members(schema: Schema) -> list[tuple[str, Any]]:
    """Return the members of an enum, named after their values."""
    values = listed_values(schema)
    names: dict[str, Any] = {}
    for number, value in enumerate(values):
        name = _identifiable(_NO_NAME.sub("_", _identifiable(str(value))).strip("_").upper()).strip()
        if not name.isidentifier() or keyword.iskeyword(name.lower()) or name in names:
            name = f"VALUE_{name or number}" if f"VALUE_{name or number}" not in names else f"VALUE_{number}_"
        names[name] = value
    return list(names.items())


def _identifiable(text: str) -> str:
    """Return a text normalized as Python normalizes names, with a blank for each character that no name may contain."""
    normal = unicodedata.normalize("NFKC", text[:_LONGEST])
    return "".join(c if f"_{c}".isidentifier() else " " for c in normal)


def _union(choices: list[Schema], names: Names, *, plain: bool) -> str:
    some = [choice for choice in choices if choice.get("type") != "null"]
    nothing = ["None"] if len(some) < len(choices) else []
    kinds = [str(choice.get("type")) for choice in some]
    if (
        not plain and sorted(kinds) == ["number", "string"] and "format" not in some[kinds.index("string")]
    ):  # of an earlier worker
        parts = [python_type({"x-wire": "decimal", "anyOf": [some[kinds.index("number")]]}, names)]
    else:
        parts = [python_type(choice, names) for choice in some]
    return " | ".join(dict.fromkeys([*parts, *nothing]))


def _bare(schema: Schema, names: Names) -> str:
    match schema.get("type"):
        case "string":
            return _text(schema)
        case "array":
            return _array(schema, names)
        case "object":
            values = schema.get("additionalProperties")
            keys = python_type(schema["x-keys"], names) if isinstance(schema.get("x-keys"), Mapping) else "str"
            return f"dict[{keys}, {python_type(values, names) if isinstance(values, Mapping) and values else 'Any'}]"
        case kind:
            return _PLAIN.get(str(kind), "Any")


def _text(schema: Schema) -> str:
    plain = "str" if schema.get("x-wire") is None else "bytes"
    encoded = _ENCODED.get(schema.get("format", ""))
    if encoded is not None and schema.get("x-wire") != "base64":  # the class decodes it, so does the client's
        return f"{encoded}{plain.capitalize()}"
    return _TEXTS.get(schema.get("format", ""), plain)


def _array(schema: Schema, names: Names) -> str:
    first: list[Schema] = schema.get("prefixItems", [])
    if first:
        return f"tuple[{', '.join(python_type(each, names) for each in first)}]"
    items = schema.get("items")
    inner = python_type(items, names) if isinstance(items, Mapping) and items else "Any"
    return f"{'set' if schema.get('uniqueItems') else 'list'}[{inner}]"


def _limits(schema: Schema) -> str:
    if schema.get("prefixItems") or schema.get("format") in {*_TEXTS, *_ENCODED} or "x-wire" in schema:
        return ""
    words = _CONSTRAINTS.get(str(schema.get("type")), {})
    return ", ".join(f"{name}={schema[key]!r}" for key, name in words.items() if key in schema and _holds(key, schema[key]))


def _holds(key: str, value: Any) -> bool:
    """Return whether pydantic supports this limit: a pattern may be of another dialect, if the model uses another engine."""
    return pattern_validator(value) is not None if key == "pattern" else key != "multipleOf" or value > 0


def _literal(values: list[Any]) -> str:
    if all(value is None for value in values):
        return "None"
    return f"Literal[{', '.join(repr(value) if not isinstance(value, float) else json.dumps(value) for value in values)}]"
