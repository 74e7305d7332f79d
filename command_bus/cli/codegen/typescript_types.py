"""TypeScript types, as source, from JSON Schemas that pydantic wrote. What a schema does not determine is `unknown`.

Any client may have announced a schema. So all that comes from it is written as a JSON string, as a name of letters and digits, or in a comment
that it cannot end.
"""

from __future__ import annotations

import importlib.resources
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from command_bus.cli.codegen.type_names import class_name
from command_bus.serialization.announcements import CommandInfo

Schema = Mapping[str, Any]
Names = Mapping[str, str]
"""The name of each definition in the source."""

_PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
_NO_NAME = re.compile(r"[^A-Za-z0-9_]+")
_ODD = re.compile(r"[^\x20-\x7e]")
_SCALARS = (str, int, float, bool, type(None))
_CHOICES = ("anyOf", "oneOf", "allOf")
_LONGEST_COMMENT = 500


def declarations(name: str, schema: Schema) -> list[str]:
    """Return the declarations of a type with this name and of the definitions that it uses, without comments that could end early."""
    definitions: Mapping[str, Schema] = schema.get("$defs", {})
    names = _names(name, definitions)
    whole = {key: value for key, value in schema.items() if key != "$defs"}
    circular = {each for each in definitions if each in _reached(each, definitions)}
    found = [_declaration(name, whole, names)]
    found += [_declaration(names[each], {} if each in circular else inner, names) for each, inner in definitions.items()]
    return found


def type_name(wire_name: str) -> str:
    """Return the name of a command's type."""
    return _NO_NAME.sub("_", class_name(wire_name)) or "Command"


def quoted(text: str) -> str:
    """Return a text as a literal. JSON in ASCII is one in TypeScript, too."""
    return json.dumps(text)


def comment(text: str) -> str:
    """Return the first line of a text as a comment above a declaration; empty if there is nothing to say."""
    line = _ODD.sub(" ", text.strip().partition("\n")[0])[:_LONGEST_COMMENT].replace("*/", "* /").strip()
    return f"/** {line} */\n" if line else ""


def _declaration(name: str, schema: Schema, names: Names) -> str:
    description = schema.get("description")
    return f"{comment(description) if isinstance(description, str) else ''}export type {name} = {_type(schema, names)};\n"


def _names(name: str, definitions: Mapping[str, Schema]) -> Names:
    """Return a name for each definition that no other has: `Order_Line` of the type `Order`."""
    found: dict[str, str] = {}
    for number, each in enumerate(definitions):
        plain = f"{name}_{_NO_NAME.sub('_', each)}"
        found[each] = f"{plain}_{number}" if plain in found.values() else plain
    return found


def _type(schema: Schema, names: Names) -> str:
    if isinstance(schema.get("$ref"), str):
        return names.get(_referred(schema), "unknown")
    if "const" in schema:
        return _literals([schema["const"]])
    if isinstance(schema.get("enum"), list):
        return _literals(schema["enum"])
    for keyword in _CHOICES:
        if isinstance(schema.get(keyword), Sequence) and schema[keyword]:
            parts = list(dict.fromkeys(_type(each, names) for each in schema[keyword]))
            return parts[0] if len(parts) == 1 else f"({(' & ' if keyword == 'allOf' else ' | ').join(parts)})"
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(dict.fromkeys(_type({**schema, "type": each}, names) for each in kind)) or "unknown"
    if kind == "array":
        return _array(schema, names)
    if kind == "object" or "properties" in schema:
        return _object(schema, names)
    return _PLAIN.get(str(kind), "unknown")


def _literals(values: Sequence[Any]) -> str:
    """Return the union of some values; `unknown` if there is none, or one is no scalar."""
    if not values or not all(isinstance(each, _SCALARS) for each in values):
        return "unknown"
    return " | ".join(dict.fromkeys(json.dumps(each) for each in values))


