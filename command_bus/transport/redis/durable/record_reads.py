"""`RecordReads`: reads the side records of the durable commands that start, those of one turn of the event loop in one request."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from command_bus.errors import CommandBusError
from command_bus.serialization.odd_values import stored_text
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.outage_log import LoggedBackoff
from command_bus.transport.redis.connection.stop_and_wait import StopAndWait
from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.redis.scripts import READ_RECORDS, Script

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


@dataclass(slots=True)
class _Batch:
    """Records that are read together."""

    keys: list[str]
    args: list[Any]
    reads: list[_Read]
    script: Script = READ_RECORDS


class RecordReads(StopAndWait[_Read, _Batch]):
    """The line of side records to be read in one shard.

    Args:
        connections: To the shard's server.
        keys: Of the shard.
    """

    def __init__(self, connections: Connections, keys: ShardKeys) -> None:
        super().__init__(connections, f"command_bus.record_reads{keys.prefix}")
        self._backoff = LoggedBackoff(connections.outage, CANNOT_READ, _log)

    def read(self, key: str) -> asyncio.Future[Record]:
        """Return a record, empty if there is none; None if it has to be read a page at a time. While the server is away this waits."""
        answer: asyncio.Future[Record] = self._future()
        self._put(_Read(key, answer))
        return answer

    def _take(self) -> list[_Read]:
        batch = list(itertools.islice(self._line, _MOST_RECORDS))
        for _ in batch:
            self._line.popleft()
        return [each for each in batch if not each.answer.done()]

    def _batch(self, items: list[_Read]) -> _Batch:
        return _Batch([each.key for each in items], [_MOST_FIELDS, _MOST_BYTES], items)

    def _items(self, batch: _Batch) -> list[_Read]:
        return batch.reads

    def _is_answer(self, answer: Any) -> bool:
        return type(answer) is list

    def _hand_out(self, batch: _Batch, answer: list[Any]) -> None:
        for read, found in zip(batch.reads, answer, strict=True):
            if not read.answer.done():
                read.answer.set_result(None if found is None else _record(found))

    async def _send_slowly(self, batch: _Batch, error: CommandBusError | None) -> None:
        while True:
            if error is not None:
                await asyncio.sleep(self._backoff.failed(error))
            try:
                answer = await self._connections.run(batch.script, batch.keys, batch.args)
            except CommandBusError as failure:
                self._connections.count_reconnect()
                error = failure
            else:
                self._backoff.worked()
                self._hand_out(batch, answer)
                return

    def _failed(self, items: Sequence[_Read], error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            return  # the worker has ended
        for item in items:
            if not item.answer.done():
                item.answer.set_exception(error)


def _record(found: list[bytes]) -> dict[str, bytes]:
    return {stored_text(name): value for name, value in zip(found[::2], found[1::2], strict=True)}
