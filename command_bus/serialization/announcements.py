"""What a worker tells of its commands besides their fields, and how it is read back: for `introspect`, `generate` and typed clients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from command_bus.admin.info import CommandInfo
from command_bus.messages.message import Message, MessageSpec, Query
from command_bus.serialization.announced_schema import plain_data, sound_schema

__all__ = ["announced", "more_facts"]

_ESSENTIAL = frozenset({"entity", "key", "delivery", "schema"})
_POLICY: dict[str, Any] = {"attempts": int, "on_poison": str, "timeout": int | float}


def more_facts(kind: type[Message[Any]], spec: MessageSpec) -> dict[str, Any]:
    """Kind, policies and the schema of the reply."""
    retry = spec.retry
    return {
        "kind": "query" if issubclass(kind, Query) else "command",
        "reply": _reply_schema(spec.reply),
        "policy": {
            "attempts": retry.attempts,
            "delay": retry.delay,
            "backoff": retry.backoff,
            "max_delay": retry.max_delay,
            "on_poison": spec.on_poison,
            "timeout": spec.timeout,
        },
    }


def announced(name: str, record: bytes, workers: tuple[str, ...]) -> CommandInfo | None:
    """A command as it was announced, without what does not fit (see `sound_schema`); None for what cannot be read."""
    try:
        facts: Any = json.loads(record, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    if not isinstance(facts, Mapping) or not facts.keys() >= _ESSENTIAL:
        return None
    schema, kind = sound_schema(facts["schema"]), facts.get("kind", "command")
    texts = (facts["entity"], facts["key"])
    if schema is None or not all(isinstance(each, str | None) for each in texts):
        return None
    if not isinstance(kind, str) or not isinstance(facts["delivery"], str):
        return None
    return CommandInfo(
        name=name,
        kind=kind,
        entity=facts["entity"],
        key=facts["key"],
        delivery=facts["delivery"],
        policy=_policy(facts.get("policy")),
        schema=schema,
        reply=sound_schema(facts.get("reply")),
        workers=workers,
    )


def _policy(found: Any) -> dict[str, Any]:
    """The policy, without what is of another type than this version writes."""
    if not isinstance(found, Mapping):
        return {}
    policy: dict[str, Any] = plain_data(found)
    return {name: value for name, value in policy.items() if value is None or isinstance(value, _POLICY.get(name, object))}


def _reply_schema(reply: Any) -> dict[str, Any] | None:
    try:
        return TypeAdapter(reply).json_schema(mode="serialization")
    except (PydanticUserError, PydanticSchemaGenerationError):  # a type that JSON Schema lacks
        return None
