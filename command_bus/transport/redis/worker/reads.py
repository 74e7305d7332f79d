"""Lines of a worker for what it reads beside its steps: of all mailboxes of one turn of the event loop in one request."""

from __future__ import annotations

from asyncio import Future
from typing import Any

from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.pipe import Answered
from command_bus.transport.redis.connection.script_line import Read, ReadLine, ScriptBatch
from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.redis.scripts import CONFIRM, READ_MAILBOXES

_BYTES = 500  # of a command, roughly: they limit how many a request reads

Behind = list[tuple[str, bytes]]
"""Ids and envelopes of commands, in their order."""


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


class MailboxReads(ReadLine[Behind]):
    """The line of reads in one shard. A command that is no plain one, an operator's replay say, ends what is read.

    Args:
        connections: To the shard's server.
        keys: Names of the shard's keys.
    """

    def __init__(self, connections: Connections, keys: ShardKeys) -> None:
        super().__init__(connections, f"command_bus.mailbox_reads{keys.prefix}", "cannot read what waits behind running commands")
        self._keys = keys

    def behind(self, mailbox: str, message: str, count: int) -> Future[Behind]:
        """Return the commands behind another one, at most so many. While the server is away this waits."""
        return self.read(f"{count}|{message}|{mailbox}")

    def _size(self, item: Read) -> int:
        return _BYTES * int(item.key.partition("|")[0])

    def _batch(self, items: list[Read]) -> ScriptBatch[Read]:
        wanted = [each.key.split("|", 2) for each in items]
        names = [self._keys.active, self._keys.lone, *(self._keys.mailbox(mailbox) for _, _, mailbox in wanted)]
        most = max(int(count) for count, _, _ in wanted)
        args = [len(self._keys.mailboxes), most, *(f"({message}" for _, message, _ in wanted)]
        return ScriptBatch(READ_MAILBOXES, names, args, items)

    def _value(self, found: Any) -> Behind:
        behind: Behind = []
        for entry, fields in found:
            if len(fields) != 2 or fields[0] != b"e":
                break
            behind.append((entry.decode(), fields[1]))
        return behind
