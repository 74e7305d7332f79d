"""`Lines`: where commands stand, over all mailboxes of a namespace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from command_bus.transport.mailboxes import is_mailbox
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.keys import KeySpace

__all__ = ["Lines"]

_PAGE = 500


class Lines:
    """Looks for mailboxes.

    Args:
        connections: Of this process.
        keys: The shards.
    """

    def __init__(self, connections: Connections, keys: KeySpace) -> None:
        self._connections = connections
        self._keys = keys

    async def delayed(self, command_id: str, mailbox: str | None = None) -> tuple[str, bytes] | None:
        """A delayed command by its id: the mailbox that it will stand in, and its envelope. Only of this mailbox, if one is named."""
        shards = self._keys.shards if mailbox is None else [self._keys.shards[self._keys.shard_of(mailbox)]]
        values = await asyncio.gather(
            *(
                self._connections.at(shard.prefix).ask(lambda client, key: client.hget(key, command_id), shard.delayed)
                for shard in shards
            )
        )
        for value in values:
            name, _, envelope = (value or b"").partition(b"\n")
            if name and is_mailbox(name) and mailbox in (None, name.decode()):
                return name.decode(), envelope
        return None

    async def all(self) -> AsyncIterator[str]:
        """Every mailbox that has work, in no order, perhaps one twice."""
        for shard in self._keys.shards:
            cursor = 0
            while True:
                answer: Any = await self._connections.at(shard.prefix).ask(
                    lambda client, key, at: client.hscan(key, at, count=_PAGE), shard.active, cursor
                )
                cursor, page = answer
                for name in page:
                    if is_mailbox(name):
                        yield name.decode()
                if not cursor:
                    break
