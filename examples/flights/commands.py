"""The two things that happen to an aircraft. Times are minutes since the epoch (UTC), distances miles."""

from __future__ import annotations

from command_bus import Command, EntityId

__all__ = ["Arrive", "Depart", "Movement"]


class Depart(Command[None], entity="aircraft", name="flights.depart"):
    """The aircraft left `airport`."""

    tail: EntityId
    seq: int
    airport: str
    ts: int
    delay: int


class Arrive(Command[None], entity="aircraft", name="flights.arrive"):
    """The aircraft landed at `airport` after `minutes` in the air."""

    tail: EntityId
    seq: int
    airport: str
    ts: int
    delay: int
    minutes: int
    distance: int


Movement = Depart | Arrive
