"""Ranges of sorted sets: by score, and of members of equal scores by name. Commands of `store`."""

from __future__ import annotations

import math
from typing import Any

from command_bus.testing.simulated.store import Args, Store, ZSet, command, number, zrem


def _scores(text: bytes) -> tuple[float, bool]:
    """Return an end of a range of scores, and whether it belongs to it."""
    bare = text.removeprefix(b"(")
    return {b"+inf": math.inf, b"-inf": -math.inf}.get(bare) or float(bare), bare == text


def _between(store: Store, args: Args) -> list[tuple[bytes, float]]:
    (low, with_low), (high, with_high) = map(_scores, args[1:3])
    return [
        (member, score)
        for member, score in (store.get(args[0], ZSet) or ZSet()).ranked()
        if (low <= score if with_low else low < score) and (score <= high if with_high else score < high)
    ]


@command
def zcount(store: Store, args: Args) -> Any:
    return len(_between(store, args))


@command
def zremrangebyscore(store: Store, args: Args) -> Any:
    return zrem(store, [args[0], *(member for member, _ in _between(store, args))])


@command
def zrangebyscore(store: Store, args: Args) -> Any:
    options = [option.upper() for option in args[3:]]
    found = _between(store, args)
    if b"LIMIT" in options:
        at = options.index(b"LIMIT")
        found = found[int(options[at + 1]) :][: int(options[at + 2])]
    if b"WITHSCORES" in options:
        return [part for member, score in found for part in (member, number(score))]
    return [member for member, _ in found]


@command
def zrangebylex(store: Store, args: Args) -> Any:
    low, high = args[1:3]
    found = sorted(
        member
        for member in store.get(args[0], ZSet) or ZSet()
        if (low == b"-" or low[1:] < member or (low[:1] == b"[" and low[1:] == member))
        and (high == b"+" or member < high[1:] or (high[:1] == b"[" and high[1:] == member))
    )
    return found[int(args[4]) :][: int(args[5])] if len(args) > 3 else found


@command
def zlexcount(store: Store, args: Args) -> Any:
    return len(zrangebylex(store, args))
