"""The descriptions of commands that a worker publishes: schema, policies and reply, enough to send them without their classes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from command_bus.handlers.registry import HandlerRegistry
from command_bus.messages.handling_policy import HandlingPolicy
from command_bus.messages.message import Message, MessageSpec, Query, is_internal
from command_bus.messages.unique import Unique
from command_bus.serialization.json_schemas import fields_schema, reply_schema
from command_bus.settings import BusSettings


def describe_commands(registry: HandlerRegistry, settings: BusSettings) -> dict[str, bytes]:
    """Return the JSON descriptions of a worker's commands by wire name: enough to send them without their classes."""
    described = {
        handler.spec.name: describe_message(handler.message_type, settings)
        for handler in registry
        if not is_internal(handler.spec.name)
    }
    return {name: record for name, record in described.items() if record is not None}


def describe_message(kind: type[Message[Any]], settings: BusSettings) -> bytes | None:
    """Return the JSON description of a command; None if JSON Schema lacks the type of a field: its class is needed then."""
    spec = kind.spec()
    schema = fields_schema(kind)
    if schema is None:
        return None
    policy = settings.handling(spec)
    facts: dict[str, Any] = {"entity": spec.entity, "key": spec.key, "delivery": policy.delivery, "schema": schema}
    if spec.version > 1:
        facts["version"] = spec.version
    facts |= describe_command(kind, spec, policy)
    return json.dumps(facts, sort_keys=True, default=str).encode()


def describe_command(kind: type[Message[Any]], spec: MessageSpec, policy: HandlingPolicy) -> dict[str, Any]:
    """Return kind, policies and the schema of the reply."""
    retry = policy.retry
    return {
        "kind": "query" if issubclass(kind, Query) else "command",
        "reply": reply_schema(spec.reply),
        "policy": {
            "attempts": retry.attempts,
            "delay": retry.delay,
            "delays": retry.delays,
            "backoff": "function" if callable(retry.backoff) else retry.backoff,
            "factor": retry.factor,
            "max_delay": retry.max_delay,
            "on_poison": spec.on_poison,
            "attempt_timeout": policy.attempt_timeout,
            "unique": None if spec.unique is None else _unique(spec.unique, spec.name),
            "priority": spec.priority,
            "fair_by": spec.fair_by,
        },
    }


def _unique(unique: Unique, name: str) -> dict[str, Any]:
    facts = asdict(unique)
    until = unique.until or ("settled" if unique.wins == "first" else "started")
    return {**facts, "key": unique.key or name, "until": until}
