"""The table *masked values × ways in which an error quotes them*: none of them shows.

Data alone: `test_masked.py` carries it out. A new kind of value is a row in `VALUES`, a new way a row in `WAYS`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from command_bus.serialization.json_forms import json_form, key_form

__all__ = ["VALUES", "WAYS"]

VALUES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "text": ("4111-1111", ("4111-1111",)),
    "number": (411111111, (411111111,)),
    "decimal": (Decimal("4111.25"), (Decimal("4111.25"),)),
    "float": (4111.25, (4111.25,)),
    "bytes": (b"\x00secret\xff", (b"\x00secret\xff",)),
    "date": (date(1971, 4, 17), (date(1971, 4, 17),)),
    "datetime": (datetime(1971, 4, 17, 5, 6, 7, tzinfo=UTC), (datetime(1971, 4, 17, 5, 6, 7, tzinfo=UTC),)),
    "naive": (datetime(1971, 4, 17, 5, 6, 7), (datetime(1971, 4, 17, 5, 6, 7),)),
    "time": (time(5, 6, 7, 89), (time(5, 6, 7, 89),)),
    "span": (timedelta(days=1971, seconds=417), (timedelta(days=1971, seconds=417),)),
    "uuid": (UUID(int=4111 << 64), (UUID(int=4111 << 64),)),
    "list": ([["4111-1111"], "5500-0000"], ("4111-1111", "5500-0000")),
    "tuple": (("4111-1111", date(1971, 4, 17)), ("4111-1111", date(1971, 4, 17))),
    "set": ({"4111-1111", "5500-0000"}, ("4111-1111", "5500-0000")),
    "frozen": (frozenset({date(1971, 4, 17)}), (date(1971, 4, 17),)),
    "set of tuples": ({("4111-1111", 7411)}, ("4111-1111", 7411)),
    "keys": ({"4111-1111": 1}, ("4111-1111",)),
    "keys of a map within": ({"a": {date(1971, 4, 17): {"5500-0000": 1}}}, (date(1971, 4, 17), "5500-0000")),
}
"""The value of a masked field, and what is secret in it."""

WAYS: dict[str, Callable[[Any], str]] = {
    "str": str,
    "repr": repr,
    "json": lambda value: str(json_form(value)),
    "key": key_form,
    "isoformat": lambda value: value.isoformat() if hasattr(value, "isoformat") else str(value),
}
