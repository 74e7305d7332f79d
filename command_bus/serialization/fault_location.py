"""The place in a value that MessagePack refused: found by a walk, on the failure path only.

MessagePack says *that* an object cannot be packed, not where it is. Users need the field, so once packing has failed the value is
walked depth first, in order, without recursion (it may be nested a million levels deep, or contain itself), and each leaf is
packed alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from command_bus.errors import InvalidCommand
from command_bus.serialization.limits import PayloadLimits

_CONTAINERS = (dict, list, tuple, set, frozenset, deque)


class _Place:
    """One value on the way, linked to where it was found."""

    __slots__ = ("depth", "parent", "step", "value")

    def __init__(self, value: Any, parent: _Place | None, step: str) -> None:
        self.value = value
        self.parent = parent
        self.step = step
        self.depth: int = 1 if parent is None else parent.depth + 1

    def path(self) -> str:
        steps: list[str] = []
        place: _Place | None = self
        while place is not None:
            steps.append(place.step)
            place = place.parent
        path = "".join(reversed(steps)).removeprefix(".").strip()
        return path if len(path) <= 120 else f"{path[:80]} … {path[-30:]}"


def find_fault(value: Any, limits: PayloadLimits, pack_leaf: Callable[[Any], object], otherwise: str) -> InvalidCommand:
    """Return the error for a value that could not be packed: the path of the first fault and what is wrong there.

    Args:
        value: What was to be packed.
        limits: Its limits.
        pack_leaf: Packs one value or raises.
        otherwise: Text of the error if no single place is at fault.
    """
    stack = [_Place(value, None, "")]
    while stack:
        place = stack.pop()
        if isinstance(place.value, _CONTAINERS):
            fault = _container_fault(place, limits)
            if fault is None:
                stack.extend(reversed(list(_children(place))))
        else:
            fault = _leaf_fault(place.value, pack_leaf)
        if fault is not None:
            return InvalidCommand(f"{place.path() or 'the value'}: {fault}")
    return InvalidCommand(f"the value: {otherwise}")


def _children(place: _Place) -> Iterator[_Place]:
    value = place.value
    if isinstance(value, dict):
        for key, item in value.items():
            shown = _shown(key)
            yield _Place(key, place, f" (the key {shown})")
            yield _Place(item, place, f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{shown}]")
    elif isinstance(value, set | frozenset):
        yield from (_Place(item, place, "{…}") for item in value)
    else:
        yield from (_Place(item, place, f"[{index}]") for index, item in enumerate(value))


def _shown(key: Any) -> str:
    """Return a key as part of a path. The `repr` of other objects may be long, or raise; that of a huge int does."""
    if isinstance(key, str | bytes | float) or (isinstance(key, int) and key.bit_length() <= 128):
        return repr(key)[:40]
    return type(key).__qualname__


def _container_fault(place: _Place, limits: PayloadLimits) -> str | None:
    if place.depth > limits.max_nesting:
        return f"nested deeper than {limits.max_nesting} levels"
    if len(place.value) > limits.max_items:
        return f"{len(place.value)} items, the limit of one collection is {limits.max_items}"
    return None


def _leaf_fault(value: Any, pack_leaf: Callable[[Any], object]) -> str | None:
    name = type(value).__qualname__
    try:
        pack_leaf(value)
    except UnicodeEncodeError:
        return "text with lone surrogates, which UTF-8 cannot carry"
    except (TypeError, OverflowError):
        if isinstance(value, int):
            return "an int beyond 64 bits cannot be sent; use Decimal or text"
        return (
            f"a value of type {name} cannot be sent; there are text, bytes, numbers, dates, Decimal, UUID, enums, "
            "lists, sets, dicts and declared models"
        )
    except ValueError as error:
        return f"this {name} cannot be sent: {error}"
    except Exception as error:  # noqa: BLE001 - whatever a user's type raises
        return f"this {name} cannot be sent ({type(error).__name__})"
    return None
