"""`JsonFields`: a command's fields from JSON, checked by a schema and turned into what the wire carries.

The schema is that of `json_schemas`, announced by a worker or made of the class: the one reader of JSON, with the class and without. A choice
takes the first alternative that the JSON fits as it stands, else the first that it fits when it is turned: a text that may be text or bytes
stays text.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from command_bus.errors import InvalidCommand
from command_bus.serialization.announced_schema import sound_schema
from command_bus.serialization.hash_collisions import CROWD, is_crowded
from command_bus.serialization.json_forms import LongNumber, bytes_from, json_form, key_form, read_json
from command_bus.serialization.json_schemas import fields_schema
from command_bus.serialization.limits import Undecodable
from command_bus.serialization.models import codec_for
from command_bus.serialization.msgpack import unpack
from command_bus.serialization.schema_check import Problem, SchemaCheck

M = TypeVar("M", bound=BaseModel)

Schema = Mapping[str, Any]
_Turn = Callable[[Any], Any]
"""Returns what the wire carries for a value that fits its schema."""
_SHOWN: Final = 5


class JsonFields:
    """A schema, compiled for many commands.

    Args:
        schema: One that `sound_schema` has cleaned.
    """

    def __init__(self, schema: Schema) -> None:
        self._definitions: Mapping[str, Schema] = schema.get("$defs", {})
        self._compiled: dict[str, _Turn | None] = {}
        self._check = SchemaCheck(schema)
        self._turn = self._part(schema) if _turns(schema) else None

    def located(self, fields: Any) -> list[Problem]:
        """Return what is wrong with fields, each with its path; they may have values of Python, too."""
        return self._check.located(json_form(fields))

    def wire(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return fields that fit as the wire carries them. What is no JSON already stays as it is.

        Raises:
            InvalidCommand: A key or a text cannot be turned into what its field holds.
        """
        if self._turn is None:
            return fields
        try:
            turned: dict[str, Any] = self._turn(fields)
        except (ValueError, ArithmeticError, Undecodable) as error:
            raise InvalidCommand(str(error) if type(error) is ValueError else "a text is not what its field holds") from None
        return turned

    def read(self, name: str, fields: Any) -> dict[str, Any]:
        """Return the fields of the command of this name as the wire carries them.

        Raises:
            InvalidCommand: They do not fit.
        """
        if not isinstance(fields, dict) or not all(isinstance(key, str) for key in fields):
            raise InvalidCommand(f"{name}: the fields of a command are a JSON object, a mapping of field names to values")
        if problems := self.located(fields):
            shown = [f"{path or 'the value'} {problem}" for path, problem in problems[:_SHOWN]]
            raise InvalidCommand(f"{name}: {'; '.join(shown)}")
        try:
            return self.wire(fields)
        except InvalidCommand as error:
            raise InvalidCommand(f"{name}: {error.message}") from None

    def _part(self, schema: Schema) -> _Turn | None:
        """Return how values of a part of the schema are turned; None if they stay as they are."""
        if "$ref" in schema:
            return self._reference(str(schema["$ref"]).rpartition("/")[2])
        if "x-packed" in schema:
            return _packed(schema)
        if (wanted := schema.get("x-wire")) in _TURNS:
            return _TURNS[wanted]
        every = [turn for each in schema.get("allOf", ()) if (turn := self._part(each))]
        if every:
            return every[0]
        choices = schema.get("anyOf") or schema.get("oneOf")
        if choices:
            return self._choice(choices)
        return self._array(schema) or self._object(schema)

    def _reference(self, name: str) -> _Turn | None:
        if name not in self._definitions or not _turns(self._definitions[name], self._definitions, {name}):
            return None

        def turn(value: Any) -> Any:
            if name not in self._compiled:  # only now: a definition may refer to itself
                self._compiled[name] = self._part(self._definitions[name])
            inner = self._compiled[name]
            return value if inner is None else inner(value)

        return turn

    def _choice(self, choices: list[Schema]) -> _Turn | None:
        parts = [(self._fits(each), self._part(each)) for each in choices]
        if not any(turn for _, turn in parts):
            return None
        ordered = sorted(parts, key=lambda part: part[1] is not None)

        def turn(value: Any) -> Any:
            form = json_form(value)
            for fits, inner in ordered:
                if fits(form):
                    with suppress(ValueError, ArithmeticError):
                        return value if inner is None else inner(value)
            raise ValueError("a value fits none of its alternatives")

        return turn

    def _fits(self, schema: Schema) -> Callable[[Any], bool]:
        check = SchemaCheck({"$defs": self._definitions, **schema})
        return lambda form: not check.located(form)

    def _array(self, schema: Schema) -> _Turn | None:
        first = [self._part(each) for each in schema.get("prefixItems", ())]
        rest = self._part(schema["items"]) if isinstance(schema.get("items"), Mapping) else None
        if rest is None and not any(first):
            return None

        def turn(value: Any) -> Any:
            if not isinstance(value, list | tuple):
                return value
            turns = [*first, *[rest] * (len(value) - len(first))]
            return [each if inner is None else inner(each) for inner, each in zip(turns, value, strict=False)]

        return turn

    def _object(self, schema: Schema) -> _Turn | None:
        known = {name: part for name, each in schema.get("properties", {}).items() if (part := self._part(each))}
        more, keys = schema.get("additionalProperties"), schema.get("x-keys")
        rest = self._part(more) if isinstance(more, Mapping) else None
        key_of = self._key(keys) if isinstance(keys, Mapping) else None
        if not known and rest is None and key_of is None:
            return None

        def turn(value: Any) -> Any:
            if not isinstance(value, Mapping):
                return value
            names = value if key_of is None else [key_of(name) if type(name) is str else name for name in value]
            if key_of is not None and len(value) > CROWD and is_crowded(names, may_be_long=True):
                raise ValueError("a map has too many keys with equal hashes")
            found: dict[Any, Any] = {}
            for key, (name, each) in zip(names, value.items(), strict=True):
                inner = known.get(name, rest)
                if key in found:
                    raise ValueError(f"{name[:40]!r} is a key twice")
                found[key] = each if inner is None else inner(each)
            return found

        return turn

    def _key(self, schema: Schema) -> Callable[[str], Any]:
        fits, turn = self._fits(schema), self._part(schema)

        def key_of(text: str) -> Any:
            key: Any = text
            if not fits(text):
                with suppress(ValueError):
                    key = read_json(text)
                if isinstance(key, str) or not fits(key) or key_form(key) != text:
                    raise ValueError(f"{text[:40]!r} is no key of its map")
            return _hashable(key if turn is None else turn(key))

        return key_of


