"""Announcements of commands that are likely to hurt who reads them: any JSON, schemas with odd parts, names that are code."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

__all__ = ["PAYLOAD", "announcements", "records"]

PAYLOAD = "__import__"
_CODE = [
    f"x: int = {PAYLOAD}('os')\n    y",
    f"x; {PAYLOAD}('os')",
    f'"""\n{PAYLOAD}("os")\n"""',
    f"a'), {PAYLOAD}('os')) #",
    "\\",
    '"',
    "'",
    "\n",
    "\x1b[2J",
    "\u009b2J",
    "\u202e",
    "\ud800",
    "a\u00b2",
    "\ufb01eld",
    "def",
    "_default",
    "__all__",
    "model_config",
    "Any",
    "",
    "x" * 300,
]
_KEYWORDS = [
    "$ref", "$defs", "type", "title", "description", "format", "pattern", "enum", "const", "default", "required", "properties", "items",
    "additionalProperties", "anyOf", "oneOf", "allOf", "prefixItems", "uniqueItems", "minimum", "exclusiveMaximum", "multipleOf", "maxLength",
]  # fmt: skip
_TYPES = ["string", "integer", "number", "boolean", "null", "array", "object"]

_names = st.one_of(st.sampled_from(_CODE), st.sampled_from(["a", "b", "A", "B", "amount"]), st.text(max_size=6))
_scalars = st.one_of(
    _names, st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from([10**400, "#/$defs/A", "#/$defs/B", "(a+)+$"])
)
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3), max_leaves=6
)


def _sound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return schemas as they should be, with words in them that should not."""
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(_TYPES),
            "description": _names,
            "title": _names,
            "$ref": st.sampled_from(["#/$defs/A", "#/$defs/B", "#/$defs/C"]),
            "properties": st.dictionaries(_names, inner, max_size=3),
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "enum": st.lists(_scalars, min_size=1, max_size=3),
            "default": _values,
            "pattern": _names,
            "minimum": st.integers(-5, 5),
            "$defs": st.dictionaries(st.sampled_from(["A", "B"]), inner, max_size=2),
        },
    )


_odd = st.dictionaries(st.sampled_from(_KEYWORDS), _values, max_size=4)
_schemas = st.recursive(_odd | _sound(_odd), _sound, max_leaves=5)
_facts = st.fixed_dictionaries(
    {
        "entity": st.one_of(st.sampled_from(["account", None]), _values),
        "key": st.one_of(st.sampled_from(["a", None]), _values),
        "delivery": st.one_of(st.just("at_least_once"), _values),
        "schema": st.one_of(_schemas, _schemas, _values),
    },
    optional={"kind": st.sampled_from(["command", "query"]) | _values, "reply": _schemas | _values, "policy": _values},
)


def _written(facts: Any) -> bytes:
    return json.dumps(facts, ensure_ascii=True).encode()


def records() -> st.SearchStrategy[bytes]:
    """Generate records of a registry: announcements, other JSON, deep nesting, any bytes."""
    deep = st.builds(
        lambda levels, head, tail: (
            b'{"entity":null,"key":null,"delivery":"at_least_once","schema":' + head * levels + b"1" + tail * levels + b"}"
        ),
        st.integers(1, 3000),
        st.sampled_from([b"[", b'{"items":', b'{"properties":{"a":']),
        st.sampled_from([b"]", b"}", b"}}"]),
    )
    return st.one_of(_facts.map(_written), _values.map(_written), deep, st.binary(max_size=50))


def announcements() -> st.SearchStrategy[dict[str, bytes]]:
    """Generate a registry: records by wire name."""
    return st.dictionaries(
        st.sampled_from(["Deposit", "a.b", "a:b", "Query"]) | _names, _facts.map(_written) | records(), max_size=3
    )
