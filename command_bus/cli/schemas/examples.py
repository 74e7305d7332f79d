"""Examples of a class's fields, made of its schema: bounds, members, NULL and what `Field(examples=…)` names.

Only what the class itself takes is kept, in the form that it sends, so a validator that no schema shows is no false alarm.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from command_bus.errors import InvalidCommand
from command_bus.serialization.announced_schema import sound_schema
from command_bus.serialization.json_fields import message_from_json
from command_bus.serialization.models import codec_for
from command_bus.serialization.msgpack import unpack
from command_bus.serialization.schema_check import SchemaCheck

_DEEPEST: Final = 6
_MOST: Final = 12
"""Candidates of one part of a schema."""
_LONGEST: Final = 1_000
_TRIES: Final = 4
_TEXTS: Final = ("a", "A1", "0", "", "a text of several words")
_FORMATS: Final[dict[str, list[Any]]] = {
    "date-time": ["2026-01-02T03:04:05.678901Z", "2026-01-02T03:04:05"], "date": ["2026-01-02"], "time": ["03:04:05"], "duration": ["PT1M", "-P1D"],
    "uuid": ["00000000-0000-4000-8000-000000000001"], "email": ["a@example.com"], "uri": ["https://example.com/"], "ipv4": ["127.0.0.1"],
    "ipv6": ["::1"], "base64url": ["YQ=="],
}  # fmt: skip

Schema = Mapping[str, Any]


def examples_of(kind: Any, schema: Any) -> tuple[dict[str, Any], dict[str, list[Any]]] | None:
    """Return fields that the class takes, and other values of each that it takes in their place; None if it took nothing that was tried."""
    whole = sound_schema(schema) or {}
    known = {name: _fitting(each, whole) for name, each in whole.get("properties", {}).items()}
    if not all(known.values()):
        return None
    for number in range(_TRIES):
        fields = {name: several[number % len(several)] for name, several in known.items()}
        if (base := _sent(kind, fields)) is not None:
            break
    else:
        return None
    values: dict[str, list[Any]] = {}
    for name, several in known.items():
        taken = [sent[name] for each in several if (sent := _sent(kind, {**fields, name: each})) is not None]
        values[name] = [each for each in taken if each != base[name] or type(each) is not type(base[name])]
    return base, {name: several for name, several in values.items() if several}


def _sent(kind: Any, fields: dict[str, Any]) -> dict[str, Any] | None:
    """Return what the class sends for these fields of JSON; None if it refuses them."""
    try:
        found: dict[str, Any] = unpack(codec_for(kind).encode(message_from_json(kind, kind.spec().name, fields)))
    except InvalidCommand:
        return None
    return found


def _fitting(schema: Schema, whole: Schema) -> list[Any]:
    check = SchemaCheck({"$defs": whole.get("$defs", {}), **schema})
    found: dict[str, Any] = {}
    for each in itertools.islice(candidates(schema, whole), _MOST * 4):
        if not check.located(each):
            found.setdefault(json.dumps(each, sort_keys=True), each)
    return [*found.values()][:_MOST]


def candidates(schema: Schema, whole: Schema, depth: int = 0) -> Iterator[Any]:
    """Yield values of JSON that may fit a part of a schema; the first is the plainest."""
    if depth > _DEEPEST:
        return
    if "$ref" in schema:
        yield from candidates(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole, depth + 1)
        return
    yield from schema.get("examples", ())
    if "const" in schema or "enum" in schema:
        yield from schema.get("enum", [schema.get("const")])
        return
    if choices := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        rows = [itertools.islice(candidates(each, whole, depth + 1), _MOST) for each in choices]
        yield from (each for row in itertools.zip_longest(*rows, fillvalue=_TEXTS) for each in row if each is not _TEXTS)
        return
    kind = schema.get("type")
    if kind == "array":
        yield from _lists(schema, whole, depth)
    elif kind == "object":
        yield from _objects(schema, whole, depth)
    elif kind in ("integer", "number"):
        yield from _numbers(schema, whole=kind == "integer")
    else:
        yield from _texts(schema) if kind in ("string", None) else [True, False] if kind == "boolean" else [None]


def _texts(schema: Schema) -> Iterator[str]:
    yield from _FORMATS.get(schema.get("format", ""), ())
    least, most = schema.get("minLength", 0), schema.get("maxLength", 0)
    yield from _TEXTS
    yield from ("a" * size for size in (least, most) if size <= _LONGEST)


def _numbers(schema: Schema, *, whole: bool) -> Iterator[Any]:
    step = schema.get("multipleOf") or (1 if whole else 0.5)
    low, high = (schema.get(name, schema.get(f"exclusive{name.title()}")) for name in ("minimum", "maximum"))
    near = [each for bound in (low, high) if bound is not None for each in (bound, bound + step, bound - step)]
    if schema.get("multipleOf"):
        near = [found for each in near for found in (math.ceil(each / step) * step, math.floor(each / step) * step)]
    for each in (step, 0, *near, 2 * step, -step, *([] if whole else [1]), 2**40 * step):
        yield int(each) if whole and each == int(each) else each


def _lists(schema: Schema, whole: Schema, depth: int) -> Iterator[list[Any]]:
    first = [next(candidates(each, whole, depth + 1), None) for each in schema.get("prefixItems", ())]
    items = schema.get("items")
    several = [*itertools.islice(candidates(items, whole, depth + 1), _MOST)] if isinstance(items, Mapping) else []
    least = max(schema.get("minItems", 0) - len(first), 0)
    for each in several if not first else [None]:
        yield [*first, *([each] * max(least, 0 if first else 1))]
    yield [*first, *several[:least]]


def _objects(schema: Schema, whole: Schema, depth: int) -> Iterator[dict[str, Any]]:
    fields = schema.get("properties", {}).items()
    known = {name: [*itertools.islice(candidates(each, whole, depth + 1), _MOST)] for name, each in fields}
    base = {name: several[0] for name, several in known.items() if several}
    more = schema.get("additionalProperties")
    if isinstance(more, Mapping) and not known:
        keys = schema.get("x-keys", {"type": "string", **schema.get("propertyNames", {})})
        key = next(candidates(keys, whole, depth + 1), "a")
        name = key if isinstance(key, str) else json.dumps(key)
        yield from ({name: each} for each in itertools.islice(candidates(more, whole, depth + 1), _MOST))
    yield base
    for name, several in known.items():
        yield from ({**base, name: each} for each in several[1:])
