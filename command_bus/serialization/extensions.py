"""MessagePack extensions for dates, decimals, UUIDs and sets, which have no MessagePack type. The code of each never changes.

| code | Python | body (big-endian) |
| --- | --- | --- |
| 1 | aware `datetime` | int64 µs since 1970-01-01T00:00Z, int32 offset from UTC in seconds |
| 2 | naive `datetime` | int64 µs since 1970-01-01T00:00 of its own, unnamed clock |
| 3 | `date` | int32 days since 1970-01-01 |
| 4 | `time` | int64 µs since midnight, and an int32 offset in seconds if it has one |
| 5 | `timedelta` | int64 µs |
| 6 | `Decimal` | ASCII text, as `str()` writes it |
| 7 | `UUID` | its 16 bytes |
| 8 | `set`, `frozenset` | a MessagePack array of the members, ordered by their packed bytes |

Sets call back into packing, so they live in `msgpack.py`; everything here is a pure function of one scalar. Reading also accepts
MessagePack's own timestamp (code -1), because other languages' libraries write it by default. A named time zone keeps its offset
and loses its name, and `fold` of a naive time is dropped. Types with an obvious text (`Path`, URLs, IP addresses, `Fraction`,
`re.Pattern`) travel as that text: the model on the other side makes the object again.
"""

from __future__ import annotations

import ipaddress
import re
from collections import deque
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from operator import attrgetter, methodcaller
from pathlib import PurePath
from struct import Struct
from typing import Any
from uuid import UUID, SafeUUID

from pydantic import Secret, SecretBytes, SecretStr
from pydantic_core import MultiHostUrl, Url

from command_bus.serialization.native import ExtType

AWARE_DATETIME = 1
NAIVE_DATETIME = 2
DATE = 3
TIME = 4
TIMEDELTA = 5
DECIMAL = 6
UUID_CODE = 7
SET = 8

MAX_DECIMAL_EXPONENT = 6144
"""As in IEEE 754 decimal128. Beyond, turning twelve bytes of text into an int or a fraction takes gigabytes and minutes."""
_MAX_DECIMAL_TEXT = 2 * MAX_DECIMAL_EXPONENT

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - arithmetic on local times, the offset apart
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_INT64 = Struct(">q")
_INT32 = Struct(">i")
_INSTANT = Struct(">qi")
_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_SECRET = methodcaller("get_secret_value")
_UUID_SIZE = 16
_new, _set = object.__new__, object.__setattr__  # a UUID refuses to be changed


def _micros(delta: timedelta) -> int:
    return (delta.days * 86_400 + delta.seconds) * _SECOND + delta.microseconds


def _offset_seconds(offset: timedelta) -> int:
    if offset.microseconds:
        raise ValueError("an offset from UTC has whole seconds")
    return offset.days * 86_400 + offset.seconds


@lru_cache(maxsize=256)
def _zone(seconds: int) -> timezone:
    return timezone(timedelta(seconds=seconds)) if seconds else UTC


def _encode_datetime(value: datetime) -> Any:
    local = _micros(value.replace(tzinfo=None) - _EPOCH)
    offset = value.utcoffset()
    if offset is None:
        if value.tzinfo is not None:
            raise ValueError("its time zone gives no offset")
        return ExtType(NAIVE_DATETIME, _INT64.pack(local))
    return ExtType(AWARE_DATETIME, _INSTANT.pack(local - _micros(offset), _offset_seconds(offset)))


def _encode_date(value: date) -> Any:
    return ExtType(DATE, _INT32.pack(value.toordinal() - _EPOCH_DAY))


def _encode_time(value: time) -> Any:
    micros = ((value.hour * 60 + value.minute) * 60 + value.second) * _SECOND + value.microsecond
    offset = value.utcoffset()
    if offset is None:
        if value.tzinfo is not None:
            raise ValueError("a time of day in a named zone has no offset without its date; send a datetime")
        return ExtType(TIME, _INT64.pack(micros))
    return ExtType(TIME, _INSTANT.pack(micros, _offset_seconds(offset)))


