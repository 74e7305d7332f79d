"""The table *lives of a command × clocks of the server*: its events are told in their order, although senders and workers write two streams.

Data alone: `test_event_orders.py` carries it out.
"""

from __future__ import annotations

__all__ = ["CLOCKS", "LIVES"]

LIVES = {
    "handled": "accepted started completed",
    "retried": "accepted started retried started completed",
    "limited": "accepted limited limited started completed",
    "cancelled": "accepted limited cancelled",
    "given up, replayed": "accepted started dead_lettered replayed started completed",
    "superseded": "accepted superseded",
    "limited, superseded": "accepted limited superseded",
    "retried, superseded": "accepted started retried superseded",
    "superseded by a delayed one": "accepted limited superseded:worker",
    "sent by a handler": "accepted:worker started completed",
    "sent by a handler, superseded": "accepted:worker limited superseded",
    "superseded, and sent again": "accepted limited superseded later accepted started completed",
    "handled, and sent again": "accepted started completed later accepted started completed",
}
"""The kinds of a command's events. Senders write `accepted` and `superseded`, unless it says that a worker did. An id is known for as long as its
mark is kept; it is accepted again only `later`. If the clock goes back just then, the order of that is not known."""

CLOCKS = {
    "steady": (1, 0),
    "within a ms": (0, 0),
    "back by a ms": (1, -1),
    "back by a second": (1, -1000),
    "within a ms, back by a second": (0, -1000),
    "ahead by a second": (1, 1000),
}
"""Milliseconds from one event to the next, and by how much the clock jumps before one of them: before each is tried."""
