"""`RedisSideRecords`: what durable commands store while they run, in few large batches.

What all entities store in one turn of the event loop leaves together, as their steps do (see `step_batcher.py`). Each field is stored once, so
after a lost reply a batch is repeated. Where replicas must have what counts, a step has no answer before they do: its handler goes on from there.

`RecordReads`: reads the side records of the durable commands that start, those of one turn of the event loop in one request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from command_bus.errors import CommandBusError, Unconfirmed
from command_bus.serialization.odd_values import pass_over, stored_text
from command_bus.tasks import all_of
from command_bus.transport.flows import NORMAL_FLOW
from command_bus.transport.ports.durable import Note, SideRecords, Stored
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.errors import is_of_a_value
from command_bus.transport.redis.connection.outage_log import LoggedBackoff
from command_bus.transport.redis.connection.script_line import Read, ReadLine, ScriptBatch, WorkerLine
from command_bus.transport.redis.keys import GROUP, KeySpace, ShardKeys
from command_bus.transport.redis.scripts import RAISE_FENCE, READ_RECORDS, RECORD_STEPS
from command_bus.transport.redis.step_arguments import follow_up_text
from command_bus.transport.steps import FollowUp, Lease

CANNOT_READ = "cannot read what a durable command has stored"
"""The text of the log while the server is away."""
_MOST_RECORDS = 128
_MOST_READ = 256
"""Most fields of a record that is returned whole: the server does nothing else meanwhile."""
_MOST_BYTES = 1024 * 1024

Record = dict[str, bytes] | None


class RecordReads(ReadLine[Record]):
    """The line of side records to be read in one shard: empty if there is none; None if it has to be read a page at a time.

    Args:
        connections: To the shard's server.
        keys: Names of the shard's keys.
    """

    def __init__(self, connections: Connections, keys: ShardKeys) -> None:
        super().__init__(connections, f"command_bus.record_reads{keys.prefix}", CANNOT_READ, most=_MOST_RECORDS)

    def _batch(self, items: list[Read]) -> ScriptBatch[Read]:
        return ScriptBatch(READ_RECORDS, [each.key for each in items], [_MOST_READ, _MOST_BYTES], items)

    def _value(self, found: Any) -> Record:
        return None if found is None else _record(found)


def _record(found: list[bytes]) -> dict[str, bytes]:
    return {stored_text(name): value for name, value in zip(found[::2], found[1::2], strict=True)}


class _Floor(NamedTuple):
    """A fence that the next ones of a shard are to be above."""

    fence: int
    answer: asyncio.Future[int]


class _Fences(WorkerLine[_Floor]):
    """The line of fences that one shard is to be above: the highest is for all."""

    def __init__(self, connections: Connections, keys: ShardKeys) -> None:
        super().__init__(connections, f"command_bus.fences{keys.prefix}", "cannot raise the fence of a shard")
        self._names = [keys.ready, keys.fence]

    def submit(self, fence: int) -> asyncio.Future[int]:
        answer: asyncio.Future[int] = self._future()
        self._put(_Floor(fence, answer))
        return answer

    def _batch(self, items: list[_Floor]) -> ScriptBatch[_Floor]:
        return ScriptBatch(RAISE_FENCE, self._names, [GROUP, max(each.fence for each in items)], items)

    def _hand_out(self, batch: ScriptBatch[_Floor], answer: list[Any], *, confirmed: bool = True) -> None:
        del confirmed
        for each in batch.items:
            if not each.answer.done():
                each.answer.set_result(int(answer[0]))


_MOST_ITEMS = 128
_PAGE = 256
_MOST_FIELDS = 1_000
_log = logging.getLogger("command_bus.transport")


class _Item(NamedTuple):
    """The fields that one command stores."""

    lease: Lease
    attempt_id: str
    command_id: str
    notes: Sequence[Note]
    manner: str
    answer: asyncio.Future[list[Stored] | None]


class RedisSideRecords(SideRecords):
    """Implements `SideRecords`.

    Args:
        connections: Clients that this process shares.
        keys: All shards.
    """

    def __init__(self, connections: Connections, keys: KeySpace) -> None:
        self._connections = connections
        self._keys = keys
        self._shards = [_Shard(connections.at(shard.prefix), keys, shard) for shard in keys.shards]
        self._reads = [RecordReads(connections.at(shard.prefix), shard) for shard in keys.shards]
        self._fences = [_Fences(connections.at(shard.prefix), shard) for shard in keys.shards]

    async def read(self, lease: Lease, command_id: str) -> Mapping[str, bytes]:
        """Read them. While the server is away this waits, as a settlement would."""
        record = await self._reads[lease.shard].read(self._keys.shards[lease.shard].side(command_id))
        return await self._until_read(lease, command_id, read_side_record) if record is None else record

    async def fields(self, lease: Lease, command_id: str, names: Sequence[str]) -> Mapping[str, bytes]:
        """Read them. While the server is away this waits, too."""

        async def read(connections: Connections, key: str) -> dict[str, bytes]:
            values = await read_fields(connections, key, names)
            return {name: value for name, value in zip(names, values, strict=True) if value is not None}

        return await self._until_read(lease, command_id, read)

    async def _until_read(
        self, lease: Lease, command_id: str, read: Callable[[Connections, str], Awaitable[dict[str, bytes]]]
    ) -> dict[str, bytes]:
        keys = self._keys.shards[lease.shard]
        connections = self._connections.at(keys.prefix)
        backoff = LoggedBackoff(connections.outage, CANNOT_READ, _log)
        while True:
            try:
                # A client of redis-py may swallow a cancellation, and the time limit that cancels this would be over for nothing.
                record = await asyncio.shield(asyncio.ensure_future(read(connections, keys.side(command_id))))
            except CommandBusError as error:
                if is_of_a_value(error):  # its command does not start: what it did before cannot be known
                    pass_over("x", command_id, error)
                    raise
                await asyncio.sleep(backoff.failed(error))
            else:
                backoff.worked()
                return record

    def store(
        self, lease: Lease, command_id: str, notes: Sequence[Note], *, progressed: bool, keeps: bool = True
    ) -> asyncio.Future[list[Stored] | None]:
        return self._shards[lease.shard].submit(lease, command_id, notes, "1" if progressed else "0" if keeps else "d")

    def raise_fence(self, mailbox: str, fence: int) -> asyncio.Future[int]:
        return self._fences[self._keys.shard_of(mailbox)].submit(fence)

    async def close(self, patience: float) -> None:
        """Wait for what is in flight, at most `patience` seconds."""
        ending = [*(reads.end() for reads in self._reads), *(fences.end() for fences in self._fences)]
        await all_of(*(shard.close(patience) for shard in self._shards), *ending)


async def read_side_record(connections: Connections, key: str) -> dict[str, bytes]:
    """Return a side record, read a page at a time.

    Raises:
        CommandBusError: The server cannot be asked.
    """
    record: dict[str, bytes] = {}
    cursor: Any = 0
    while True:
        found: Any = await connections.ask(lambda client, cursor: client.hscan(key, cursor, count=_PAGE), cursor)
        cursor, fields = found
        record |= {stored_text(name): value for name, value in fields.items()}
        if int(cursor) == 0:
            return record


async def read_fields(connections: Connections, key: str, names: Sequence[str]) -> list[bytes | None]:
    """Return fields of a hash, read a page at a time.

    Raises:
        CommandBusError: The server cannot be asked.
    """
    found: list[bytes | None] = []
    for at in range(0, len(names), _MOST_FIELDS):
        part = list(names[at : at + _MOST_FIELDS])
        found += await connections.ask(lambda client, part: client.hmget(key, part), part)
    return found


class _Shard(WorkerLine[_Item]):
    """The line of fields to be stored in one shard."""

    _lasts = True

    def __init__(self, connections: Connections, space: KeySpace, keys: ShardKeys) -> None:
        name = f"command_bus.side_records{keys.prefix}"
        super().__init__(
            connections, name, "cannot store what durable commands have done", confirmed=keys.stats, most=_MOST_ITEMS
        )
        self._space = space
        self._keys = keys
        self._head = [keys.ready, keys.active, keys.lone, keys.paused, keys.due, keys.delayed, keys.delayed_counts]
        self._head += [keys.stats, keys.watched, keys.events, *keys.fair]

    def submit(self, lease: Lease, command_id: str, notes: Sequence[Note], manner: str) -> asyncio.Future[list[Stored] | None]:
        answer: asyncio.Future[list[Stored] | None] = self._future()
        self._put(_Item(lease, lease.attempt_id, command_id, notes, manner, answer))
        return answer

    def _size(self, item: _Item) -> int:
        return sum(map(_size, item.notes))

    def _batch(self, items: list[_Item]) -> ScriptBatch[_Item]:
        args: list[Any] = [GROUP, len(self._keys.mailboxes), 0, len(items)]
        args += [item.lease.mailbox for item in items]
        children: list[FollowUp] = []
        for item in items:
            attempt, kinds, names, values = item.attempt_id, "", [], []
            for note in item.notes:
                kinds += _kind(note)
                names.append(note.name)
                values.append(note.value)
                if note.child is not None:
                    children.append(note.child)
            args += (f"|{item.lease.activation}|{attempt}|", attempt.partition("|")[2], item.manner, kinds, *names, *values)
        boxes: dict[str, int] = {}
        others = [self._encode(child, boxes, args) for child in children]
        args[2] = len(boxes)
        sides = [self._keys.side(item.command_id) for item in items]
        return ScriptBatch(RECORD_STEPS, [*self._head, *boxes, *sides, *others], args, items)

    def _encode(self, child: FollowUp, boxes: dict[str, int], args: list[Any]) -> str:
        """Append the arguments of a command that is sent, note its mailbox and return its other key: see the head of `lua/record_steps.lua`."""
        shard = self._space.shard_of(child.mailbox)
        flow = child.flow or NORMAL_FLOW
        way = "" if flow == NORMAL_FLOW and not child.delay_ms else f"{flow}|{child.delay_ms}"
        if self._space.shards[shard] is not self._keys:
            args += (follow_up_text(str(shard), flow, child), way, child.command_id, child.envelope, child.mark)
            return f"{self._keys.outs}{shard}"
        box = boxes.setdefault(self._keys.mailbox(child.mailbox), len(boxes) + 1)
        args += (box, way, child.command_id, child.envelope, child.mark)
        return self._keys.mark(child.command_id)

    def _hand_out(self, batch: ScriptBatch[_Item], answer: list[Any], *, confirmed: bool = True) -> None:
        """Hand the answers out. What too few replicas have, and has to last, is asked for again, after what waits: the server waits for replicas."""
        for item, found in zip(batch.items, answer, strict=True):
            if not confirmed and found is not None and not all(note.report for note in item.notes):
                self._line.append(item)
            elif not item.answer.done():
                item.answer.set_result(found)
        if not confirmed and self._line:
            self._backoff.failed(
                Unconfirmed(f"{self._connections.label} has it, but too few replicas confirmed it in time (wait_replicas)")
            )


def _kind(note: Note) -> str:
    """Return the letter of a field's kind."""
    return note.report or ("c" if note.child is not None else "t" if note.is_time else "f")


def _size(note: Note) -> int:
    """Return roughly how many bytes a field has."""
    value = 8 if isinstance(note.value, int) else len(note.value)
    return value + (0 if note.child is None else len(note.child.envelope))
