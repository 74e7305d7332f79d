"""What a misspelt name was meant to be: settings, their variables, entity types and commands are all asked for by names that people type."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean", "nearest"]

_ALIKE = 0.7  # difflib's ratio: `acount` and `account` have 0.92, `nope` and `none` 0.75, `report` and `order` 0.55


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one, upper and lower case alike; None if none is."""
    folded = {each.casefold(): each for each in sorted(known, reverse=True)}
    found = get_close_matches(name.casefold(), folded, n=1, cutoff=_ALIKE)
    return folded[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'account'?`, to be put behind what is wrong with a name; empty if no known one is like it."""
    meant = nearest(name, known)
    return "" if meant is None else f"; did you mean {meant!r}?"
