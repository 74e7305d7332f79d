"""Commands that are known by their wire name only. What running workers publish of them (see `serialization.announcements`) is enough.

Their JSON Schema checks each row, so the command's class need not be installed where Spark runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from command_bus.errors import InvalidCommand, InvalidSettings
from command_bus.messages.message import MessageSpec, canonical_entity_id
from command_bus.messages.policies import PRIORITIES, Delivery, Priority
from command_bus.messages.unique import Unique
from command_bus.serialization.announcements import CommandInfo
from command_bus.serialization.json_fields import JsonFields
from command_bus.serialization.limits import Limits
from command_bus.serialization.msgpack import pack
from command_bus.spark.options import WriteOptions
from command_bus.spark.writing.command_mapping import CommandMapping, field_columns
from command_bus.spark.writing.field_checks import FieldPlan
from command_bus.transport.flows import tenant_of


def announced_mapping(info: CommandInfo, options: WriteOptions, columns: Sequence[str]) -> CommandMapping:
    """Return the mapping of an announced command.

    Raises:
        InvalidSettings: Columns are missing, or the announcement cannot be used.
    """
    required, fields = set(info.schema.get("required", ())), info.schema.get("properties", {})
    if info.key is not None and info.key not in fields:
        raise InvalidSettings(
            f"what workers publish of {info.name!r} cannot be used (no field {info.key}): give the class as module:Class"
        )
    delivery: Delivery = "at_most_once" if info.delivery == "at_most_once" else "at_least_once"
    given, tenant_field = info.policy.get("priority"), info.policy.get("fair_by")
    priority: Priority | None = given if given in PRIORITIES else None
    spec = MessageSpec(
        info.name,
        info.entity,
        info.key,
        delivery=delivery,
        version=info.version,
        priority=priority,
        fair_by=tenant_field,
        unique=_unique(info),
    )
    plans = [FieldPlan(field, None, required=field in required) for field in fields]
    reader = JsonFields(info.schema)

    def payload(row: dict[str, Any], limits: Limits) -> tuple[bytes, str | None, str]:
        row = reader.read(info.name, row)
        tenant = "" if tenant_field is None else tenant_of(row.get(tenant_field))
        return pack(row, limits), None if spec.key is None else canonical_entity_id(row.get(spec.key)), tenant

    return CommandMapping(spec, plans, field_columns(spec, plans, options, columns), vectorised=False, payload=payload)


def _unique(info: CommandInfo) -> Unique | None:
    """Return how an announced command folds, or None.

    Raises:
        InvalidSettings: The announcement says it in a way that this release does not know.
    """
    facts = info.policy.get("unique")
    if facts is None:
        return None
    try:
        return Unique(**facts)
    except (TypeError, InvalidCommand) as error:
        raise InvalidSettings(
            f"what workers publish of {info.name!r} cannot be used (its unique key: {error}): give the class as module:Class, or install the "
            "workers' release of command_bus"
        ) from None
