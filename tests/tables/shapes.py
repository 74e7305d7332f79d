"""Descriptions of values with their classes: equal for the same value of the same class only, as `==` is not."""

from __future__ import annotations

import dataclasses
import enum
from collections import deque
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from typing import Any
from uuid import UUID

from pydantic import BaseModel, SecretBytes, SecretStr

__all__ = ["shape"]


def shape(value: Any) -> Any:  # noqa: C901 - one line for each kind
    """Return a description of a value and its classes, all the way down: equal for the same value and class only."""
    kind = type(value)
    name = kind.__qualname__
    if isinstance(value, enum.Enum):
        return name, repr(value)
    if isinstance(value, int):
        return name, hex(value)  # `repr` refuses an int of 5,000 digits
    if isinstance(value, BaseModel):
        fields = {field: getattr(value, field, None) for field in kind.model_fields}
        return name, *(shape(part) for part in (fields, value.__pydantic_extra__, value.__pydantic_private__))
    if dataclasses.is_dataclass(value):
        return name, [shape(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, datetime):
        return "datetime", str(value.replace(tzinfo=None)), value.utcoffset()  # a zone's name is not promised, its offset is
    if isinstance(value, time):
        return name, repr(value.replace(fold=0))  # wire-format.md: `fold` of what has no zone does not travel
    if isinstance(value, date | timedelta | UUID | bytes):  # what other libraries derive from these arrives as these
        return next(base.__name__ for base in (date, timedelta, UUID, bytes) if isinstance(value, base)), str(value)
    if isinstance(value, SecretStr | SecretBytes):
        return name, value.get_secret_value()
    if isinstance(value, Mapping):
        return name, sorted((repr(shape(key)), repr(shape(item))) for key, item in value.items())
    if isinstance(value, set | frozenset):
        return name, sorted(repr(shape(member)) for member in value)
    if isinstance(value, list | tuple | deque):
        return name, [shape(member) for member in value]
    return name, repr(value)
