"""The commands: messages alone. Any module may import them; they import no other."""

from __future__ import annotations

from command_bus import Command, EntityId

__all__ = ["PlaceOrder", "ReserveStock"]


class PlaceOrder(Command[str], entity="order"):
    """Gives the state of the order: `placed` or `sold out`."""

    order_id: EntityId
    article: str
    pieces: int


class ReserveStock(Command[bool], entity="article"):
    """Gives whether there was enough."""

    article: EntityId
    pieces: int
