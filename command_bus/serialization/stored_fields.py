"""`stored_fields`: the fields of a record as its class wants them, where any client may have written it; and records that are JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict
from functools import cache
from types import NoneType, UnionType
from typing import Any, Self, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from command_bus.errors import InvalidSettings

T = TypeVar("T", bound=tuple[Any, ...])

_FAR = 2**63


def stored_fields(record: type, values: object, names: Collection[str] | None = None) -> dict[str, Any]:
    """Return those values that are fields of a class, lists as tuples; other names are of a later release, and left out.

    Args:
        record: The class, a dataclass.
        values: A map of names to values, as it was read.
        names: Those of the fields that it may have; None: all of the class.

    Raises:
        ValueError: It is no map, or a value is not of its field's type: whole numbers have 64 bits, others are finite, texts can be encoded.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"is no record: {type(values).__name__}")  # noqa: TRY004 - of what is stored, not of a caller
    found: dict[str, Any] = {}
    for name, kind in _kinds(record).items():
        if name in values and (names is None or name in names):
            if not _fits(kind, values[name]):
                shown = values[name] if isinstance(values[name], int | float) else type(values[name]).__name__
                raise ValueError(f"{name} is {shown}")
            found[name] = tuple(values[name]) if isinstance(values[name], list) else values[name]
    return found


def stored_row(record: type[T], values: object) -> T:
    """Return a named tuple of a list of values in the order of its fields; those with a default may be missing at its end.

    Raises:
        ValueError: It is no such list, or as `stored_fields`.
    """
    names = _kinds(record)
    if not isinstance(values, list | tuple) or len(values) > len(names):
        raise ValueError(f"is no row of {len(names)}: {type(values).__name__}")
    try:
        return record(**stored_fields(record, dict(zip(names, values, strict=False))))
    except TypeError as error:  # one without a default is missing
        raise ValueError(str(error)) from None


@cache
def _kinds(record: type) -> dict[str, Any]:
    return get_type_hints(record)


def _fits(kind: Any, value: Any) -> bool:
    if get_origin(kind) in (Union, UnionType):
        return any(_fits(each, value) for each in get_args(kind))
    if get_origin(kind) is tuple:
        return isinstance(value, list | tuple) and all(_fits(get_args(kind)[0], each) for each in value)
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and -_FAR <= value < _FAR
    if kind is float:
        return isinstance(value, int | float) and math.isfinite(value)
    if kind is str:
        return isinstance(value, str) and not any("\ud800" <= each <= "\udfff" for each in value)
    return isinstance(value, NoneType if kind is None else get_origin(kind) or kind)


class JsonNote:
    """A dataclass that is stored as JSON, in a note of the bus."""

    __slots__ = ()
    fault = ""
    """The error of bytes that are none."""
    is_whole = False
    """Whether fields of a later release must not be left out."""

    def pack(self) -> bytes:
        """Return its bytes."""
        return json.dumps(asdict(cast("Any", self)), separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Return the value that these bytes are.

        Raises:
            InvalidSettings: They are none, or of a later release.
        """
        try:
            values = json.loads(data)
            known = stored_fields(cls, values)
            if cls.is_whole and values.keys() - known.keys():
                raise ValueError("of a later release")
            return cls(**known)
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidSettings(cls.fault) from error
