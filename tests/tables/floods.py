"""The table *what a set or map holds × doors that read JSON*: members that were chosen to have one hash are refused before a set is made of them.

Data alone: `test_floods.py` carries it out. A new type of member is a row in `HOLDERS`, a new door a row in `DOORS` and a function there.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

__all__ = ["DOORS", "HOLDERS"]

HOLDERS: dict[str, tuple[Any, str]] = {
    "ints": (set[int], "number"),
    "frozen": (frozenset[int], "number"),
    "optional": (set[int] | None, "number"),
    "nested": (dict[str, set[int]], "number in a map"),
    "decimals": (set[Decimal], "number"),
    "texts": (set[Decimal], "text"),
    "uuids": (set[UUID], "uuid"),
    "tuples": (set[tuple[int, int]], "pair"),
    "int_keys": (dict[int, int], "key"),
    "decimal_keys": (dict[Decimal, int], "key"),
    "uuid_keys": (dict[UUID, int], "uuid key"),
    "tuple_keys": (dict[tuple[int, int], int], "pair key"),
}
"""The type of a field, and how JSON has its members."""

DOORS = ("class", "text", "lax")
"""A gateway or command line with the class; the bytes of JSON, read and checked; a class that makes ints of texts."""
