"""Tells whether anything runs on the in-memory server, and when the next thing is due: so that time may leap over a month at once."""

from __future__ import annotations

from typing import NamedTuple

from command_bus.testing.simulated.store import Store, ZSet
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.mailbox_record import parse_record

_RESTING = frozenset({"s", "u", "U", "w"})


class Rest(NamedTuple):
    """The state of a namespace.

    Attributes:
        rests: Whether nothing is ready and nothing runs.
        is_idle: Whether besides nothing waits for a time: what is left is suspended until somebody acts, paused or parked.
        next_ms: When the next thing is due, by the server's clock; None if nothing is.
    """

    rests: bool
    is_idle: bool
    next_ms: float | None


def rest_of(store: Store, keys: KeySpace) -> Rest:
    """Return the state of a namespace."""
    rests, due = True, list[float]()
    for shard in keys.shards:
        records = (store.get(shard.active.encode(), dict) or {}).values()
        rests = rests and all(parse_record(record).state in _RESTING for record in records)
        times = store.get(shard.due.encode(), ZSet)
        due += times.values() if times is not None else ()
    return Rest(rests, rests and not due, min(due, default=None))