def _array(schema: Schema, names: Names) -> str:
    prefix, items = schema.get("prefixItems"), schema.get("items")
    if isinstance(prefix, Sequence) and prefix:
        parts = [_type(each, names) for each in prefix]
        if isinstance(items, Mapping):
            parts.append(f"...Array<{_type(items, names)}>")
        return f"[{', '.join(parts)}]"
    return f"Array<{_type(items, names)}>" if isinstance(items, Mapping) else "Array<unknown>"


def _object(schema: Schema, names: Names) -> str:
    required = set(schema.get("required", ()))
    properties: Mapping[str, Schema] = schema.get("properties", {})
    members = [f"{quoted(name)}{'' if name in required else '?'}: {_type(each, names)}" for name, each in properties.items()]
    more = schema.get("additionalProperties")
    if isinstance(more, Mapping) and not members:
        members.append(f"[key: string]: {_type(more, names)}")
    elif more is not False and (more or not members):
        members.append("[key: string]: unknown")
    return f"{{ {'; '.join(members)} }}" if members else "Record<string, never>"


# Circles: an alias may lead to itself through an object or an array, but not through choices alone.


def _reached(name: str, definitions: Mapping[str, Schema]) -> set[str]:
    """Return the definitions that one leads to through references and choices alone."""
    found: set[str] = set()
    ahead = [name]
    while ahead:
        for each in _bare(definitions.get(ahead.pop(), {})):
            if each not in found:
                found.add(each)
                ahead.append(each)
    return found


def _bare(schema: Schema) -> Iterator[str]:
    if isinstance(schema.get("$ref"), str):
        yield _referred(schema)
        return
    for keyword in _CHOICES:
        for each in schema.get(keyword, ()):
            yield from _bare(each)


def _referred(schema: Schema) -> str:
    return str(schema["$ref"]).removeprefix("#/$defs/")


_CLIENT = "client.ts"


def typescript_source(commands: Sequence[CommandInfo], namespace: str) -> str:
    """Return the module. The same commands give the same text."""
    names = _type_names(commands)
    parts = [_HEAD.format(namespace=quoted(namespace))]
    rows: list[str] = []
    for each in sorted(commands, key=lambda each: each.name):
        name = names[each.name]
        parts += declarations(name, each.schema)
        parts += declarations(f"{name}Reply", {} if each.reply is None else each.reply)
        kind = quoted("query" if each.kind == "query" else "command")
        rows.append(f"  {quoted(each.name)}: {{ fields: {name}; reply: {name}Reply; kind: {kind} }};\n")
    table = comment("All commands, by their names.") + f"export interface Commands {{\n{''.join(rows)}}}\n"
    client = importlib.resources.files("command_bus.cli.codegen").joinpath(_CLIENT).read_text(encoding="utf-8")
    return "\n".join([*parts, table, client])


def _type_names(commands: Sequence[CommandInfo]) -> dict[str, str]:
    """Return a name for the type of each command, which no other has."""
    found: dict[str, str] = {}
    taken = {f"{each}{end}" for each in _OWN for end in ("", "Reply")}
    for each in sorted(commands, key=lambda each: each.name):
        plain = name = type_name(each.name)
        number = 1
        while {name, f"{name}Reply"} & taken:
            number += 1
            name = f"{plain}{number}"
        taken |= {name, f"{name}Reply"}
        found[each.name] = name
    return found


_HEAD = """\
// Written by `command-bus generate --ts` from the commands of the namespace {namespace}: do not edit.
// It is for the gateway (`command-bus serve`).
"""
_OWN = (
    "Array", "AsyncGenerator", "BatchItem", "BatchOutcome", "BatchResult", "BusEvent", "CallOptions", "Client", "ClientOptions", "CommandName",
    "Commands", "Error", "Problem", "Progress", "Promise", "Receipt", "Record", "Response", "SendName", "SendOptions", "Status", "TextDecoder", "any",
    "boolean",
    "never", "null", "number", "object", "string", "undefined", "unknown", "void",
)  # fmt: skip
"""Names that the client declares or uses."""
