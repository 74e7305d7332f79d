"""Takes waiting commands out of line: cancel one by its id, purge all of an entity."""

from __future__ import annotations

from command_bus.execution.settled import Windows, reading_limits
from command_bus.serialization.envelope import WireEnvelope, unpack_envelope
from command_bus.serialization.msgpack import Undecodable
from command_bus.serialization.reply import Cancelled
from command_bus.settings import BusSettings
from command_bus.transport.redis.operations import Operations, Waiting

__all__ = ["WaitingLine"]

_MAILBOX_AT = 17


class WaitingLine:
    """What waits in mailboxes."""

    def __init__(self, operations: Operations, settings: BusSettings) -> None:
        self._operations = operations
        self._limits = reading_limits(settings)
        self._windows = Windows.of(settings)

    async def cancel(self, command_id: str) -> bool:
        """Remove one waiting command; False if it runs, has run or is unknown."""
        for _, mark in await self._operations.marks(command_id):
            if mark[:1] != b"q":
                continue
            mailbox = mark[_MAILBOX_AT:].decode()
            async for page in self._operations.waiting(mailbox):
                for command in page:
                    envelope = self._envelope(command)
                    if envelope.command_id == command_id:
                        left = self._windows.remembered(envelope, Cancelled("cancelled before it started"), message=command.id)
                        return await self._operations.remove(mailbox, [(command, left)]) > 0
        return False

    async def purge(self, mailbox: str, entity_type: str, entity_id: str) -> int:
        """Remove all of an entity that waits, page by page; how many. Others of its lane are left alone."""
        removed = 0
        async for page in self._operations.waiting(mailbox):
            read = [(command, self._envelope(command)) for command in page]
            batch = [
                (command, self._windows.remembered(envelope, Cancelled("its entity was purged"), message=command.id))
                for command, envelope in read
                if (envelope.entity_type, envelope.entity_id) in ((entity_type, entity_id), (None, None))
            ]
            if batch:
                removed += await self._operations.remove(mailbox, batch)
        return removed

    def _envelope(self, command: Waiting) -> WireEnvelope:
        try:
            return unpack_envelope(command.envelope, self._limits)
        except Undecodable:
            return WireEnvelope(f"undecodable:{command.id}", "", None, None, b"")
