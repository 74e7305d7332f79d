"""How the testing kit takes the place of a server: it is asked before a bus connects, and may give the bus other connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

if TYPE_CHECKING:
    from command_bus.bus import CommandBus

__all__ = ["OPEN", "StandIn"]


class StandIn(Protocol):
    """Takes the place of the server for a bus."""

    async def opening(self, bus: CommandBus) -> None:
        """Called before a bus connects, on its event loop."""
        ...

    async def closed(self, bus: CommandBus) -> None:
        """Called when a bus has closed its connections, on its event loop."""
        ...


OPEN: WeakSet[CommandBus] = WeakSet()
"""The buses of this process that are connected."""
