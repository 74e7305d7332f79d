"""Classes of values as other libraries derive them from Python's, and of members of unions that are told apart by enums: for `values.py`."""

from __future__ import annotations

import dataclasses
import enum
from datetime import date, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel

__all__ = ["Day", "Elapsed", "Key", "Low", "Moment", "Nameless", "Paid", "Precise", "Red", "Still", "Token", "Unpaid"]


class Tint(enum.Enum):
    RED = "red"
    TWO = 2


class Gap(enum.Enum):
    LOW = (0, 1)


class Nameless(enum.Enum):
    ONE = object()


class Moment(datetime):
    """Derived as libraries do it."""


class Precise(datetime):
    """Derived as in pandas: it has more than a datetime holds."""

    nanosecond = 5

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Precise) and super().__eq__(other)

    __hash__ = datetime.__hash__

    def replace(self, *_: Any, **__: Any) -> Any:
        return self


class Day(date): ...


class Elapsed(timedelta): ...


class Key(UUID): ...


class Token(bytes): ...


class Paid(BaseModel):
    kind: Literal[Tint.TWO] = Tint.TWO


class Unpaid(BaseModel):
    kind: Literal[Tint.RED] = Tint.RED


class Red(BaseModel):
    kind: Literal["red"] = "red"


class Low(BaseModel):
    kind: Literal[Gap.LOW] = Gap.LOW


@dataclasses.dataclass(frozen=True)
class Still:
    x: int
