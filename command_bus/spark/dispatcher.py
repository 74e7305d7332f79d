"""`PartitionDispatcher`: sends the commands of one partition, from an executor or any other blocking code.

One chunk per shard is under way at a time, and a refused row stays in front of its entity's later ones, so order holds by
construction. What is full (a depth limit, the server's memory) is waited for; whoever waits too long fails, and says how far it got.
It imports nothing of Spark.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any, Self
from zlib import crc32

from command_bus.errors import DispatchStalled, InvalidCommand, InvalidRows, QueueFull
from command_bus.messages import Message
from command_bus.outbound import Envelope
from command_bus.serialization.envelope import AT_MOST_ONCE, IN_DISPATCH, KEEP_OUTCOME, WireEnvelope
from command_bus.spark.options import OnInvalid
from command_bus.spark.target import Link, Target, link_to
from command_bus.transport.dispatches import LoadItem, Opening, Version
from command_bus.transport.interfaces import Admission

__all__ = ["PartitionDispatcher", "PartitionResult", "Reject", "check_of", "flags_of"]

MAX_CHUNK_BYTES = 1024 * 1024
_REJECTS = 200  # noted at a time
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25
_TRUST = (
    16  # of what a mailbox may hold, a partition puts in one sixteenth before it asks again: the limit is exceeded by no more
)
_REFUSED = {
    Admission.ENTITY_FULL: "entity", Admission.TOTAL_FULL: "total", Admission.PREDECESSOR_REFUSED: "predecessor",
    Admission.DRAINING: "drain",
}  # fmt: skip
_UNFIT = {
    Admission.CONFLICT: (
        "conflict",
        "another row of this dispatch has the same command id and another payload: the key is not unique",
    ),
    Admission.WRONG_TYPE: (
        "wrong_type",
        "this entity's mailbox takes no commands: its key holds something else, or its stream's ids are used up: another program writes there",
    ),
    Admission.OUT_OF_SEQUENCE: ("out_of_sequence", "its sequence number is not above the last one of its entity"),
}


@dataclass(slots=True)
class PartitionResult:
    """What became of the rows of a partition.

    Attributes:
        partition: Its number, -1 if unknown.
        rows: That were read.
        added: That are in their mailboxes because of this attempt.
        duplicates: That were there already: an earlier attempt, or the same row twice.
        rejected: That are no commands, or cannot be accepted (a conflict of ids, a sequence number that went back).
        entities: Distinct mailboxes.
        waited: Seconds that limits held it up.
        seconds: In all.
        done: Whether its version had been committed already, so that nothing was added.
    """

    partition: int = -1
    rows: int = 0
    added: int = 0
    duplicates: int = 0
    rejected: int = 0
    entities: int = 0
    waited: float = 0.0
    seconds: float = 0.0
    done: bool = False


@dataclass(slots=True, frozen=True)
class Reject:
    """A row that is no command.

    Attributes:
        key: Tells it from others, whichever attempt meets it.
        record: Why, and what it was, as JSON.
    """

    key: str
    record: bytes

    @classmethod
    def of(
        cls, *, command_id: str | None, command: str, entity: str | None, reason: str, error: str, row: dict[str, Any]
    ) -> Reject:
        """The reject of a row; long values are cut."""
        shown = {name: _shown(value) for name, value in row.items()}
        facts = {"command_id": command_id, "command": command, "entity": entity, "reason": reason, "error": error, "row": shown}
        record = json.dumps(facts, ensure_ascii=False, default=str).encode("utf-8", "replace")
        return cls(f"{command_id or ''}#{crc32(record):08x}", record)


class PartitionDispatcher:
    """Loads commands into a dispatch; use it as a context manager, which sends the rest at the end.

        def send(rows):
            with PartitionDispatcher(target, dispatch_id="orders-2026-11") as dispatcher:
                dispatcher.dispatch_batch(Envelope(Ship(order_id=row.id), command_id=row.command_id) for row in rows)

        frame.foreachPartition(send)

    Only its arguments are pickled. The connection belongs to the process, is opened when it is first needed and closed at exit.

    Args:
        target: Where to: `Target.resolve(…)` on the driver.
        dispatch_id: Names the dispatch; opened by the first partition that comes, closed by
            `command_bus.spark.writer.commit_dispatch`; without that it stays open, and remembers its command ids until it is forgotten.
        version: Of the dispatch: 0, or the number of a micro-batch.
        opening: How long dispatch and outcomes are remembered.
        batch_size: Commands per request, at most 1,000.
        max_backlog: Commands that may wait in the namespace before this waits; None: as many as the bus allows.
        max_wait: Seconds without any progress after which it gives up.
        on_invalid: What becomes of rows that cannot be accepted.
        max_rejects: More rejected rows of the whole dispatch than that raise `InvalidRows`.
        sequenced: Whether rows have sequence numbers to be held to.
        partition: For the result.
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
    ) -> None:
        self.target = target
        self.version = Version(dispatch_id, version)
        self.opening = opening or Opening()
        self.result = PartitionResult(partition)
        self._batch_size = min(batch_size, 1000)
        self._max_backlog = max_backlog
        self._max_wait = max_wait
        self._on_invalid = on_invalid
        self._max_rejects = max_rejects
        self._sequenced = sequenced
        self._lines: dict[int, list[LoadItem]] = {}
        self._rejects: list[Reject] = []
        self._touched: dict[str, int] = {}
        self._trust = 1
        self._began = 0.0

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_link"}

    @property
    def link(self) -> Link:
        """The connection of this process."""
        return link_to(self.target)

    def open(self) -> None:
        """Open the dispatch, unless another partition has.

        Raises:
            DispatchConflict: Its id is another writer's.
            TransportUnavailable: The server cannot be reached.
        """
        self._began = time.monotonic()
        link = self.link
        self._trust = max(link.settings.max_depth // _TRUST, 1)
        dispatches = link.transport.dispatches
        self.result.done = link.patiently(lambda: dispatches.open(self.version, self.opening), self._max_wait) == "done"

    def dispatch_batch(self, commands: Iterable[Message[Any] | Envelope[Any]]) -> PartitionResult:
        """Send commands that have ids: `Envelope(command, command_id=…)`. They are accepted when this returns.

        Raises:
            InvalidCommand: One has no id, or a delay or deadline, which dispatches do not have.
            DispatchStalled: A limit held it up for longer than `max_wait`.
            DispatchFenced: The dispatch is not open any more.
        """
        for command in commands:
            shard, item = self.pack(command)
            self.add(shard, (item,))
        self.flush()
        return self.result

    def pack(self, command: Message[Any] | Envelope[Any], *, sequence: int = 0) -> tuple[int, LoadItem]:
        """The shard of a command, and its packed form for `add`.

        Raises:
            InvalidCommand: It cannot be sent, or not so.
        """
        if not isinstance(command, Envelope) or command.command_id is None:
            raise InvalidCommand(
                "a dispatch needs ids that a second attempt finds again: Envelope(command, command_id=…), see command_id_of"
            )
        if command.delay or command.expires is not None:
            raise InvalidCommand(
                "the commands of a dispatch have no delay or deadline of their own: use CommandBus.dispatch_batch"
            )
        link = self.link
        out = link.sealer.of_item(command)
        if out.entity_type is not None:
            link.agree(out.entity_type, self._max_wait)
        submission = link.sealer.seal(out)
        flags = flags_of(self.opening, at_most_once=out.at_most_once)
        envelope = WireEnvelope(
            out.command_id, out.name, out.entity_type, out.entity_id, out.payload, flags,
            correlation_id=self.version.dispatch_id if flags & KEEP_OUTCOME else None, headers=out.headers or None,
        )  # fmt: skip
        check = check_of(out.name, out.payload)
        item = (submission.mailbox, out.command_id, check, link.sealer.pack(envelope), out.entity_id or "", sequence)
        return link.shard_of(submission.mailbox), item

    def add(self, shard: int, items: Iterable[LoadItem]) -> None:
        """Put packed commands of one shard in line."""
        line = self._lines.setdefault(shard, [])
        before = len(line)
        line.extend(items)
        self.result.rows += len(line) - before
        if len(line) >= self._batch_size:
            self._send(shard, line, everything=False)

    def add_all(self, rows: Iterable[tuple[int, LoadItem] | Reject]) -> None:
        """Put rows in line; those that are no commands are rejected.

        An entity's rows keep their order and come to stand together, as far as `rows` has them: a request that names few mailboxes
        costs the server half of one where each row has another.
        """
        lines: dict[str, list[LoadItem]] = {}
        shards: dict[str, int] = {}
        for row in rows:
            if isinstance(row, Reject):
                self.reject(row)
                continue
            shard, item = row
            line = lines.get(item[0])
            if line is None:
                lines[item[0]] = [item]
                shards[item[0]] = shard
            else:
                line.append(item)
        by_shard: dict[int, list[list[LoadItem]]] = {}
        for mailbox, line in lines.items():
            by_shard.setdefault(shards[mailbox], []).append(line)
        for shard, together in by_shard.items():
            self.add(shard, chain.from_iterable(together))

    def reject(self, reject: Reject, *, read: bool = True) -> None:
        """Note a row that is no command, or fail, or forget it, as `on_invalid` says.

        Raises:
            InvalidRows: It may not be, or there are too many.
        """
        self.result.rows += read
        self.result.rejected += 1
        if self._on_invalid == "raise":
            facts = json.loads(reject.record)
            raise InvalidRows(
                f"dispatch {self.version.dispatch_id!r}: a row is no valid command: {facts['error']} "
                f"(command id {facts['command_id']!r}); on_invalid = quarantine would set such rows aside",
                count=self.result.rejected,
            )
        if self._on_invalid == "quarantine":
            self._rejects.append(reject)
            if len(self._rejects) >= _REJECTS:
                self._note_rejects()
        elif self._max_rejects is not None and self.result.rejected > self._max_rejects:
            raise self._too_many()

    def flush(self) -> None:
        """Send all that is in line.

        Raises:
            CommandBusError: As `dispatch_batch`.
        """
        for shard, line in self._lines.items():
            self._send(shard, line, everything=True)
        self._note_rejects()
        self.result.entities = len(self._touched)
        self.result.seconds = time.monotonic() - self._began

    def _send(self, shard: int, line: list[LoadItem], *, everything: bool) -> None:
        """Send until less than a chunk is left, or nothing."""
        pause = _SHORTEST_PAUSE
        stuck_since: float | None = None
        sent = 0
        refused: list[LoadItem] = []
        while len(line) - sent + len(refused) >= (1 if everything or refused else self._batch_size):
            chunk = _head(refused + line[sent : sent + self._batch_size - len(refused)], self._batch_size)
            sent += max(len(chunk) - len(refused), 0)
            left = refused[len(chunk) :]
            refused, why, retry_after = self._load(shard, chunk)
            if len(refused) < len(chunk):
                pause, stuck_since = _SHORTEST_PAUSE, None
            refused += left
            if not refused:
                continue
            now = time.monotonic()
            stuck_since = stuck_since if stuck_since is not None else now
            if now - stuck_since > self._max_wait:
                raise self._stalled(why, retry_after)
            slept = min(pause, retry_after) * random.uniform(0.5, 1.0)
            time.sleep(slept)
            self.result.waited += slept
            pause = min(pause * 2, _LONGEST_PAUSE)
        del line[:sent]

    def _stalled(self, why: str, retry_after: float) -> DispatchStalled:
        result = self.result
        accepted = result.added + result.duplicates  # an earlier attempt may have brought them
        return DispatchStalled(
            f"dispatch {self.version.dispatch_id!r}, partition {result.partition}: nothing could be added for {self._max_wait:g} s "
            f"({why} limit), {accepted:,} rows of it are in their mailboxes. Are workers running? A re-run goes on from there",
            accepted=accepted, waited=result.waited, retry_after=retry_after, limit=why,
        )  # fmt: skip

    def _suspects(self, chunk: list[LoadItem]) -> set[str]:
        """The mailboxes that may be full for all that this partition knows: new ones, and those it has put much into."""
        touched, trust = self._touched, self._trust
        suspects: set[str] = set()
        for mailbox, more in Counter(map(itemgetter(0), chunk)).items():
            count = touched.get(mailbox, 0)
            if -(-count // trust) * trust < count + more:  # a multiple of it is among them
                suspects.add(mailbox)
            touched[mailbox] = count + more
        return suspects

    def _load(self, shard: int, chunk: list[LoadItem]) -> tuple[list[LoadItem], str, float]:
        """Send one chunk; what of it was refused, by which limit, and after how many seconds a new try is sensible."""
        link = self.link
        work = link.transport.dispatches.load(
            self.version, shard, chunk, backlog=self._max_backlog, sequenced=self._sequenced, suspects=self._suspects(chunk)
        )
        try:
            loaded = link.wait(work)
        except QueueFull as error:  # the server's memory
            self._distrust(chunk)
            return chunk, error.limit, error.retry_after
        result = self.result
        if loaded.done:
            result.done = True
            result.duplicates += len(chunk)
            return [], "", 0.0
        admissions = loaded.admissions
        added = admissions.count(Admission.ACCEPTED)
        result.added += added
        if added == len(chunk):
            return [], "", 0.0
        result.duplicates += admissions.count(Admission.DUPLICATE)
        refused: list[LoadItem] = []
        why = "total"
        for item, admission in zip(chunk, admissions, strict=True):
            if admission in _REFUSED:
                refused.append(item)
                why = _REFUSED[admission] if admission is not Admission.PREDECESSOR_REFUSED else why
            elif admission in _UNFIT:
                reason, text = _UNFIT[admission]
                self.reject(_unfit(item, reason, text), read=False)
                self._distrust([item])
        self._distrust(refused)
        return refused, why, _LONGEST_PAUSE

    def _distrust(self, items: list[LoadItem]) -> None:
        """Look at their mailboxes again next time."""
        for item in items:
            self._touched[item[0]] = 0

    def _note_rejects(self) -> None:
        rejects, self._rejects = self._rejects, []
        if not rejects or self.result.done:
            return
        link = self.link
        rows = [(reject.key, reject.record) for reject in rejects]
        dispatches = link.transport.dispatches
        if not link.patiently(lambda: dispatches.reject(self.version, rows, self._max_rejects), self._max_wait):
            raise self._too_many()

    def _too_many(self) -> InvalidRows:
        return InvalidRows(
            f"dispatch {self.version.dispatch_id!r}: more than {self._max_rejects} rows are no valid commands (max_rejects); "
            "what was noted of them can be read as the view 'rejects'",
            count=self.result.rejected,
        )


def check_of(name: str, payload: bytes) -> bytes:
    """Four bytes that differ between different payloads under one id."""
    return crc32(payload, crc32(name.encode())).to_bytes(4, "big")


def flags_of(opening: Opening, *, at_most_once: bool) -> int:
    """The flags of a dispatch's envelopes."""
    return IN_DISPATCH | (KEEP_OUTCOME if opening.keep_ms else 0) | (AT_MOST_ONCE if at_most_once else 0)


def _head(items: list[LoadItem], count: int) -> list[LoadItem]:
    """As many as fit one request, at least one."""
    if sum(map(len, map(itemgetter(3), items))) <= MAX_CHUNK_BYTES:
        return items[:count]
    size = 0
    for index, item in enumerate(items[:count]):
        size += len(item[3])
        if size > MAX_CHUNK_BYTES and index:
            return items[:index]
    return items[:count]


def _unfit(item: LoadItem, reason: str, text: str) -> Reject:
    mailbox, command_id, check, _, entity, number = item
    row = {"mailbox": mailbox, "sequence": number, "payload_check": check.hex()}
    return Reject.of(command_id=command_id, command="", entity=entity or None, reason=reason, error=text, row=row)


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)  # noqa: PLR0124 - NaN is no JSON
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= 1000 else text[:1000] + "…"
