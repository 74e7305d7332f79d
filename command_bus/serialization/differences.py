"""The difference between a value and what came of it: both compared with their classes, all the way down.

`==` does not tell that: `1 == True`, models of pydantic are compared without what they hold aside, and instants in two hours of one name
are never equal across zones.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from itertools import starmap
from typing import Any, cast
from uuid import UUID

from pydantic import BaseModel

_LISTS = (list, tuple, deque)
_SETS = (set, frozenset)
_PLAIN = frozenset({str, int, bool, type(None)})
_BASES = frozenset({date, datetime, time, timedelta, UUID, bytes})
"""Types from which other libraries derive theirs, which have the same value in most cases: that arrives as a value of the type."""


def difference(sent: Any, arrived: Any, path: str = "") -> str | None:
    """Return where and how a value differs from what was sent, without the values; None if it is the same value of the same class."""
    kind = type(sent)
    if kind is not type(arrived):
        if type(arrived) in _BASES and isinstance(sent, type(arrived)) and _is_same(sent, arrived):
            return None
        return f"{path or 'it'}: a {kind.__qualname__} comes back as a {type(arrived).__qualname__}"
    if isinstance(sent, BaseModel):
        return _first(_of_model(sent, arrived, path))
    if isinstance(sent, Mapping):
        return _of_map(sent, arrived, path)
    if isinstance(sent, _LISTS):
        return _of_list(cast("list[Any]", sent), arrived, path)
    if isinstance(sent, _SETS):
        found = {member: member for member in arrived}
        missing = object()
        pairs = ((member, found.get(member, missing), f"{path}{{…}}") for member in cast("set[Any]", sent))
        return _first(starmap(difference, pairs)) or _unless(len(sent) == len(found), path)
    if dataclasses.is_dataclass(sent):
        names = [field.name for field in dataclasses.fields(sent)]
        pairs = ((getattr(sent, name, None), getattr(arrived, name, None), f"{path}.{name}") for name in names)
        return _first(starmap(difference, pairs)) or _unless(_beside(sent, names) == _beside(arrived, names), path)
    return _unless(_is_same(sent, arrived), path)


def _of_model(sent: BaseModel, arrived: BaseModel, path: str) -> Iterable[str | None]:
    for name in type(sent).model_fields:
        yield difference(getattr(sent, name, None), getattr(arrived, name, None), f"{path}.{name}")
    yield difference(sent.__pydantic_extra__, arrived.__pydantic_extra__, path)
    private = arrived.__pydantic_private__ or {}
    for name, value in (sent.__pydantic_private__ or {}).items():
        if not _has_identity(value):  # a lock, say, has no value that could be lost
            yield difference(value, private.get(name), f"{path}.{name}")


def _of_map(sent: Mapping[Any, Any], arrived: Mapping[Any, Any], path: str) -> str | None:
    if len(sent) != len(arrived):
        return _unless(False, path)
    pairs = zip(sent.items(), arrived.items(), strict=True)
    return _first(
        (None if _is_plain_same(key, other) else difference(key, other, f"{path} (a key)"))
        or (
            None
            if _is_plain_same(value, found)
            else difference(value, found, f"{path}.{key}" if isinstance(key, str) else f"{path}[…]")
        )
        for (key, value), (other, found) in pairs
    )


def _of_list(sent: list[Any], arrived: list[Any], path: str) -> str | None:
    if len(sent) != len(arrived) or getattr(sent, "maxlen", None) != getattr(arrived, "maxlen", None):
        return _unless(False, path)
    pairs = enumerate(zip(sent, arrived, strict=True))
    return _first(difference(one, other, f"{path}[{index}]") for index, (one, other) in pairs if not _is_plain_same(one, other))


def _is_plain_same(sent: Any, arrived: Any) -> bool:
    """Return whether two values are the same and of a plain type: most are, and a message may have 500,000 of them."""
    kind = type(sent)
    return kind in _PLAIN and kind is type(arrived) and bool(sent == arrived)


def _is_same(sent: Any, arrived: Any) -> bool:
    if isinstance(sent, datetime):  # in the second of two hours of one name, an instant is equal to none of another zone
        return bool(sent.replace(tzinfo=None) == arrived.replace(tzinfo=None) and sent.utcoffset() == arrived.utcoffset())
    if bool(sent == arrived) or bool(sent != sent and arrived != arrived):  # noqa: PLR0124 - NaN
        return True
    return _has_identity(sent) and hasattr(sent, "__dict__") and difference(vars(sent), vars(arrived)) is None


def _has_identity(value: Any) -> bool:
    """Return whether a value equals nothing but itself."""
    equals: Any = type(value).__eq__
    return equals is object.__eq__


def _beside(value: Any, names: list[str]) -> dict[str, Any]:
    """Return the attributes that somebody gave to a dataclass."""
    return {name: item for name, item in getattr(value, "__dict__", {}).items() if name not in names}


def _unless(same: bool, path: str) -> str | None:
    return None if same else f"{path or 'it'}: it comes back with another value"


def _first(found: Iterable[str | None]) -> str | None:
    return next(filter(None, found), None)
