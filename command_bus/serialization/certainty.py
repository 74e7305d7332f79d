"""Types whose values are certainly the same once they were packed and read again.

Of most types the definition says so: scalars, collections and models of them, unions whose members cannot be taken for each other. Others
may change a value on its way: what validators and serializers of the user do, what is left out, unions that only the value decides, what may
be anything. A sender reads back each value of those before it sends it (see `models`).
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple, cast

from pydantic_core import CoreSchema, SchemaValidator

from command_bus.serialization.schemas import Node, are_scalars, choices_of, copied

KEEPS_VALUE = "keeps_value"
"""Attribute of a validator's function: it returns what it was given, or raises."""

_SINGLE = frozenset({"str", "int", "float", "bool", "bytes", "none", "date", "time", "datetime", "timedelta", "uuid"})
"""Each travels as a type of its own, which no other of them is read from while there is one that fits."""
_SCALARS = _SINGLE | {"decimal", "url", "multi-host-url"}
_PLAIN_FIELD = frozenset(
    {"type", "schema", "required", "validation_alias", "serialization_alias", "frozen", "metadata"},
)


class Certainty(NamedTuple):
    """That every valid value of a type is read back as the same value of the same class.

    Attributes:
        classes: The models within it. One derived from them would be read back as its base.
        valid: Whether pydantic has validated all of it: it does not look at defaults.
    """

    classes: tuple[type, ...]
    valid: bool

    def has_derived(self) -> bool:
        """Return whether there may be a value of a derived class."""
        return bool(self.classes) and any(kind.__subclasses__() for kind in self.classes)


def certainty_of(schema: CoreSchema) -> Certainty | None:
    """Return what is certain of the values of a schema; None if it is not certain that they are read back as they were."""
    node, definitions = _parts(schema)
    walk = _Walk(definitions)
    return Certainty(tuple(walk.classes), walk.valid) if walk.is_certain(node) else None


def certainty_of_fields(schema: CoreSchema) -> Certainty | None:
    """Return what is certain of the instances of a message class, not of those of derived classes."""
    found = certainty_of(schema)
    return None if found is None else Certainty(found.classes[1:], found.valid)


def strict_validator(schema: CoreSchema) -> SchemaValidator:
    """Return what validates values as they are in a program, with `strict=True`: it looks into models and collections."""
    return SchemaValidator(cast("CoreSchema", _exact(cast("Node", schema))), _use_prebuilt=False)


def strict_fields(schema: CoreSchema) -> SchemaValidator:
    """Return `strict_validator` for the `__dict__` of the instances of a model."""
    node, definitions = _parts(schema)
    if node["type"] == "definition-ref":
        node = definitions[node["schema_ref"]]
    return SchemaValidator(_within(definitions, node["schema"]), node.get("config"), _use_prebuilt=False)


def _within(definitions: dict[str, Node], node: Node) -> CoreSchema:
    exact = _exact(node)
    if definitions:
        exact = {"type": "definitions", "schema": exact, "definitions": [*map(_exact, definitions.values())]}
    return cast("CoreSchema", exact)


def _exact(node: Node) -> Node:
    if node["type"] == "function-after" and _keeps_value(node):
        return _exact(node["schema"])
    copy = copied(node, _exact)
    copy.pop("now_op", None)
    if node["type"] == "model":
        copy |= {"revalidate_instances": "always", "custom_init": False}
    elif node["type"].endswith("-field"):
        copy.pop("validation_alias", None)
    return copy


def _parts(schema: CoreSchema) -> tuple[Node, dict[str, Node]]:
    """Return a schema and its definitions."""
    node = cast("Node", schema)
    if node["type"] != "definitions":
        return node, {}
    return node["schema"], {item["ref"]: item for item in node["definitions"]}


