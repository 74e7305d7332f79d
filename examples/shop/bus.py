"""The settings and the bus. Web and worker import it, handlers do not."""

from __future__ import annotations

from command_bus import CommandBus

__all__ = ["bus"]

# COMMAND_BUS_URL and all other settings come from the environment.
bus = CommandBus(namespace="shop")
