"""Schemas of answers, as components of the OpenAPI document."""

from __future__ import annotations

from typing import Any, get_args

from command_bus.admin.command_status import CommandState
from command_bus.gateway.problems import PROBLEM_TYPE

Json = dict[str, Any]


def ref(name: str) -> Json:
    """Return a reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: Json, optional: Json | None = None) -> Json:
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}


_TEXT: Json = {"type": "string"}
_TEXT_OR_NULL: Json = {"type": ["string", "null"]}
_COUNT: Json = {"type": "integer", "minimum": 0}
_FLAG: Json = {"type": "boolean"}
_LIST: Json = {"type": "array", "items": {"type": "object"}}

COMPONENTS: Json = {
    "Problem": _object(
        {"title": _TEXT, "status": {"type": "integer"}, "code": _TEXT, "detail": _TEXT},
        {"errors": {"type": "array", "items": _object({"field": _TEXT, "problem": _TEXT})}, "command_id": _TEXT, "right": _TEXT},
    ),
    "Receipt": _object({"command_id": _TEXT, "status": {"enum": ["accepted", "duplicate", "replaced"]}, "other": _TEXT_OR_NULL}),
    "BatchResult": _object(
        {
            "accepted": _COUNT,
            "duplicates": _COUNT,
            "rejected": _COUNT,
            "replaced": _COUNT,
            "outcomes": {
                "type": "array",
                "items": _object(
                    {
                        "command_id": _TEXT_OR_NULL,
                        "status": {"enum": ["accepted", "duplicate", "replaced", "rejected"]},
                        "other": _TEXT_OR_NULL,
                    },
                    {"error": ref("Problem")},
                ),
            },
        }
    ),
    "Status": _object(
        {"command_id": _TEXT, "state": {"enum": list(get_args(CommandState))}, "name": _TEXT, "entity": _TEXT, "outcome": _TEXT},
        {"position": {"type": ["integer", "null"]}, "attempt": _COUNT, "reply": {}, "error": ref("Problem")},
    ),
    "Cancelled": _object({"command_id": _TEXT, "cancelled": _FLAG}),
    "EntityPage": _object({"entities": _LIST, "cursor": _TEXT_OR_NULL, "matching": _COUNT, "complete": _FLAG}),
    "LetterPage": _object({"letters": _LIST, "cursor": _TEXT_OR_NULL, "looked": _COUNT, "oldest_at": _TEXT_OR_NULL}),
    "ScheduleList": _object({"schedules": _LIST, "complete": _FLAG}),
    "Details": {"type": "object"},
}
"""Of all documents."""

PROBLEM: Json = {"description": "What went wrong", "content": {PROBLEM_TYPE: {"schema": ref("Problem")}}}