class _Walk:
    """Goes through one schema, and through each definition once."""

    def __init__(self, definitions: dict[str, Node]) -> None:
        self.classes: dict[type, None] = {}
        self.valid = True
        self._definitions = definitions
        self._seen: set[str] = set()

    def is_certain(self, node: Node) -> bool:
        kind: str = node["type"]
        if "serialization" in node:
            return False
        if kind in _SCALARS or (kind == "enum" and are_scalars(node)) or (kind == "literal" and _is_plain(node["expected"])):
            return True
        if kind in ("default", "nullable"):
            self.valid &= kind == "nullable" or self._is_valid_default(node)
            return self.is_certain(node["schema"])
        if kind == "function-after":
            return _keeps_value(node) and self.is_certain(node["schema"])
        if kind in ("list", "set", "frozenset", "tuple"):
            items: Any = node.get("items_schema")
            return items is not None and all(map(self.is_certain, items if isinstance(items, list) else [items]))
        if kind == "dict":
            return all(key in node and self.is_certain(node[key]) for key in ("keys_schema", "values_schema"))
        return self._is_certain_compound(kind, node)

    def _is_certain_compound(self, kind: str, node: Node) -> bool:
        if kind == "union":
            return self._is_certain_union(choices_of(node))
        if kind == "tagged-union":
            return (
                isinstance(node["discriminator"], str) and _are_plain_tags(node) and all(map(self.is_certain, choices_of(node)))
            )
        if kind == "definition-ref":
            reference: str = node["schema_ref"]
            known = reference in self._seen
            self._seen.add(reference)
            return known or self.is_certain(self._definitions[reference])
        if kind == "model":
            self.classes[node["cls"]] = None
            return "post_init" not in node and self._is_certain_model(node)
        return kind == "typed-dict" and self._are_certain(node) and node.get("extra_behavior") != "allow"

    def _is_valid_default(self, node: Node) -> bool:
        if "default_factory" in node:
            return False
        inner = SchemaValidator(_within(self._definitions, node["schema"]), _use_prebuilt=False)
        return inner.isinstance_python(node.get("default"), strict=True)

    def _is_certain_model(self, node: Node) -> bool:
        inner: Node = node["schema"]
        if inner["type"] != "model-fields":
            return bool(node.get("root_model")) and self.is_certain(inner)
        extra = inner.get("extra_behavior") or node.get("config", {}).get("extra_fields_behavior")
        return extra != "allow" and "serialization" not in inner and self._are_certain(inner)

    def _are_certain(self, record: Node) -> bool:
        fields: list[Node] = list(record["fields"].values())
        return all(field.keys() <= _PLAIN_FIELD and self.is_certain(field["schema"]) for field in fields)

    def _is_certain_union(self, choices: list[Node]) -> bool:
        """Return whether all members but one travel as types of their own, and that one as none of these."""
        kinds = [kind for choice in choices for kind in _kinds(choice)]
        others = [choice for choice in choices if "other" in _kinds(choice)]
        return len(kinds) == len(set(kinds)) and all(map(self.is_certain, others))


def _are_plain_tags(union: Node) -> bool:
    """Return whether the tags of the members of a union differ also as they travel."""
    tags = [tag.value if isinstance(tag, Enum) else tag for tag in union["choices"]]
    return {*map(type, tags)} <= {str, int} and len({*tags}) == len(tags)


def _keeps_value(node: Node) -> bool:
    return hasattr(node["function"]["function"], KEEPS_VALUE)


def _kinds(node: Node) -> frozenset[str]:
    """Return the types as which the values of a member of a union travel; `other` if they have structure, or a text of their own."""
    kind: str = node["type"]
    if kind == "nullable":
        return _kinds(node["schema"]) | {"none"}
    if kind in _SINGLE and "serialization" not in node:
        return frozenset({kind})
    listed: list[Any] = node["members"] if kind == "enum" else node["expected"] if kind == "literal" else []
    if listed and are_scalars(node) and _is_plain(listed):
        return frozenset(_travelling(item) for item in listed)
    return frozenset({"other"})


def _travelling(item: Any) -> str:
    return type(item.value if isinstance(item, Enum) else item).__name__


def _is_plain(expected: list[Any]) -> bool:
    """Return whether no two of some values are equal as they travel, as `1` and `True` are."""
    return {type(item) for item in expected} in ({str}, {int}) or all(isinstance(item, Enum) for item in expected)
