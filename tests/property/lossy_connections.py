"""Connections that lose requests and replies as a test decides."""

from __future__ import annotations

from typing import Any

from command_bus.errors import TransportUnavailable
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.memory import MemoryClients
from command_bus.transport.redis.scripts import READ_MAILBOXES, Script

__all__ = ["FATES", "LossyConnections"]

FATES = ("arrives", "request lost", "reply lost", "forgotten")
"""What can happen to a request; `forgotten`: the server has lost its scripts."""


class LossyConnections(Connections):
    """Connections that lose requests before they are executed, or their replies.

    Attributes:
        fates: Of the next requests, the last first.
    """

    def __init__(self, clients: MemoryClients) -> None:
        super().__init__(clients)
        self.fates: list[str] = []

    async def run(self, script: Script, keys: list[str], args: list[Any]) -> Any:
        if script is READ_MAILBOXES:
            return await super().run(script, keys, args)  # it changes nothing
        fate = self.fates.pop() if self.fates else "arrives"
        if fate == "request lost":
            raise TransportUnavailable("lost", outcome_unknown=True)
        if fate == "forgotten":
            await self.commands.script_flush()
        answer = await super().run(script, keys, args)
        if fate == "reply lost":
            raise TransportUnavailable("lost", outcome_unknown=True)
        return answer
