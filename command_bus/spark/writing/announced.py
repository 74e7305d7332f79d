"""Commands that are known by their wire name only. What running workers publish of them (see `serialization.announcements`) is enough.

Their JSON Schema checks each row, so the command's class need not be installed where Spark runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import fastjsonschema

from command_bus.errors import InvalidCommand, InvalidSettings
from command_bus.messages.message import MessageSpec, canonical_entity_id
from command_bus.serialization.limits import Limits
from command_bus.serialization.msgpack import pack
from command_bus.spark.options import WriteOptions
from command_bus.spark.writing.command_mapping import CommandMapping, field_columns
from command_bus.spark.writing.field_checks import FieldPlan

__all__ = ["announced_mapping"]


def announced_mapping(name: str, facts: Mapping[str, Any], options: WriteOptions, columns: Sequence[str]) -> CommandMapping:
    """Return the mapping for a wire name.

    Raises:
        InvalidSettings: Columns are missing, or the schema cannot be used.
    """
    spec = MessageSpec(name, facts["entity"], facts["key"], delivery=facts["delivery"])
    schema: dict[str, Any] = facts["schema"]
    required = set(schema.get("required", ()))
    plans = [FieldPlan(field, None, required=field in required) for field in schema.get("properties", {})]
    try:
        validate: Any = fastjsonschema.compile(schema, use_default=False)
    except fastjsonschema.JsonSchemaDefinitionException as error:
        raise InvalidSettings(
            f"the schema that workers publish for {name!r} cannot be used ({error}): give the class as module:Class"
        ) from None

    def payload(row: dict[str, Any], limits: Limits) -> tuple[bytes, str | None]:
        try:
            validate(json.loads(json.dumps(row, default=_as_json)))
        except fastjsonschema.JsonSchemaValueException as error:
            raise InvalidCommand(f"{name}: {error.message.removeprefix('data.')}") from None
        except (TypeError, ValueError) as error:  # a map whose keys are no JSON, say
            raise InvalidCommand(f"{name}: {error}") from None
        return pack(row, limits), None if spec.key is None else canonical_entity_id(row.get(spec.key))

    return CommandMapping(spec, plans, field_columns(spec, plans, options, columns), vectorised=False, payload=payload)


def _as_json(value: Any) -> Any:
    """Return a text for values that JSON lacks, as pydantic's schemas describe them."""
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
