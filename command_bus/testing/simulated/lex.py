"""Sorted sets without scores, in the order of their members' bytes."""

from __future__ import annotations

from typing import Any

from command_bus.testing.simulated.store import Args, Store, ZSet, command

__all__ = ["zlexcount", "zrangebylex"]


def _between(store: Store, args: Args) -> list[bytes]:
    """Return the members between two bounds, in the order of their bytes: those of a set without scores."""
    low, high = args[1:3]

    def is_inside(member: bytes) -> bool:
        above = low == b"-" or member > low[1:] or (low[:1] == b"[" and member == low[1:])
        return above and (high == b"+" or member < high[1:] or (high[:1] == b"[" and member == high[1:]))

    return sorted(filter(is_inside, store.get(args[0], ZSet) or ()))


@command
def zlexcount(store: Store, args: Args) -> Any:
    """Count the members between two bounds."""
    return len(_between(store, args))


@command
def zrangebylex(store: Store, args: Args) -> Any:
    """Return the members between two bounds."""
    found = _between(store, args)
    if len(args) > 3:
        start, count = int(args[4]), int(args[5])
        return found[start : start + count if count >= 0 else None]
    return found
