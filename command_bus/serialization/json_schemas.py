"""JSON Schemas of fields and replies, with what JSON Schema lacks: what the wire carries where JSON has only text or numbers.

| keyword | says |
| --- | --- |
| `x-wire` | `bytes` (a text in UTF-8), `base64` (of bytes), `decimal`, or `plain` of numbers and texts that look like one |
| `x-keys` | of a map whose keys are no text: the schema of a key; JSON has the key's own JSON as text |
| `x-packed` | of an enum or literal with such values: the values in MessagePack, in base64, in the order of `enum` |

Names are the fields' own, never aliases: so they travel, and so replies are.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum, Flag
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from command_bus.errors import InvalidCommand
from command_bus.serialization.msgpack import pack

_MOST_FLAGS = 8
"""Up to so many members of a flag, each of their combinations is named: 256 values."""


def fields_schema(kind: type[BaseModel]) -> dict[str, Any] | None:
    """Return the schema of a class's fields, as JSON may give them; None if JSON Schema lacks the type of one."""
    with suppress(Exception):  # types, and functions of the user, may raise anything here, and a worker runs without
        return kind.model_json_schema(by_alias=False, schema_generator=_Schemas)
    return None


def reply_schema(reply: Any) -> dict[str, Any] | None:
    """Return the schema of a reply, as it is returned; None if JSON Schema lacks its type."""
    with suppress(Exception):
        return TypeAdapter(reply).json_schema(by_alias=False, mode="serialization", schema_generator=_Schemas)
    return None


class _Schemas(GenerateJsonSchema):
    def bytes_schema(self, schema: Any) -> JsonSchemaValue:
        found = super().bytes_schema(schema)
        return {**found, "x-wire": "base64" if found.get("format") == "base64url" else "bytes"}

    def decimal_schema(self, schema: Any) -> JsonSchemaValue:
        return {**super().decimal_schema(schema), "x-wire": "decimal"}

    def union_schema(self, schema: Any) -> JsonSchemaValue:
        found = super().union_schema(schema)
        plain = sorted(str(each.get("type")) for each in found.get("anyOf", ()) if each.get("type") != "null") == [
            "number",
            "string",
        ]
        return {**found, "x-wire": "plain"} if plain else found

    def dict_schema(self, schema: Any) -> JsonSchemaValue:
        found = super().dict_schema(schema)
        if "keys_schema" not in schema:
            return found
        keys = self.generate_inner(schema["keys_schema"])
        return found if keys.get("type") == "string" and not keys.keys() & {"x-wire", "x-packed"} else {**found, "x-keys": keys}

    def enum_schema(self, schema: Any) -> JsonSchemaValue:
        found, kind = super().enum_schema(schema), schema["cls"]
        if not issubclass(kind, Flag):
            return _with_packed(found, schema["members"])
        del found["enum"]
        return found | _together(kind)

    def literal_schema(self, schema: Any) -> JsonSchemaValue:
        return _with_packed(super().literal_schema(schema), schema["expected"])

    # What pydantic computes does not travel: a reply is made again from its fields.

    def model_fields_schema(self, schema: Any) -> JsonSchemaValue:
        return super().model_fields_schema(_stored(schema))

    def dataclass_args_schema(self, schema: Any) -> JsonSchemaValue:
        return super().dataclass_args_schema(_stored(schema))

    def typed_dict_schema(self, schema: Any) -> JsonSchemaValue:
        return super().typed_dict_schema(_stored(schema))


def _stored(schema: Any) -> Any:
    return {**schema, "computed_fields": []}


def _together(kind: type[Flag]) -> JsonSchemaValue:
    """Return which numbers a flag may be: any of its members together."""
    if len(kind) > _MOST_FLAGS:
        return {"type": "integer", "minimum": 0}
    values = {0}
    for member in kind:
        values |= {value | member.value for value in values}
    return {"enum": sorted(values)}


def _with_packed(found: JsonSchemaValue, members: Sequence[Any]) -> JsonSchemaValue:
    """Return the schema of some values; with what travels, if JSON has it in another form."""
    values = [each.value if isinstance(each, Enum) else each for each in members]
    if all(isinstance(each, str | int | float | list | None) for each in values):
        return found
    try:
        return {**found, "x-packed": [base64.b64encode(pack(each)).decode() for each in values]}
    except InvalidCommand:  # a value that cannot be sent: the worker says so
        return found
