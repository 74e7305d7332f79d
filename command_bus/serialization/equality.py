"""Equality of values: the one rule by which a repeated id, a call, a step or a schedule is seen to come with the same as before.

A value has one canonical form, however it was written and in whichever process. Maps are in the order of their keys, sets in that of their
members; a Decimal is its number, an instant its moment, an Enum its value. A model, dataclass or named tuple is its fields, without those
that equal their default: a release that adds a field with a default changes nothing. Numbers keep their type: 1, 1.0 and True differ.

A digest of it has eight bytes, so that who compares needs neither values nor classes:

| bytes | |
| --- | --- |
| 1 | 0xD1. Another byte: of another release, which cannot be compared |
| 1 | the version of the command, by which payloads of different versions are not compared |
| 2 | of name and entity |
| 4 | of the canonical form; zeros: it is not known |
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import starmap
from math import isnan
from operator import itemgetter
from struct import Struct
from typing import Any, Final, cast
from uuid import UUID

from pydantic import BaseModel

from command_bus.serialization.extensions import DECIMAL, ENCODERS, SET, TIME
from command_bus.serialization.fields import MISSING, Field, fields_of
from command_bus.serialization.native import ExtType, Packer

DIGEST: Final = 8
"""Bytes of a digest."""
_FORMAT = b"\xd1"
_UNKNOWN = bytes(4)
_MAP = 9
"""Code of an extension that only canonical forms have: a map with a key that is no text."""
_PLAIN = frozenset({str, int, bool, bytes, type(None)})
_NAN = float("nan")
_CLOCK = Struct(">qi")


class NotPlain(ValueError):
    """A value has no canonical form: it is no data."""


def canonical(value: Any) -> bytes:
    """Return the canonical form of a value: equal values give equal bytes, in every process.

    Raises:
        NotPlain: Something in it is no plain data.
    """
    return _canonical(_Walk(), value)


def digest(head: tuple[Any, ...], value: Any, version: int = 0, key: bytes = b"") -> bytes:
    """Return the digest of a value under a name.

    Args:
        head: Its name, and what else tells it from others whatever its version.
        value: A command, its fields or any other.
        version: Number of the form that the fields have, if the value is no command that says it itself.
        key: Who lacks it cannot confirm a guess of the value. That matters where the value itself is encrypted.

    Raises:
        NotPlain: Something in the value is no plain data.
    """
    walk = _Walk()
    walk.versions = version
    body = _canonical(walk, value)
    return _FORMAT + bytes((walk.versions & 0xFF,)) + _hash_of(head) + blake2b(body, digest_size=4, key=key).digest()


def digest_of_head(head: tuple[Any, ...], version: int) -> bytes:
    """Return the digest of a value that is not known, which is the same as any of that name."""
    return b"%b%c%b%b" % (_FORMAT, version & 0xFF, _hash_of(head), _UNKNOWN)


def is_same(known: bytes, given: bytes) -> bool:
    """Return whether two digests are of the same, as far as they tell; `lua/shared/known.lua` decides alike."""
    if known == given:
        return True
    if not known[0] or not given[0]:
        return False
    if known[0] != given[0]:
        return True
    return known[2:4] == given[2:4] and (known[1] != given[1] or _UNKNOWN in (known[4:], given[4:]))


@lru_cache(maxsize=4096)
def _hash_of(head: tuple[str | None, ...]) -> bytes:
    return blake2b(Packer(buf_size=256).pack(head), digest_size=2).digest()


def _canonical(walk: _Walk, value: Any) -> bytes:
    try:
        kind = type(value)
        plain = kind in _PLAIN or (kind is tuple and _PLAIN.issuperset(map(type, value)))  # the usual arguments of a step
        data: bytes = Packer(buf_size=512).pack(value if plain else walk.form(value))
        return data
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NotPlain(str(error)[:200] or type(error).__name__) from None


def _packed(form: Any) -> bytes:
    data: bytes = Packer(buf_size=512).pack(form)
    return data


class _Walk:
    """One way through a value. It adds up the versions of the commands in it."""

    __slots__ = ("versions",)

    def __init__(self) -> None:
        self.versions = 0

    def form(self, value: Any) -> Any:
        """Return what is packed in the place of a value."""
        kind: Any = type(value)
        return value if kind in _PLAIN else _former(kind)(self, value)


@lru_cache(maxsize=4096)
def _former(kind: type[Any]) -> Any:
    """Return the function that makes the form of values of a class."""
    if issubclass(kind, BaseModel) or is_dataclass(kind):
        if hasattr(kind, "__pydantic_root_model__") and kind.__pydantic_root_model__:
            return lambda walk, value: walk.form(value.root)
        return partial(_record, _defaults(kind), getattr(kind, "__message_spec__", None))
    if issubclass(kind, tuple) and hasattr(kind, "_fields") and kind is not ExtType:
        return partial(_named_tuple, _defaults(kind))
    for base in kind.__mro__:
        if base in _FORMS:
            return _FORMS[base]
        if base in ENCODERS:
            return partial(_encoded, ENCODERS[base])
    if issubclass(kind, Mapping):
        return _map
    if hasattr(kind, "unicode_string"):  # pydantic's URLs
        return lambda _, value: str(value)
    raise TypeError(f"a {kind.__qualname__} is no plain data")


_Default = tuple[str, Any, Any, bytes]
"""Name of a field, its default, the form of that, and its bytes if it is no scalar."""


def _defaults(kind: type[Any]) -> list[_Default]:
    """Return the fields of a record, those of a named tuple in their order, others in that of their names."""
    fields = fields_of(kind)
    return list(map(_with_form, fields if issubclass(kind, tuple) else sorted(fields)))


def _with_form(field: Field) -> _Default:
    if field.default is MISSING:
        return field.name, MISSING, MISSING, b""
    try:
        form = _Walk().form(field.default)
        return field.name, field.default, form, b"" if type(form) in _PLAIN else _packed(form)
    except Exception:  # noqa: BLE001 - a default may be anything
        return field.name, MISSING, MISSING, b""


def _record(fields: list[_Default], spec: Any, walk: _Walk, value: Any) -> Any:
    """Return the fields of a model or dataclass that are not as their defaults."""
    found: dict[str, Any] = {}
    if spec is not None:
        walk.versions += spec.version
    try:
        for name, default, form, packed in fields:
            part = getattr(value, name, MISSING)
            if part is default or part is MISSING:
                continue
            if type(part) not in _PLAIN:
                part = walk.form(part)
            if type(part) is not type(form) or (_packed(part) != packed if packed else part != form):
                found[name] = part
    except (TypeError, ValueError):  # an object, which a serializer of the model turns into data
        if not isinstance(value, BaseModel):
            raise
        return walk.form(_dumped(value))
    if extra := getattr(value, "__pydantic_extra__", None):
        return _map(walk, {**found, **extra})
    return found


def _dumped(value: BaseModel) -> dict[str, Any]:
    dumped: dict[str, Any] = value.__pydantic_serializer__.to_python(
        value, by_alias=False, round_trip=True, exclude_defaults=True, warnings="none"
    )
    return dumped


def _named_tuple(fields: list[_Default], walk: _Walk, value: Any) -> list[Any]:
    """Return the members of a named tuple, without defaults at its end."""
    found = [walk.form(part) for part in value]
    while found:
        _, _, form, packed = fields[len(found) - 1]
        part = found[-1]
        if type(part) is not type(form) or (_packed(part) != packed if packed else part != form):
            break
        found.pop()
    return found


def _list(walk: _Walk, value: Any) -> list[Any]:
    return [part if type(part) in _PLAIN else walk.form(part) for part in value]


def _map(walk: _Walk, value: Mapping[Any, Any]) -> Any:
    pairs = [(walk.form(key), walk.form(part)) for key, part in value.items()]
    found = dict(sorted(pairs, key=itemgetter(0))) if all(type(key) is str for key, _ in pairs) else None
    if found is not None and len(found) == len(pairs):
        return found
    return ExtType(_MAP, b"".join(sorted(_packed(key) + _packed(part) for key, part in pairs)))


def _set(walk: _Walk, value: Any) -> Any:
    return ExtType(SET, b"".join(sorted(_packed(walk.form(member)) for member in value)))


def _encoded(encoder: Any, walk: _Walk, value: Any) -> Any:
    found = encoder(value)
    return found if type(found) is ExtType else walk.form(found)


def _float(_: _Walk, value: float) -> float:
    return _NAN if isnan(value) else float.__add__(value, 0.0)  # -0.0 is 0.0


def _decimal(_: _Walk, value: Decimal) -> Any:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):  # an infinity, or no number
        return ExtType(DECIMAL, str(value).encode())
    shown = "".join(map(str, digits))
    text = shown.rstrip("0")
    if not text:
        return ExtType(DECIMAL, b"0")
    return ExtType(DECIMAL, f"{'-' * sign}{text}E{exponent + len(shown) - len(text)}".encode())


def _datetime(_: _Walk, value: datetime) -> Any:
    code, data = ENCODERS[datetime](value if value.utcoffset() is not None else value.replace(tzinfo=None))
    return ExtType(code, data[:8])  # without the offset


def _time(_: _Walk, value: time) -> Any:
    if value.utcoffset() is None:
        return ENCODERS[time](value.replace(tzinfo=None))
    micros, seconds = _CLOCK.unpack(ENCODERS[time](value)[1])
    return ExtType(TIME, _CLOCK.pack(micros - 1_000_000 * seconds, 0))


_FORMS: dict[type[Any], Any] = {
    str: lambda _, value: str.__str__(value),
    int: lambda _, value: int.__int__(value),
    bytes: lambda _, value: bytes(memoryview(value)),
    bytearray: lambda _, value: bytes(value),
    memoryview: lambda _, value: bytes(value),
    float: _float,
    Decimal: _decimal,
    datetime: _datetime,
    date: partial(_encoded, ENCODERS[date]),
    time: _time,
    timedelta: partial(_encoded, ENCODERS[timedelta]),
    list: _list,
    ExtType: lambda _, value: value,
    tuple: _list,
    dict: _map,
    set: _set,
    frozenset: _set,
}


_LISTS = (list, tuple, deque)
_SETS = (set, frozenset)
_PLAIN_TYPES = frozenset({str, int, bool, type(None)})
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
    return kind in _PLAIN_TYPES and kind is type(arrived) and bool(sent == arrived)


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
