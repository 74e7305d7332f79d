"""Hash floods: members of a map or set that were chosen to have one hash, so that comparing n of them takes n² steps.

Anybody can choose such UUIDs, Decimals, Fractions and tuples of them, with a pencil: their hashes are numbers modulo 2⁶¹ - 1. Hashes of
text and bytes have another key in each process, and of 64-bit numbers no more than a handful have one hash: those are not checked. Longer
whole numbers do not travel, but JSON has them, and so has text that becomes a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from datetime import date, datetime, time, timedelta
from typing import Any

CROWD = 32
"""Different members that may have one hash. Comparing so many takes no time, and no more than two or three ever collide by chance."""

_SPREAD = frozenset({str, bytes, int, bool, float, type(None), date, datetime, time, timedelta})
_NESTING = frozenset({tuple, frozenset})


def is_crowded(members: Collection[Any], *, may_be_long: bool = False) -> bool:
    """Return whether a map or set of these would be slow to make, or to compare with others: see `CROWD`.

    Takes time in proportion to their size, and next to none for text and numbers.

    Args:
        members: What the map or set is made of.
        may_be_long: Whether whole numbers among them may have more than 64 bits.

    Raises:
        TypeError: One of them cannot be hashed.
    """
    kinds = set(map(type, members))
    if kinds <= _SPREAD and not (may_be_long and int in kinds):
        return False
    counts = Counter(map(hash, members))
    most = max(counts.values(), default=0)
    if most > 1 and not kinds.isdisjoint(_NESTING):
        comparisons, size = _toll(members)
        if comparisons > CROWD * size:
            return True
    return most > CROWD and _is_flood(members, counts)


def _is_flood(members: Collection[Any], counts: Counter[int]) -> bool:
    """Return whether any of the crowds is one of different members: repetitions are found at once."""
    crowds: dict[int, list[Any]] = {value: [] for value, count in counts.items() if count > CROWD}
    for member in members:
        alike = crowds.get(hash(member))
        if alike is not None and member not in alike:
            alike.append(member)
            if len(alike) > CROWD:
                return True
    return False


def _toll(members: Collection[Any]) -> tuple[int, int]:
    """Return about how many comparisons it takes to find each member among those of its hash, and how many parts they have.

    Comparing two sets is finding each member of the one in the other: what crowds within sets within sets cost multiplies.
    """
    counts = Counter(map(hash, members))
    comparisons = size = 0
    for member in members:
        each, parts = _comparing(member)
        comparisons += counts[hash(member)] * each
        size += parts
    return comparisons, size


def _comparing(member: Any) -> tuple[int, int]:
    """Return what it takes to compare a member with one that is equal, and how many parts it has."""
    if type(member) is frozenset:
        comparisons, size = _toll(member)
        return comparisons + 1, size + 1
    if type(member) is tuple:
        tolls = [_comparing(part) for part in member]
        return sum(toll for toll, _ in tolls) + 1, sum(parts for _, parts in tolls) + 1
    return 1, 1
