"""`StateReads`: reads the states of the entities whose first command has started, those of one turn of the event loop in one request."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.pipe import Answered
from command_bus.transport.redis.connection.script_line import ScriptBatch, WorkerLine
from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.redis.scripts import CONFIRM


class _Read(NamedTuple):
    """A state that is to be read."""

    mailbox: str
    answer: asyncio.Future[bytes]


class StateReads(WorkerLine[_Read]):
    """The line of states to be read in one shard. Its requests are plain ones: a script would take each value twice.

    Args:
        connections: To the shard's server.
        keys: Names of the shard's keys.
    """

    def __init__(self, connections: Connections, keys: ShardKeys) -> None:
        super().__init__(connections, f"command_bus.state_reads{keys.prefix}", "cannot read the states of entities")
        self._key = keys.states

    def read(self, mailbox: str) -> asyncio.Future[bytes]:
        """Return what is stored of an entity's state; empty if nothing is. While the server is away this waits."""
        answer: asyncio.Future[bytes] = self._future()
        self._put(_Read(mailbox, answer))
        return answer

    def _take(self) -> list[_Read]:
        return [each for each in super()._take() if not each.answer.done()]

    def _batch(self, items: list[_Read]) -> ScriptBatch[_Read]:
        return ScriptBatch(CONFIRM, [self._key], [each.mailbox for each in items], items)

    def _post(self, batch: ScriptBatch[_Read], answered: Answered) -> bool:
        return self._connections.post_request(answered, "HMGET", self._key, *batch.args)

    async def _run(self, batch: ScriptBatch[_Read]) -> tuple[Any, bool]:
        return await self._connections.ask(lambda client: client.hmget(self._key, batch.args)), True

    def _hand_out(self, batch: ScriptBatch[_Read], answer: list[Any], *, confirmed: bool = True) -> None:
        del confirmed
        for read, found in zip(batch.items, answer, strict=True):
            if not read.answer.done():
                read.answer.set_result(found or b"")
