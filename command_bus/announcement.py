"""What a worker tells of its commands besides their fields, and how it is read back: for `introspect`, `generate` and typed clients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from command_bus.facts import CommandInfo
from command_bus.messages import Message, MessageSpec, Query

__all__ = ["announced", "more_facts"]


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
    """A command as it was announced; None for what cannot be read."""
    try:
        facts: Any = json.loads(record)
        if not isinstance(facts, Mapping):
            return None
        return CommandInfo(
            name=name,
            kind=facts.get("kind", "command"),
            entity=facts["entity"],
            key=facts["key"],
            delivery=facts["delivery"],
            policy=facts.get("policy", {}),
            schema=facts["schema"],
            reply=facts.get("reply"),
            workers=workers,
        )
    except (ValueError, KeyError):
        return None


def _reply_schema(reply: Any) -> dict[str, Any] | None:
    try:
        return TypeAdapter(reply).json_schema(mode="serialization")
    except (PydanticUserError, PydanticSchemaGenerationError):  # a type that JSON Schema lacks
        return None