def _encode_timedelta(value: timedelta) -> Any:
    micros = _micros(value)
    if not -(2**63) <= micros < 2**63:
        raise ValueError("a timedelta beyond 292,000 years")
    return ExtType(TIMEDELTA, _INT64.pack(micros))


def _encode_decimal(value: Decimal) -> Any:
    text = str(value)
    _check_decimal(value, len(text))
    return ExtType(DECIMAL, text.encode("ascii"))


def _check_decimal(value: Decimal, length: int) -> None:
    if length > _MAX_DECIMAL_TEXT or not -MAX_DECIMAL_EXPONENT <= value.adjusted() <= MAX_DECIMAL_EXPONENT:
        raise ValueError(f"a Decimal has an exponent within ±{MAX_DECIMAL_EXPONENT} and at most {_MAX_DECIMAL_TEXT} characters")


def _encode_uuid(value: UUID) -> Any:
    return ExtType(UUID_CODE, value.bytes)


ENCODERS: dict[type, Callable[[Any], Any]] = {
    datetime: _encode_datetime,
    date: _encode_date,
    time: _encode_time,
    timedelta: _encode_timedelta,
    Decimal: _encode_decimal,
    UUID: _encode_uuid,
    Enum: attrgetter("value"),
    deque: list,
    Fraction: str,
    PurePath: str,
    re.Pattern: attrgetter("pattern"),
    Url: str,
    MultiHostUrl: str,
    SecretStr: _SECRET,  # a command must carry its secret: redacting here would corrupt it
    SecretBytes: _SECRET,
    Secret: _SECRET,
    ipaddress.IPv4Address: str,
    ipaddress.IPv6Address: str,
    ipaddress.IPv4Network: str,
    ipaddress.IPv6Network: str,
    ipaddress.IPv4Interface: str,
    ipaddress.IPv6Interface: str,
}
"""By class, looked up along the MRO of the value: what MessagePack can carry in its place. An encoder raises if it cannot."""


def _decode_aware(data: bytes) -> datetime:
    micros, seconds = _INSTANT.unpack(data)
    return (_EPOCH + timedelta(microseconds=micros + seconds * _SECOND)).replace(tzinfo=_zone(seconds))


def _decode_naive(data: bytes) -> datetime:
    return _EPOCH + timedelta(microseconds=_INT64.unpack(data)[0])


def _decode_date(data: bytes) -> date:
    return date.fromordinal(_INT32.unpack(data)[0] + _EPOCH_DAY)


def _decode_time(data: bytes) -> time:
    zone = None
    if len(data) == _INT64.size:
        (micros,) = _INT64.unpack(data)
    else:
        micros, seconds = _INSTANT.unpack(data)
        zone = _zone(seconds)
    if not 0 <= micros < _DAY:
        raise ValueError("a time of day outside its day")
    return (_EPOCH + timedelta(microseconds=micros)).time().replace(tzinfo=zone)


def _decode_timedelta(data: bytes) -> timedelta:
    return timedelta(microseconds=_INT64.unpack(data)[0])


def _decode_decimal(data: bytes) -> Decimal:
    if len(data) > _MAX_DECIMAL_TEXT:
        raise ValueError("a Decimal that is too long")
    value = Decimal(data.decode("ascii"))
    _check_decimal(value, len(data))
    return value


def _decode_uuid(data: bytes) -> UUID:
    if len(data) != _UUID_SIZE:
        raise ValueError("a UUID of another size")
    value = _new(UUID)  # in a third of the time of UUID(bytes=…), which takes apart what it was given
    _set(value, "int", int.from_bytes(data, "big"))
    _set(value, "is_safe", SafeUUID.unknown)
    return value


DECODERS: dict[int, Callable[[bytes], Any]] = {
    AWARE_DATETIME: _decode_aware,
    NAIVE_DATETIME: _decode_naive,
    DATE: _decode_date,
    TIME: _decode_time,
    TIMEDELTA: _decode_timedelta,
    DECIMAL: _decode_decimal,
    UUID_CODE: _decode_uuid,
}
"""By extension code: the value. A decoder raises on a body that it did not write; `unpack` turns that into `Undecodable`."""
