"""Pydantic core schemas: find out how their values are packed, and make the validator that reads them back.

Models are strict for Python callers, but MessagePack has no tuples, sets of records, enums or models: they arrive as lists, plain
values and maps. So the wire has a validator of its own, built from a copy of the schema in which exactly the types that
MessagePack lacks may be made from what it has. Numbers, text and flags keep the model's strictness: `"12"`, `1.0` and `True` are
no ints. Fields travel under their own names, whatever their aliases.

Schemas are data, so both are done by walking them. Parts that the walk does not know stay unchanged, and pydantic's serializer packs
their values.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import Enum, IntEnum
from typing import Any, cast

from pydantic_core import CoreConfig, CoreSchema, PydanticCustomError, SchemaValidator

from command_bus.errors import InvalidCommand
from command_bus.serialization.hash_collisions import CROWD, is_crowded
from command_bus.serialization.msgpack import pack, unpack

Node = dict[str, Any]

_INSTANTS = frozenset({"date", "time", "datetime", "timedelta"})
_TEXTS = frozenset({"decimal", "fraction", "uuid", "url", "multi-host-url"})
_RECORDS = frozenset({"model", "dataclass", "typed-dict", "named-tuple", "call"})
_LISTED = frozenset({"tuple", "set", "frozenset", "deque"})
_CHOICES = frozenset({"union", "tagged-union"})
_MAPS = frozenset({"frozendict", "ordered-dict", "counter"})
_RELAXED = _INSTANTS | _TEXTS | _RECORDS | _LISTED | _MAPS | {"enum", "lax-or-strict"}
"""Of these the validator may be lax."""
_HASHED = frozenset({"set", "frozenset", "dict"}) | _MAPS
_OPAQUE_KEYS = frozenset({"metadata", "serialization", "config", "default", "expected", "members", "function", "computed_fields"})
_KEYED_CHILDREN = frozenset({"fields", "choices"})

_SCALARS = frozenset({"str", "int", "float", "bool", "bytes", "none"}) | _INSTANTS | _TEXTS
_SPREAD = _SCALARS - _TEXTS - {"int"}
_COLLECTIONS = _LISTED | {"list", "dict"}
_WRAPPERS = frozenset({"default", "nullable", "function-before", "function-after", "function-wrap", "custom-error"})
_PLAIN_FIELD = frozenset({"type", "schema", "validation_alias", "serialization_alias", "frozen", "metadata"})


class Packing(IntEnum):
    """Return how the instances of a schema are packed."""

    SERIALIZED = 0
    """By pydantic's serializer first: there are nested models, serializers of the user, or types that the walk does not know."""
    DIRECT = 1
    """As they are: only scalars and collections of them."""
    FLAT = 2
    """As they are, and nothing in them nests."""


def wire_validator(schema: CoreSchema, config: CoreConfig | None = None) -> SchemaValidator:
    """Return the validator for unpacked values. It is made without the validators of nested models, which would be the strict ones."""
    definitions: list[Node] = []
    relaxed = _relaxed(cast("Node", schema), definitions)
    definitions += relaxed.get("definitions", [])
    return SchemaValidator(cast("CoreSchema", relaxed), config, _use_prebuilt=False)


def packing_of(schema: CoreSchema) -> Packing:
    """Return how to pack the values of a schema."""
    node, _ = _resolved(schema)
    return _packing(node)


def packing_of_fields(schema: CoreSchema) -> Packing:
    """Return how to pack the `__dict__` of the instances of a model."""
    node, definitions = _resolved(schema)
    if node["type"] == "definition-ref":
        node = _unwrapped(definitions[node["schema_ref"]])
    if node["type"] != "model" or "serialization" in node:
        return Packing.SERIALIZED
    inner = _unwrapped(node["schema"])
    extra = inner.get("extra_behavior") or node.get("config", {}).get("extra_fields_behavior")
    if inner["type"] != "model-fields" or "serialization" in inner or extra == "allow":
        return Packing.SERIALIZED
    fields: list[Node] = list(inner["fields"].values())
    if any(field.keys() - _PLAIN_FIELD for field in fields):  # excluded ones, say
        return Packing.SERIALIZED
    return min((_packing(field["schema"]) for field in fields), default=Packing.FLAT)


