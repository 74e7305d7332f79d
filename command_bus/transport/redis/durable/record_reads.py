"""`RecordReads`: reads the side records of the durable commands that start, those of one turn of the event loop in one request."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple

from command_bus.serialization.odd_values import stored_text
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.script_line import ScriptBatch, WorkerLine
from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.redis.scripts import READ_RECORDS

CANNOT_READ = "cannot read what a durable command has stored"
"""The text of the log while the server is away."""
_MOST_RECORDS = 128
_MOST_FIELDS = 256
"""Most fields of a record that is returned whole: the server does nothing else meanwhile."""
_MOST_BYTES = 1024 * 1024
_log = logging.getLogger("command_bus.transport")

Record = dict[str, bytes] | None


class _Read(NamedTuple):
    """A record that is to be read."""

    key: str
    answer: asyncio.Future[Record]


class RecordReads(WorkerLine[_Read]):
    """The line of side records to be read in one shard.

    Args:
        connections: To the shard's server.
        keys: Names of the shard's keys.
    """

    def __init__(self, connections: Connections, keys: ShardKeys) -> None:
        super().__init__(connections, f"command_bus.record_reads{keys.prefix}", CANNOT_READ, most=_MOST_RECORDS)

    def read(self, key: str) -> asyncio.Future[Record]:
        """Return a record, empty if there is none; None if it has to be read a page at a time. While the server is away this waits."""
        answer: asyncio.Future[Record] = self._future()
        self._put(_Read(key, answer))
        return answer

    def _take(self) -> list[_Read]:
        return [each for each in super()._take() if not each.answer.done()]

    def _batch(self, items: list[_Read]) -> ScriptBatch[_Read]:
        return ScriptBatch(READ_RECORDS, [each.key for each in items], [_MOST_FIELDS, _MOST_BYTES], items)

    def _hand_out(self, batch: ScriptBatch[_Read], answer: list[Any], *, confirmed: bool = True) -> None:
        del confirmed
        for read, found in zip(batch.items, answer, strict=True):
            if not read.answer.done():
                read.answer.set_result(None if found is None else _record(found))


def _record(found: list[bytes]) -> dict[str, bytes]:
    return {stored_text(name): value for name, value in zip(found[::2], found[1::2], strict=True)}
