"""Fields of records: models, dataclasses and named tuples, with what each has if nothing was given for it."""

from __future__ import annotations

import builtins
import dataclasses
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from inspect import iscode
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints
from uuid import UUID

from pydantic_core import PydanticUndefined

MISSING: Final[Any] = object()
_CONSTANT: frozenset[Any] = frozenset(
    {
        list,
        dict,
        set,
        frozenset,
        tuple,
        str,
        bytes,
        int,
        float,
        bool,
        deque,
        OrderedDict,
        Counter,
        Decimal,
        Fraction,
        timedelta,
        UUID,
    }
)


class Field(NamedTuple):
    """A field of a record.

    Attributes:
        name: Its name.
        default: What it has if nothing was given; `MISSING` if that is not always the same, or if it tells the record from others.
    """

    name: str
    default: Any


def fields_of(kind: type[Any]) -> list[Field]:
    """Return the fields of a record that are data, in their order."""
    hints: dict[str, Any] = {}
    with suppress(Exception):  # an annotation may be anything
        hints = get_type_hints(kind, include_extras=True)
    return [Field(name, MISSING if _is_tag(hints.get(name)) else default) for name, default in _defaults(kind)]


def _defaults(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names of a record's fields, and their defaults."""
    if hasattr(kind, "__pydantic_fields__"):
        for name, info in kind.__pydantic_fields__.items():
            if not info.exclude:
                yield name, _default(info.default, info.default_factory)
    elif dataclasses.is_dataclass(kind):
        for each in dataclasses.fields(kind):
            yield each.name, _default(each.default, each.default_factory)
    else:
        for name in kind._fields:
            yield name, getattr(kind, "_field_defaults", {}).get(name, MISSING)


def _default(default: Any, factory: Any) -> Any:
    if default is not PydanticUndefined and default is not dataclasses.MISSING:
        return default
    with suppress(Exception):  # a class may refuse what its factory makes of it
        if _is_constant(factory):
            return factory()
    return MISSING


def _is_constant(factory: Any) -> bool:
    """Return whether a factory makes the same whenever it is called: it is a class of plain data, or calls and names nothing else."""
    if isinstance(factory, type):
        return factory in _CONSTANT or (_is_record(factory) and all(map(_is_constant, _factories(factory))))
    code, known = getattr(factory, "__code__", None), getattr(factory, "__globals__", {})
    if code is None or code.co_argcount or code.co_kwonlyargcount or code.co_freevars or any(map(iscode, code.co_consts)):
        return False
    named = [known.get(name, getattr(builtins, name, None)) for name in code.co_names]
    return all(isinstance(each, type) and _is_constant(each) for each in named)


def _is_record(kind: type[Any]) -> bool:
    return hasattr(kind, "__pydantic_fields__") or (dataclasses.is_dataclass(kind) and not hasattr(kind, "__post_init__"))


def _factories(kind: Any) -> list[Callable[..., Any]]:
    fields = kind.__pydantic_fields__.values() if hasattr(kind, "__pydantic_fields__") else dataclasses.fields(kind)
    found = [field.default_factory for field in fields]
    return [each for each in found if each is not None and each is not dataclasses.MISSING]


def _is_tag(hint: Any) -> bool:
    """Return whether a field has a single value: it tells the members of a union apart, so it counts although it is the default."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return get_origin(hint) is Literal and len(get_args(hint)) == 1
