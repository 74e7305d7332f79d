"""`PartitionDispatcher`: sends the commands of one partition, from an executor or any other blocking code.

One chunk is under way at a time, and a refused row stays ahead of its mailbox's later rows, so order is kept. A full mailbox blocks only
its own rows; the others are sent. Limits of the whole namespace (its depth, the server's memory) are waited for. A task that waits too
long without progress fails, and reports how far it got. This module imports nothing of Spark.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterable, Sequence
from itertools import count, groupby
from operator import itemgetter
from typing import Any, Self
from zlib import crc32

from command_bus.errors import CommandBusError, DispatchStalled, InvalidCommand, QueueFull
from command_bus.messages.message import Message
from command_bus.messages.outgoing import Envelope, OutgoingMessage
from command_bus.sending.admission import may_not_replace
from command_bus.sending.envelope_builder import of_one_line
from command_bus.serialization.envelope import IN_DISPATCH, KEEP_OUTCOME, WireEnvelope
from command_bus.serialization.envelope_options import HISTORY
from command_bus.spark.options import OnInvalid
from command_bus.spark.target import Target, TargetConnection, connection_to
from command_bus.spark.writing.send_queue import DepthChecks, Refusal, SendQueue, StallTimer
from command_bus.spark.writing.task_results import PERMANENT_REFUSALS, PartitionResult, RejectStore, RowReject, permanent_reject
from command_bus.transport.flows import envelope_flow
from command_bus.transport.mailboxes import mailbox_parts
from command_bus.transport.ports.bulk import EntityOwner, LoadItem, Opening, Version
from command_bus.transport.submissions import Admission
from command_bus.transport.unique_keys import LoadKey

_log = logging.getLogger("command_bus.spark")
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25
_MAX_BLOCKED_BYTES = 64 * 1024 * 1024
"""Bytes of blocked commands above which a partition reads no further."""


class PartitionDispatcher:
    """Loads commands into a dispatch; use it as a context manager, which sends the rest at the end.

        def send(rows):
            with PartitionDispatcher(target, dispatch_id="orders-2026-11") as dispatcher:
                dispatcher.dispatch_batch(Envelope(Ship(order_id=row.id), command_id=row.command_id) for row in rows)

        frame.foreachPartition(send)

    The connection is not pickled: it belongs to the process, is opened at first use and closed at exit.

    Args:
        target: The server and namespace: `Target.resolve(…)` on the driver.
        dispatch_id: Name of the dispatch. The first partition opens it, and `command_bus.spark.writing.writer.commit_dispatch` closes it;
            until then it stays open, and remembers its command ids until it is forgotten.
        version: Number of the micro-batch, or 0.
        opening: How long dispatch and outcomes are remembered.
        batch_size: Commands per request, at most 1,000.
        max_backlog: Commands that may wait in the namespace before this waits; None: as many as the bus allows.
        max_wait: Seconds without any progress after which it gives up.
        on_invalid: What to do with rows that cannot be accepted: store them with the reason (`quarantine`), raise, or `drop` them.
        max_rejects: Rejected rows of the whole dispatch above which `InvalidRows` is raised.
        sequenced: Whether rows have sequence numbers, which the server checks.
        partition: Number of the partition, for the result.
        run: Name of one run of the job. With it and `partition`, the server notices an entity whose rows are in two partitions of the run.
        keep_order: Whether such an entity fails the dispatch (True), is only counted in `result.shared` (None), or is not looked for (False).
        watched: Whether the driver reads this task's warnings about stalls; else they are logged here.
    """

    def __init__(
        self,
        target: Target,
        *,
        dispatch_id: str,
        version: int = 0,
        opening: Opening | None = None,
        batch_size: int = 500,
        max_backlog: int | None = None,
        max_wait: float = 300.0,
        on_invalid: OnInvalid = "quarantine",
        max_rejects: int | None = None,
        sequenced: bool = False,
        partition: int = -1,
        run: str = "",
        keep_order: bool | None = None,
        watched: bool = False,
    ) -> None:
        self.target = target
        self.version = Version(dispatch_id, version)
        self.opening = opening or Opening()
        self.result = PartitionResult(partition)
        self._batch_size = min(batch_size, 1000)
        self._max_backlog = max_backlog
        self._max_wait = max_wait
        self._max_rejects = max_rejects
        self._rejects = RejectStore(dispatch_id, self.result, self._store_rejects, on_invalid, max_rejects)
        self._sequenced = sequenced
        wanted = run if keep_order is not False and partition >= 0 else ""
        self._owners = EntityOwners(wanted, partition, strict=keep_order is True)
        self._watched = watched
        self._stall = StallTimer(max_wait)
        self._retry_pause, self._retry_at = _SHORTEST_PAUSE, 0.0
        self._queues: dict[int, SendQueue] = {}
        self._depths = DepthChecks(1)
        self._began = 0.0

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()

    @property
    def connection(self) -> TargetConnection:
        """The connection of this process."""
        return connection_to(self.target)

    def open(self) -> None:
        """Open the dispatch, unless another partition has opened it.

        Raises:
            DispatchConflict: Its id belongs to another writer.
            TransportUnavailable: The server cannot be reached.
        """
        self._began = time.monotonic()
        connection = self.connection
        self._depths = DepthChecks(connection.settings.max_depth)
        dispatches = connection.transport.bulk
        self.result.done = (
            connection.retry_while_full(lambda: dispatches.open(self.version, self.opening), self._max_wait) == "done"
        )

    def agree(self, entity_type: str) -> None:
        """Check that all clients of the namespace use the same mailboxes for an entity type.

        Raises:
            InvalidSettings: They do not.
        """
        self.connection.agree(entity_type, self._max_wait)

    def dispatch_batch(self, commands: Iterable[Message[Any] | Envelope[Any]]) -> PartitionResult:
        """Send commands that have ids: `Envelope(command, command_id=…)`. They are accepted when this returns.

        Raises:
            InvalidCommand: A command has no id, or has a delay or deadline, which a dispatch does not support.
            DispatchStalled: A limit blocked it for longer than `max_wait`.
            DispatchFenced: The dispatch is not open any more.
        """
        for command in commands:
            shard, item = self.pack(command)
            self.add(shard, (item,))
        self.flush()
        return self.result

    def pack(self, command: Message[Any] | Envelope[Any], *, sequence: int = 0) -> tuple[int, LoadItem]:
        """Return the shard of a command, and its packed form for `add`.

        Raises:
            InvalidCommand: The command cannot be sent, has no id, or is of several entities.
        """
        if not isinstance(command, Envelope) or command.command_id is None:
            raise InvalidCommand(
                "a dispatch needs ids that a second attempt finds again: Envelope(command, command_id=…), see command_id_of"
            )
        if command.delay or command.at is not None or command.expires is not None:
            raise InvalidCommand(
                "the commands of a dispatch have no delay or deadline of their own: use CommandBus.dispatch_batch"
            )
        connection = self.connection
        out = of_one_line(connection.builder.of_item(command))
        if out.entity_type is not None:
            self.agree(out.entity_type)
        mailbox, envelope = connection.builder.mailbox_for(out), self.envelope(out)
        item = (
            mailbox,
            out.command_id,
            payload_check(out.name, out.payload),
            connection.builder.pack(envelope),
            out.entity_id or "",
            sequence,
            envelope_flow(envelope, out.tenant),
            None if out.unique is None else LoadKey.of(out.unique, out.name, mailbox, out.entity_id or ""),
        )
        return connection.shard_of(mailbox), item

    def envelope(self, out: OutgoingMessage) -> WireEnvelope:
        """Return the envelope of a command of the dispatch, which keeps its outcomes itself."""
        out.options.pop(HISTORY.letter, None)
        keeps = self.opening.keep_ms > 0
        flags, dispatch_id = (IN_DISPATCH | KEEP_OUTCOME, self.version.dispatch_id) if keeps else (IN_DISPATCH, None)
        return self.connection.builder.envelope(out, flags, dispatch_id)

    def add(self, shard: int, items: Iterable[LoadItem]) -> None:
        """Queue packed commands of one shard, and send full chunks."""
        queue = self._queues.setdefault(shard, SendQueue())
        before = len(queue)
        queue.extend(items)
        self.result.rows += len(queue) - before
        if len(queue) >= self._batch_size:
            self._send(shard, queue, least=self._batch_size)
            if queue.blocked and self._blocked_bytes() > _MAX_BLOCKED_BYTES:
                self._drain_blocked(_MAX_BLOCKED_BYTES // 2)

    def add_all(self, rows: Sequence[LoadItem | RowReject]) -> None:
        """Queue rows, and reject those that are no commands.

        An entity's rows keep their order and are grouped, within `rows`: a request that names few mailboxes costs the server half of one in
        which each row has another.
        """
        items: list[LoadItem] = []
        for row in rows:
            if isinstance(row, RowReject):
                self.reject(row)
            else:
                items.append(row)
        mailboxes = list(map(itemgetter(0), items))
        shard_of = self.connection.shard_of
        places = dict(zip(sorted(dict.fromkeys(mailboxes), key=shard_of), count(), strict=False))
        order = list(map(places.__getitem__, mailboxes))
        grouped = map(items.__getitem__, sorted(range(len(items)), key=order.__getitem__))
        if self.connection.transport.shards == 1:
            self.add(0, grouped)
            return
        for shard, group in groupby(grouped, lambda item: shard_of(item[0])):
            self.add(shard, group)

    def reject(self, reject: RowReject, *, read: bool = True) -> None:
        """Store, raise or drop a row that is no command, as `on_invalid` says.

        Raises:
            InvalidRows: `on_invalid` is `raise`, or there are too many rejects.
        """
        self.result.rows += read
        self._rejects.add(reject)

    def flush(self) -> None:
        """Send all queued commands.

        Raises:
            CommandBusError: As `dispatch_batch`.
        """
        for shard, queue in self._queues.items():
            self._send(shard, queue, least=1)
        self._drain_blocked(0)
        self._rejects.flush()
        self.result.entities = len(self._depths)
        self.result.seconds = time.monotonic() - self._began

    def _send(self, shard: int, queue: SendQueue, *, least: int) -> None:
        """Send the front of a queue, until fewer than `least` commands are left there."""
        while len(queue) >= least:
            if queue.blocked and time.monotonic() >= self._retry_at:
                self._retry(shard, queue)
            chunk = queue.take(self._batch_size)
            if not chunk:
                return  # the rest of the front was blocked
            refusal = self._load(shard, chunk)
            queue.block(refusal.own)
            queue.put_back(refusal.common)
            if refusal.rows < len(chunk):
                self._stall.progressed()
            if refusal.common:
                self._pause(refusal)

    def _retry(self, shard: int, queue: SendQueue) -> Refusal:
        """Send some of the blocked commands again, and back off as long as none is accepted."""
        chunk = queue.take_blocked(self._batch_size)
        refusal = self._load(shard, chunk)
        queue.block(refusal.own + refusal.common)
        queue.unblock()
        if refusal.rows < len(chunk):
            self._stall.progressed()
            self._retry_pause = _SHORTEST_PAUSE
        else:
            self._retry_pause = min(self._retry_pause * 2, _LONGEST_PAUSE)
        self._retry_at = time.monotonic() + self._retry_pause
        return refusal

    def _drain_blocked(self, most: int) -> None:
        """Wait until the blocked commands take no more bytes than that; there is nothing else to do."""
        while self._blocked_bytes() > most:
            refusals = [self._retry(shard, queue) for shard, queue in self._queues.items() if queue.blocked]
            refused = [refusal for refusal in refusals if refusal.rows]
            if refused:
                self._pause(refused[0])

    def _blocked_bytes(self) -> int:
        return sum(queue.blocked_bytes for queue in self._queues.values())

    def _pause(self, refusal: Refusal) -> None:
        """Wait a little, warn after a long time, or give up.

        Raises:
            DispatchStalled: Nothing could be added for `max_wait`.
        """
        stall, now = self._stall, time.monotonic()
        what = stall.refused(now)
        if what == "give up":
            raise self._stalled(refusal)
        if what == "warn":
            self._warn(now - (stall.since or now), stall.remaining(now), refusal)
        slept = stall.next_pause(refusal.retry_after) * random.uniform(0.5, 1.0)
        time.sleep(slept)
        self.result.waited += slept

    def _warn(self, waited: float, left: float, refusal: Refusal) -> None:
        live = self.connection.live_workers()
        workers = (
            "the live workers cannot be read" if live is None else f"{live} live workers" if live else "no worker lives there"
        )
        text = (
            f"dispatch {self.version.dispatch_id!r}, partition {self.result.partition}: nothing could be added for {waited:.0f} s "
            f"({refusal.description(self._queues.values())}); {workers}; it gives up in {left:.0f} s (max_wait)"
        )
        try:
            if self._watched:
                connection = self.connection
                connection.wait(connection.transport.bulk.note(self.version, text))
                return
        except CommandBusError:
            pass  # the server is out of memory, for example: then this process's log has the warning
        _log.warning("%s", text)

    def _stalled(self, refusal: Refusal) -> DispatchStalled:
        result = self.result
        accepted = result.added + result.duplicates  # an earlier attempt may have brought them
        return DispatchStalled(
            f"dispatch {self.version.dispatch_id!r}, partition {result.partition}: nothing could be added for "
            f"{self._max_wait:g} s ({refusal.description(self._queues.values())}), {accepted:,} rows of it are in their mailboxes. "
            "Are workers running? A re-run goes on from there",
            accepted=accepted, waited=result.waited, retry_after=refusal.retry_after, limit=refusal.limit,
        )  # fmt: skip

    def _load(self, shard: int, chunk: list[LoadItem]) -> Refusal:
        """Send one chunk, and return what was refused."""
        connection = self.connection
        to_check, new = self._depths.due(chunk)
        entity_owner = self._owners.declare(chunk, new)
        work = connection.transport.bulk.load(
            self.version,
            shard,
            chunk,
            backlog=self._max_backlog,
            sequenced=self._sequenced,
            suspects=to_check,
            entity_owner=entity_owner,
        )
        try:
            loaded = connection.wait(work)
        except QueueFull as error:  # the server is out of memory
            self._depths.check_next_time(chunk)
            return Refusal([], chunk, error.limit, error.retry_after)
        result = self.result
        self._owners.confirm()
        result.shared += loaded.shared
        if loaded.done:
            result.done = True
            result.duplicates += len(chunk)
            return Refusal()
        admissions = loaded.admissions
        if result.count(admissions) == len(chunk):
            return Refusal()
        if Admission.MAY_NOT_REPLACE in admissions:
            raise may_not_replace()
        for item, admission in zip(chunk, admissions, strict=True):
            if admission in PERMANENT_REFUSALS:
                self.result.conflicts += admission is Admission.CONFLICT
                self.reject(permanent_reject(item, admission), read=False)
                self._depths.check_next_time([item])
        refusal = Refusal.of(chunk, admissions, _LONGEST_PAUSE)
        self._depths.check_next_time(refusal.own)
        self._depths.check_next_time(refusal.common)
        return refusal

    def _store_rejects(self, rows: list[tuple[str, bytes]]) -> bool:
        connection = self.connection
        dispatches = connection.transport.bulk
        return connection.retry_while_full(lambda: dispatches.reject(self.version, rows, self._max_rejects), self._max_wait)


def payload_check(name: str, payload: bytes) -> bytes:
    """Return four bytes that differ between different payloads under one id."""
    return crc32(payload, crc32(name.encode())).to_bytes(4, "big")


class EntityOwners:
    """The entities of one attempt of a task. Each is declared once, with the request that has its first commands.

    Args:
        run: Name of the job's run; empty: nothing is declared.
        partition: Number of the task's partition.
        strict: Whether an entity that another partition has begun is refused, or only counted.
    """

    def __init__(self, run: str, partition: int, *, strict: bool) -> None:
        self._run, self._partition, self._strict = run, partition, strict
        self._begun: set[str] = set()
        self._declared: list[str] = []
        self._shared_mailboxes = False

    def declare(self, chunk: Sequence[LoadItem], new: Sequence[str]) -> EntityOwner | None:
        """Return what to declare with a chunk; None if nothing is new.

        Args:
            chunk: The commands to send.
            new: The mailboxes of the chunk that no earlier chunk had.
        """
        if not self._run:
            return None
        if not self._shared_mailboxes and any(_is_shared(mailbox) for mailbox in new):
            self._shared_mailboxes = True
        if self._shared_mailboxes:
            names = {_name(item) for item in chunk if item[4]}
        else:
            names = {mailbox for mailbox in (*new, *self._declared) if mailbox_parts(mailbox)[0] is not None}
        self._declared = sorted(names - self._begun)  # declared again if the request fails
        return EntityOwner(self._run, self._partition, self._declared, self._strict) if self._declared else None

    def confirm(self) -> None:
        """Record that the last request was answered."""
        self._begun.update(self._declared)
        self._declared = []


def _is_shared(mailbox: str) -> bool:
    """Return whether a mailbox may hold several entities, or does not say which one it holds."""
    kind, entity = mailbox_parts(mailbox)
    return kind is not None and entity is None


def _name(item: LoadItem) -> str:
    """Return the name of an entity within a dispatch."""
    return f"{item[0]} {item[4]}" if _is_shared(item[0]) else item[0]