@lru_cache(maxsize=4096)
def json_fields_of(kind: type[BaseModel]) -> JsonFields:
    """Return the reader of a class's fields, always the same one. What JSON Schema cannot describe is left to the class."""
    return JsonFields(sound_schema(fields_schema(kind)) or {})


def message_from_json(kind: type[M], name: str, fields: Any) -> M:
    """Return a message of a class from the fields that JSON gave.

    Raises:
        InvalidCommand: They do not fit.
    """
    return codec_for(kind).validate(json_fields_of(kind).read(name, fields))


def _turns(schema: Any, definitions: Mapping[str, Schema] | None = None, seen: set[str] | None = None) -> bool:
    """Return whether something in a schema is turned, also by way of references."""
    if isinstance(schema, list):
        return any(_turns(each, definitions, seen) for each in schema)
    if not isinstance(schema, Mapping):
        return False
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    if definitions is not None and seen is not None and name in definitions and name not in seen:
        seen.add(name)
        if _turns(definitions[name], definitions, seen):
            return True
    return not schema.keys().isdisjoint(_KEYWORDS) or any(_turns(each, definitions, seen) for each in schema.values())


def _packed(schema: Schema) -> _Turn:
    forms = schema.get("enum", [schema.get("const")])
    packed = schema["x-packed"]

    def turn(value: Any) -> Any:
        for form, data in zip(forms, packed, strict=False):
            if type(form) is type(value) and form == value:
                return unpack(base64.b64decode(data))
        return value

    return turn


def _decimal(value: Any) -> Any:
    if isinstance(value, str | LongNumber):
        return Decimal(value if isinstance(value, str) else value.text)
    return Decimal(repr(value)) if type(value) is float else value


def _from_base64(value: Any) -> Any:
    return base64.b64decode(value.replace("-", "+").replace("_", "/"), validate=True) if isinstance(value, str) else value


def _hashable(key: Any) -> Any:
    return tuple(map(_hashable, key)) if isinstance(key, list) else key


_TURNS: Final[dict[Any, _Turn]] = {
    "bytes": lambda value: bytes_from(value) if isinstance(value, str) else value,
    "base64": _from_base64,
    "decimal": _decimal,
}
_KEYWORDS: Final = frozenset({"x-wire", "x-keys", "x-packed"})
