"""`StateReads`: reads the states of the entities whose first command has started, those of one turn of the event loop in one request."""

from __future__ import annotations

from typing import Any

from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.pipe import Answered
from command_bus.transport.redis.connection.script_line import Read, ReadLine, ScriptBatch
from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.redis.scripts import CONFIRM


class StateReads(ReadLine[bytes]):
    """The line of states to be read in one shard, by mailbox. What is stored comes back, and empty bytes where nothing is.

    Its requests are plain ones: a script would take each value twice.

    Args:
        connections: To the shard's server.
        keys: Names of the shard's keys.
    """

    def __init__(self, connections: Connections, keys: ShardKeys) -> None:
        super().__init__(connections, f"command_bus.state_reads{keys.prefix}", "cannot read the states of entities")
        self._key = keys.states

    def _batch(self, items: list[Read]) -> ScriptBatch[Read]:
        return ScriptBatch(CONFIRM, [self._key], [each.key for each in items], items)

    def _post(self, batch: ScriptBatch[Read], answered: Answered) -> bool:
        return self._connections.post_request(answered, "HMGET", self._key, *batch.args)

    async def _run(self, batch: ScriptBatch[Read]) -> tuple[Any, bool]:
        return await self._connections.ask(lambda client: client.hmget(self._key, batch.args)), True

    def _value(self, found: Any) -> bytes:
        return found or b""
