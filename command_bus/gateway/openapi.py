"""`GET /openapi.json`: the gateway as an OpenAPI 3.1 document, with the commands that the token may send, and the events that it may publish.

Pure but for `get_openapi`: `document` makes it from what is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from starlette.responses import Response

from command_bus.admin.command_status import CommandState
from command_bus.gateway.catalogue import KnownCommand
from command_bus.gateway.following import EventQuery
from command_bus.gateway.incoming import Incoming, Query
from command_bus.gateway.inspecting import CancelQuery, EntitiesQuery, EntityQuery, LettersQuery, LookQuery, SchedulesQuery
from command_bus.gateway.problems import PROBLEM_TYPE, answer
from command_bus.gateway.sending import Batch, EventOptions, SendOptions
from command_bus.gateway.tokens import Rights

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
    "Published": _object({"event_id": _TEXT, "subscriptions": {"type": "array", "items": _TEXT}}),
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


_VERSION = "1.0.0"
_PLAIN = re.compile(r"[^A-Za-z0-9._-]")
_KEY: Json = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The command id, with the name of the token before it: a repeat with the same key is not run twice.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[A-Za-z0-9._~-]+$"},
}
_PREFER: Json = {
    "name": "Prefer",
    "in": "header",
    "description": "`wait=5` calls: the answer has the reply.",
    "schema": {"type": "string", "pattern": "^wait=[1-9][0-9]?$"},
}
_LAST_ID: Json = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "The id of the last event that was heard.",
    "schema": {"type": "string", "pattern": "^[0-9]{1,13}-[0-9]{1,9}(,[0-9]{1,13}-[0-9]{1,9})*$"},
}


async def get_openapi(incoming: Incoming) -> Response:
    """Answer with the document."""
    incoming.query(Query)
    known = await incoming.state.catalogue.all()
    return answer(document(known, incoming.holder.rights, incoming.url() or "/"))


def document(known: Mapping[str, KnownCommand], rights: Rights, root: str) -> Json:
    """Return the document for somebody with these rights, of a gateway at this path."""
    schemas: Json = dict(COMPONENTS)
    paths: Json = {}
    for name, command in sorted(known.items()):
        may_send, may_call = rights.may("send", name) and not command.is_query, rights.may("call", name)
        if command.info is None:
            continue
        if command.is_event:
            if rights.may("publish", name):
                paths[f"/events/{_segment(name)}"] = {"post": _publishing(command, schemas)}
        elif may_send or may_call:
            paths[f"/commands/{_segment(name)}"] = {"post": _sending(command, schemas, sends=may_send, calls=may_call)}
    if rights.may_some("send"):
        body = Batch.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(body.pop("$defs"))
        schemas["Batch"] = body
        paths["/commands"] = {"post": _operation("send_batch", "Dispatch many commands", {"200": "BatchResult"}, body="Batch")}
    if rights.may("look") or rights.may("cancel"):
        paths["/commands/{command_id}"] = _single(rights)
    for act, path, name, summary, shown, query in _READS:
        if rights.may(act):
            places = map(_in_path, re.findall(r"{(\w+)}", path))
            operation = _operation(name, summary, {"200": shown} if shown else {}, query, *places)
            paths[path] = {"get": operation if shown else _streaming(operation)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "command_bus", "version": _VERSION, "description": "Commands over HTTP."},
        "servers": [{"url": root}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _sending(command: KnownCommand, schemas: Json, *, sends: bool, calls: bool) -> Json:
    """Return the operation that sends a command, and add the schemas that it names."""
    info = command.info
    assert info is not None  # noqa: S101 - for type checkers: the caller has looked
    own = _component(command.name, schemas)
    schemas[own] = _moved(info.schema, own, schemas)
    answers: dict[str, Any] = {"202": "Receipt", "200": "Receipt"} if sends else {}
    if calls:
        schemas[f"{own}.Reply"] = _reply(info.reply, own, schemas)
        reply = ref(f"{own}.Reply")
        answers["200"] = {"anyOf": [reply, ref("Receipt")]} if sends else reply
    summary = str(info.schema.get("description") or f"{'Call' if command.is_query else 'Send'} {command.name}").partition("\n")[0]
    operation = _operation(f"send_{_PLAIN.sub('_', command.name)}", summary, answers, body=own)
    operation["parameters"] = [_KEY, *([_PREFER] if calls else []), *(_parameters(SendOptions) if sends else [])]
    return operation


def _publishing(event: KnownCommand, schemas: Json) -> Json:
    """Return the operation that publishes an event, and add its schema."""
    info = event.info
    assert info is not None  # noqa: S101 - for type checkers: the caller has looked
    own = _component(event.name, schemas, "events")
    schemas[own] = _moved(info.schema, own, schemas)
    summary = str(info.schema.get("description") or f"Publish {event.name}").partition("\n")[0]
    name = f"publish_{_PLAIN.sub('_', event.name)}"
    return _operation(name, summary, {"202": "Published"}, EventOptions, _KEY, body=own)


def _single(rights: Rights) -> Json:
    path: Json = {"parameters": [_in_path("command_id")]}
    if rights.may("look"):
        path["get"] = _operation("look", "Where a command is, and its reply", {"200": "Status"}, LookQuery)
    if rights.may("cancel"):
        path["delete"] = _operation("cancel", "Cancel a command", {"200": "Cancelled"}, CancelQuery)
    return path


def _streaming(operation: Json) -> Json:
    """Return an operation whose answer is a stream; one of events may go on behind the last."""
    if operation["operationId"] == "events":
        operation["parameters"].append(_LAST_ID)
    operation["responses"]["200"] = {
        "description": "Server-sent events",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
    return operation


def _operation(
    name: str, summary: str, answers: Mapping[str, Any], query: type[Query] = Query, *more: Json, body: str = ""
) -> Json:
    """Return an operation.

    Args:
        name: Its id.
        summary: What it does.
        answers: The schema of each status, or its name.
        query: The fields behind the `?`.
        more: Further parameters.
        body: The name of the body's schema.
    """
    responses: Json = {
        status: {
            "description": "Done",
            "content": {"application/json": {"schema": ref(shown) if isinstance(shown, str) else shown}},
        }
        for status, shown in sorted(answers.items())
    }
    responses["default"] = PROBLEM
    operation: Json = {
        "operationId": name,
        "summary": summary,
        "parameters": [*_parameters(query), *more],
        "responses": responses,
    }
    if body:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": ref(body)}}}
    return operation


def _parameters(query: type[Query]) -> list[Json]:
    """Return the fields of an address as parameters."""
    found = query.model_json_schema()
    return [
        {"name": name, "in": "query", "description": schema.get("description", ""), "schema": _field(schema)}
        for name, schema in found.get("properties", {}).items()
    ]


def _field(schema: Mapping[str, Any]) -> Json:
    """Return the schema of a field as it stands in an address: it is left out, and never null."""
    kept = {name: value for name, value in schema.items() if name not in ("default", "description", "title")}
    choices = [each for each in kept.pop("anyOf", ()) if each != {"type": "null"}]
    return {**kept, **choices[0]} if choices else kept


def _in_path(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _segment(name: str) -> str:
    return name.replace("/", "%2F")


# Schemas of commands: their definitions become components of the document.


def _component(name: str, schemas: Iterable[str], kind: str = "commands") -> str:
    """Return a name for the schema of a command or event that no other has."""
    plain = found = f"{kind}.{_PLAIN.sub('_', name)}"
    number = 1
    while found in schemas:
        number += 1
        found = f"{plain}-{number}"
    return found


def _reply(reply: Mapping[str, Any] | None, own: str, schemas: Json) -> Json:
    shown = {} if reply is None else _moved(reply, f"{own}.Reply", schemas)
    return {
        "type": "object",
        "properties": {"command_id": {"type": ["string", "null"]}, "reply": shown},
        "required": ["command_id", "reply"],
    }


def _moved(schema: Mapping[str, Any], own: str, schemas: Json) -> Json:
    """Return a schema whose definitions are components, and add those."""
    names = {name: f"{own}.{_PLAIN.sub('_', name)}" for name in schema.get("$defs", {})}
    for name, found in schema.get("$defs", {}).items():
        schemas[names[name]] = _renamed(found, names)
    return {name: _renamed(value, names) for name, value in schema.items() if name != "$defs"}


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Return a part of a schema with the new names of its definitions."""
    if isinstance(value, Mapping):
        target = value.get("$ref")
        if isinstance(target, str) and target.rpartition("/")[2] in names:
            return {**{k: _renamed(v, names) for k, v in value.items() if k != "$ref"}, **ref(names[target.rpartition("/")[2]])}
        found = {name: _renamed(each, names) for name, each in value.items()}
        mapping = value.get("mapping")
        if "propertyName" in value and isinstance(mapping, Mapping):  # of a discriminator
            found["mapping"] |= {name: _target(each, names) for name, each in mapping.items() if isinstance(each, str)}
        return found
    return [_renamed(each, names) for each in value] if isinstance(value, list | tuple) else value


