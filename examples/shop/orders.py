"""Handlers of orders. They send by their context, so this module imports no bus."""

from __future__ import annotations

from command_bus import CommandContext, handles
from examples.shop.commands import PlaceOrder, ReserveStock

__all__ = ["place_order"]


@handles(PlaceOrder)
async def place_order(command: PlaceOrder, context: CommandContext) -> str:
    reserve = ReserveStock(article=command.article, pieces=command.pieces)
    # The id is the same when this handler runs again: nothing is reserved twice.
    enough = await context.call(
        reserve, command_id=f"reserve-{context.command_id}", timeout=10
    )
    return "placed" if enough else "sold out"