def _resolved(schema: CoreSchema) -> tuple[Node, dict[str, Node]]:
    """Return the schema without its wrappers, and its definitions."""
    node = cast("Node", schema)
    definitions: dict[str, Node] = {}
    if node["type"] == "definitions":
        definitions = {item["ref"]: item for item in node["definitions"]}
        node = node["schema"]
    return _unwrapped(node), definitions


def _unwrapped(node: Node) -> Node:
    while node["type"] in _WRAPPERS and "serialization" not in node:
        node = node["schema"]
    return node


def _packing(wrapped: Node) -> Packing:
    node = _unwrapped(wrapped)
    kind = node["type"]
    if "serialization" in node:
        return Packing.SERIALIZED
    if kind in _SCALARS or (kind in ("enum", "literal") and are_scalars(node)):
        return Packing.FLAT
    if kind in _CHOICES:
        return min(map(_packing, choices_of(node)))
    if kind in _COLLECTIONS:
        return min([Packing.DIRECT, *map(_packing, _item_schemas(node))])
    return Packing.SERIALIZED


def are_scalars(node: Node) -> bool:
    """Return whether all values of an enum or literal are scalars."""
    listed: list[Any] = node["members"] if node["type"] == "enum" else node["expected"]
    values = [item.value if isinstance(item, Enum) else item for item in listed]
    return all(isinstance(value, str | int | float | bytes | None) for value in values)


def choices_of(union: Node) -> list[Node]:
    """Return the members of a union."""
    choices: Any = union["choices"]
    found: list[Any] = list(choices.values()) if isinstance(choices, dict) else list(choices)
    return [choice[0] if isinstance(choice, tuple) else choice for choice in found]  # a tuple has a label


def _item_schemas(collection: Node) -> list[Node]:
    items: Any = collection.get("items_schema", [])
    listed: list[Node] = items if isinstance(items, list) else [items]
    named = [collection[key] for key in ("keys_schema", "values_schema") if key in collection]
    if collection["type"] == "dict":
        return named if len(named) == 2 else [{"type": "any"}]
    return listed or [{"type": "any"}]


def copied(node: Node, change: Callable[[Node], Node]) -> Node:
    """Return a copy of a schema whose children are changed."""
    return {key: value if key in _OPAQUE_KEYS else _changed(key, value, change) for key, value in node.items()}


def _changed(key: str, value: Any, change: Callable[[Node], Node]) -> Any:
    if isinstance(value, dict):
        child = cast("Node", value)
        if key in _KEYED_CHILDREN:
            return {name: _changed("", schema, change) for name, schema in child.items()}
        return change(child) if isinstance(child.get("type"), str) else child
    if isinstance(value, list):
        return [_changed("", item, change) for item in cast("Any", value)]
    if isinstance(value, tuple):
        return tuple(_changed("", item, change) for item in cast("Any", value))
    return value


def _relaxed(node: Node, definitions: list[Node]) -> Node:
    """Return a copy of a schema for reading from the wire, given the definitions that it may refer to."""
    kind: str = node["type"]
    copy = copied(node, lambda child: _relaxed(child, definitions))
    if kind in _RELAXED:
        copy["strict"] = False
    copy.pop("now_op", None)  # what was in the future when it was made is not when it is read
    if kind == "model":
        copy["custom_init"] = False  # the fields are known: an __init__ of the user has made them, and takes other arguments
    elif kind.endswith("-field"):
        copy.pop("validation_alias", None)
    elif kind == "literal":
        return _with_enum_values(copy)
    elif kind == "tagged-union":
        copy["choices"] = {**_tags_by_value(copy), **copy["choices"]}
    elif kind == "enum" and not are_scalars(node):
        return _before(copy, _members_by_value(node["members"]))
    elif kind in _HASHED:
        members: Node = copy.get("keys_schema" if "dict" in kind or kind == "counter" else "items_schema", {"type": "any"})
        if _may_crowd(members):
            return _before(copy, _uncrowded(members, definitions))
    return copy


