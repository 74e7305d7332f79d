"""Names that callers give: lists of them, and known names that are like a misspelt one, for error messages."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any

from command_bus.errors import InvalidSettings

_NUMBER = re.compile(r"\d+")
_COMPARED = 300


_LONGEST_SHOWN = 500  # letters of a value


_LONGEST = 200  # letters


_TOLD = 50


_ALIKE = 0.7  # difflib's ratio: `acount` and `account` have 0.92, `nope` and `none` 0.75, `report` and `order` 0.55


def several_names(option: str, given: Collection[str]) -> tuple[str, ...]:
    """Return names that an option takes several of. One text is one name, not its letters.

    Raises:
        InvalidSettings: One is no text, or empty.
    """
    names = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(each, str) and each.strip() for each in names):
        raise InvalidSettings(f"{option} = {given!r}: give names")
    return names


def check_filters(given: Iterable[str], known: Collection[str]) -> None:
    """Check the names of filters: one that is misspelt, and passed over, would choose everything.

    Raises:
        InvalidSettings: One is none.
    """
    for name in given:
        if name not in known:
            raise InvalidSettings(f"{shown(name)} is no filter: one of {', '.join(known)}{did_you_mean(name, known)}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like this one, ignoring case; None if none is like it.

    Of many, the few hundred are looked at that are most alike at first sight, by their first letter and length: a comparison takes long, and
    there may be as many names as anybody cares to send.
    """
    from difflib import get_close_matches  # on this path only: a program that needs an error class does not wait for it
    from heapq import nsmallest

    meant = name.casefold()[:_LONGEST]

    def at_first_sight(other: str) -> tuple[bool, int, str]:
        return other[:1] != meant[:1], abs(len(other) - len(meant)), other

    folded = {each.casefold(): each for each in sorted(known, reverse=True) if len(each) <= _LONGEST}
    found = get_close_matches(meant, nsmallest(_COMPARED, folded, key=at_first_sight), n=1, cutoff=_ALIKE)
    return folded[found[0]] if found else None


def some_of(names: Iterable[str]) -> str:
    """Return names as a list for people: of very many the first."""
    found = sorted(names)
    more = f", and {len(found) - _TOLD:,} more" if len(found) > _TOLD else ""
    return ", ".join(found[:_TOLD]) + more if found else "none"


def shown(value: object) -> str:
    """Return a value that a caller gave, for an error: a bounded `repr`, or its type if it has none (an int of 5,000 digits, a deep list)."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - whatever it is, the error about it must be told
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'account'?`, to follow an error about a name; empty if no known name is like it."""
    meant = nearest(name, known)
    return "" if meant is None else f"; did you mean {meant!r}?"


def without_numbers(text: str) -> str:
    """Return a text with `#` for each number: texts of equal troubles are equal then."""
    return _NUMBER.sub("#", text)


@cache
def _names_of(known: type[Any]) -> frozenset[str]:
    return frozenset(known.__annotations__)


def check_names(options: Mapping[str, Any], known: type[Any]) -> None:
    """Check that options are those of a TypedDict.

    Raises:
        TypeError: There is another one.
    """
    if not _names_of(known).issuperset(options):  # type: ignore[arg-type]  # mypy: a class is hashable
        unknown = min(options.keys() - known.__annotations__.keys())
        raise TypeError(f"unexpected keyword argument {unknown!r}")
