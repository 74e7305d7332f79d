"""Handlers of articles, over a table that would be in a database."""

from __future__ import annotations

from command_bus import handles
from examples.shop.commands import ReserveStock

__all__ = ["pieces", "reserve_stock"]

pieces: dict[str, int] = {"lamp": 3}


@handles(ReserveStock)
async def reserve_stock(command: ReserveStock) -> bool:
    article = str(command.article)
    if pieces.get(article, 0) < command.pieces:
        return False
    pieces[article] -= command.pieces
    return True
