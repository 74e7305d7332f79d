"""JSON, read strictly, and values as JSON has them: one rule for every edge.

| value | JSON |
| --- | --- |
| bytes | text in UTF-8; bytes that are no UTF-8 as `data:;base64,…` (RFC 2397) |
| NaN, infinities | null: JSON has no such numbers, and none is read |
| Decimal, UUID, … | as pydantic writes them: mostly text; times and spans in ISO 8601 |
| sets, tuples | arrays |
| keys | text; one that is no text is its own JSON, in text: `7`, `true`, `[1,"a"]` |
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_jsonable_python

_PLAIN = frozenset({str, int, bool, type(None)})
_PERHAPS_INEXACT = re.compile(rb"[0-9.]{17}|[eE][+-]?[0-9]{3}")
BASE64 = "data:;base64,"
"""Begins the form of bytes that are no text."""


class LongNumber(float):
    """A number with its text, because a double may not keep all of it: a Decimal is made of the text."""

    __slots__ = ("text",)

    text: str


def read_json(text: str | bytes) -> Any:
    """Return what a JSON text says.

    Raises:
        ValueError: It is no JSON, nests too deeply, or has a number that is none (NaN, Infinity) or that no double holds, or half of a
            surrogate pair.
    """
    try:
        data = text.encode() if isinstance(text, str) else text
    except UnicodeEncodeError:
        raise ValueError("it has half of a surrogate pair, which UTF-8 cannot carry") from None
    found = from_json(data, allow_inf_nan=False)
    return json.loads(data, parse_float=_number) if _PERHAPS_INEXACT.search(data) else found


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is beyond what a double holds")
    if not _PERHAPS_INEXACT.search(text.encode()):
        return value
    number = LongNumber(value)
    number.text = text
    return number


def json_form(value: Any) -> Any:
    """Return a value of a payload or a reply as JSON has it."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:  # before the abstract classes: to ask them takes ten times as long, and a request may have 300,000 lists
        return [each if type(each) in _PLAIN else json_form(each) for each in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if kind is dict or isinstance(value, Mapping):
        return {key_form(key): json_form(each) for key, each in value.items()}
    if isinstance(value, bytes):
        return _text_of(value)
    if isinstance(value, set | frozenset | deque) or (isinstance(value, Sequence) and not isinstance(value, str)):
        return [json_form(each) for each in value]
    try:
        return to_jsonable_python(value, by_alias=False)
    except (PydanticSerializationError, ValueError):
        return str(value)


def key_form(key: Any) -> str:
    """Return a key of a map as JSON has it."""
    if type(key) is str:
        return key
    form = json_form(key)
    return form if isinstance(form, str) else json.dumps(form, separators=(",", ":"), ensure_ascii=False)


def _text_of(value: bytes) -> str:
    with suppress(UnicodeDecodeError):
        if not value.startswith(BASE64.encode()):
            return value.decode()
    return BASE64 + base64.b64encode(value).decode()


def bytes_from(text: str) -> bytes:
    """Return the bytes of which a text is the form.

    Raises:
        ValueError: It begins as base64 does, and is none.
    """
    return base64.b64decode(text.removeprefix(BASE64), validate=True) if text.startswith(BASE64) else text.encode()