def _with_enum_values(literal: Node) -> Node:
    """Let `Literal[Color.RED]` also take the value of `Color.RED`, which is what travels."""
    expected: list[Any] = literal["expected"]
    plain = [item for item in expected if not isinstance(item, Enum)]
    members = [item for item in expected if isinstance(item, Enum) and item.value not in plain]
    return _before(literal, _members_by_value(members)) if members else literal


def _tags_by_value(union: Node) -> dict[str | int, Any]:
    """Return the members of a union whose discriminator is a member of an enum, by the value of that, which is what travels."""
    choices: dict[Any, Any] = union["choices"]
    return {tag.value: choice for tag, choice in choices.items() if isinstance(tag, Enum) and type(tag.value) in (str, int)}


def _before(node: Node, function: Callable[[Any], Any]) -> Node:
    """Return the schema with a function before it; references to it mean both."""
    reference = {"ref": node.pop("ref")} if "ref" in node else {}
    return {"type": "function-before", "function": {"type": "no-info", "function": function}, "schema": node} | reference


def _members_by_value(members: list[Enum]) -> Callable[[Any], Any]:
    travelling: list[tuple[Any, Enum]] = []
    for member in members:
        with suppress(InvalidCommand):  # a value that cannot be sent cannot arrive either
            travelling.append((unpack(pack(member.value)), member))

    def member_of(value: Any) -> Any:
        found = (member for wire, member in travelling if type(wire) is type(value) and wire == value)
        return next(found, value)

    return member_of


# Sets and keys: what was read as a list, or as text, may only now become members that crowd (see `crowds`).


def _may_crowd(wrapped: Node) -> bool:
    """Return whether many different values of a schema can have one hash."""
    node = _unwrapped(wrapped)
    kind = node["type"]
    if kind in _CHOICES:
        return any(map(_may_crowd, choices_of(node)))
    return not (kind in _SPREAD or (kind in ("enum", "literal") and are_scalars(node)))


def _uncrowded(members: Node, definitions: list[Node]) -> Callable[[Any], Any]:
    """Return a check that rejects what would become a set, or the keys of a map, with many equal hashes. What was read as one has been checked."""
    found: list[SchemaValidator] = []
    few = _unwrapped(members)["type"] in _SCALARS  # sets within sets crowd with few members, too

    def check(value: Any) -> Any:
        kind = type(value)
        if kind not in _HOLDERS or (len(value) <= CROWD and (few or len(value) < 2)):
            return value
        if kind in _CHECKED and _TURNED.isdisjoint(map(type, value)):
            return value
        if not found:
            schema: Node = {"type": "list", "items_schema": members}
            found.append(SchemaValidator(cast("CoreSchema", _with(definitions, schema)), _use_prebuilt=False))
        if is_crowded(_hashable(found[0].validate_python(list(value))), may_be_long=True):
            raise PydanticCustomError("crowded", "Input should not have so many members with equal hashes")
        return value

    return check


_CHECKED = frozenset({set, frozenset, dict})
_HOLDERS = _CHECKED | {list, tuple}
_TURNED = frozenset({str, bytes, tuple, frozenset})
"""What a validator may make something else of; the rest stays as it is, or at least its hash does."""


def _with(definitions: list[Node], schema: Node) -> Node:
    return {"type": "definitions", "schema": schema, "definitions": definitions} if definitions else schema


def _hashable(members: list[Any]) -> list[Any]:
    found: list[Any] = []
    for member in members:
        with suppress(TypeError):  # no member of a set: the set's own validator says so
            hash(member)
            found.append(member)
    return found