def _target(reference: str, names: Mapping[str, str]) -> str:
    name = reference.rpartition("/")[2]
    return f"#/components/schemas/{names[name]}" if name in names else reference


_READS: tuple[tuple[str, str, str, str, str, type[Query]], ...] = (
    ("look", "/commands/{command_id}/progress", "progress", "How far a command is", "", Query),
    ("events", "/events", "events", "What happens to commands", "", EventQuery),
    ("inspect", "/entities", "entities", "Entities that have work", "EntityPage", EntitiesQuery),
    ("inspect", "/entities/{entity_type}/{entity_id}", "entity", "One entity", "Details", EntityQuery),
    ("read", "/entities/{entity_type}/{entity_id}/state", "state", "The state of an entity", "Details", Query),
    ("inspect", "/dead-letters", "dead_letters", "Dead letters, newest first", "LetterPage", LettersQuery),
    ("inspect", "/dead-letters/{letter_id}", "dead_letter", "One dead letter", "Details", Query),
    ("inspect", "/schedules", "schedules", "Schedules", "ScheduleList", SchedulesQuery),
    ("inspect", "/schedules/{name}", "schedule", "One schedule", "Details", Query),
)
"""What is read by `GET`: the right, the path, the operation's id, what it does, the name of the answer's schema (empty: a stream), the fields."""
