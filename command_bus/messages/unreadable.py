"""Definitions that no value could come back from: found in pydantic's core schema, so that a class is refused and not its commands.

A payload is a map of fields: it does not say of which class they are. So of two models (or dataclasses) with the same fields in one union the
first is always read. And a field that is left out of the payload needs a default to be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

Node = dict[str, Any]
_RECORDS = frozenset({"model", "dataclass"})
_FIELDS = frozenset({"model-field", "dataclass-field", "typed-dict-field"})
_OPAQUE = frozenset(
    {"metadata", "serialization", "config", "default", "expected", "members", "function", "cls", "computed_fields"}
)
_KEYED = frozenset({"fields", "choices"})
_NAMELESS = _OPAQUE - {"default", "expected", "members", "function"} | {"ref", "model_name", "dataclass_name"}
"""What two schemas may differ in, and still take the same."""


def unreadable(schema: Any) -> str | None:
    """Return what in a schema is never read back as it was sent, and what to do; None if there is nothing."""
    nodes = list(_nodes(schema))
    definitions: dict[str, Node] = {node["ref"]: node for node in nodes if "ref" in node and node.get("type") != "definition-ref"}
    for node in nodes:
        if node.get("type") == "union" and (twins := _twins(node, definitions)):
            first, second = twins
            return (
                f"{first} and {second} have the same fields, so a {second} would be read as a {first}: give the union a discriminator, as "
                'kind: Literal["…"] in both and Field(discriminator="kind")'
            )
        for name, field in _fields(node):
            if field.get("serialization_exclude") is True and field["schema"].get("type") != "default":
                return f"the field {name!r} is left out of what is sent (exclude=True), and has no default to be read with: give it one"
    return None


def _nodes(schema: Any) -> Iterator[Node]:
    if isinstance(schema, dict):
        node = cast("Node", schema)
        yield node
        for key, value in node.items():
            if key in _KEYED and isinstance(value, dict):
                yield from _nodes(list(cast("Node", value).values()))
            elif key not in _OPAQUE:
                yield from _nodes(value)
    elif isinstance(schema, list | tuple):
        for item in cast("list[Any]", schema):
            yield from _nodes(item)


def _fields(node: Node) -> Iterator[tuple[str, Node]]:
    fields: Any = node.get("fields")
    if isinstance(fields, dict):
        listed = list(cast("Node", fields).items())
    elif isinstance(fields, list):  # of a dataclass; in its outer schema they are names
        listed = [(field["name"], field) for field in fields if isinstance(field, dict)]
    else:
        return
    yield from ((name, field) for name, field in listed if isinstance(field, dict) and field.get("type") in _FIELDS)


def _twins(union: Node, definitions: dict[str, Node]) -> tuple[str, str] | None:
    """Return the names of two members that take the same fields."""
    seen: dict[str, Node] = {}
    for choice in union["choices"]:
        node: Node = choice[0] if isinstance(choice, tuple) else choice
        if node["type"] == "definition-ref":
            node = definitions.get(node["schema_ref"], node)
        if node["type"] not in _RECORDS:
            continue
        for name, other in seen.items():
            if other["cls"] is not node["cls"] and _taken(other) == _taken(node):
                return name, node["cls"].__name__
        seen[node["cls"].__name__] = node
    return None


def _taken(record: Node) -> dict[str, Any]:
    """Return what the fields of a record take, without the names of classes."""
    return {name: _bare(field["schema"]) for name, field in _fields(record["schema"])}


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _bare(item) for key, item in cast("Node", value).items() if key not in _NAMELESS}
    if isinstance(value, list | tuple):
        return [_bare(item) for item in cast("list[Any]", value)]
    return value
