"""When the lease keeper wakes: for the next renewal, and for the next deadline, but not for those that have passed."""

from __future__ import annotations

from command_bus.clock import mono
from command_bus.testing.memory import MemoryClients
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.lease_keeper import LeaseKeeper


def pause_of(*deadlines: float) -> float:
    """How long it waits with leases that end in so many seconds, when no renewal is due for long."""
    keeper = LeaseKeeper(MemoryClients(), KeySpace("n", 1), owner="w", lease=30.0, heartbeat=lambda _: b"")
    keeper._next_renewal = mono() + 100
    for number, seconds in enumerate(deadlines):
        keeper.add(0, f"box:{number}", f"{number}-0").deadline = mono() + seconds
    try:
        next(keeper.turn())
    except StopIteration as end:
        return float(end.value)
    raise AssertionError("a renewal was due")


def test_it_wakes_when_a_lease_ends() -> None:
    assert 0.2 < pause_of(50.0, 0.4) <= 0.4


def test_a_lease_that_is_over_does_not_wake_it_again() -> None:
    assert pause_of(-5.0) > 0.9
