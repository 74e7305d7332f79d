"""The server's state of a dispatch besides its outcomes: counters, signs of loss, and the commands that still wait.

A command moves from its mailbox to the outcomes in one step. So reading the mailboxes *first* and the outcomes *afterwards* meets every
command in one of the two, however fast workers are; a command that is in neither is missing. Counting depths would not do: other
commands of the same entity would hide a lost one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from command_bus.clock import mono
from command_bus.errors import InvalidSettings
from command_bus.serialization.envelope import KEEP_OUTCOME, unpack_envelope
from command_bus.serialization.limits import PayloadLimits, Undecodable, reading_limits
from command_bus.spark.target import Target, TargetConnection, connection_to
from command_bus.spark.writing.task_results import read_summary
from command_bus.transport.ports.bulk import DispatchFacts
from command_bus.transport.ports.kept_streams import KeptStream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger("command_bus.spark")
_SHORTEST, _LONGEST = 0.05, 1.0  # seconds between two reads of the counters
_LOG_EVERY = 5.0  # seconds between two lines in the log


@dataclass(frozen=True, slots=True)
class DispatchState:
    """The state of a dispatch at one moment.

    Attributes:
        facts: Its record.
        streams: Its outcomes, by shard; None if a shard has none (yet, or any more).
        now_ms: The server's time.
    """

    facts: DispatchFacts
    streams: tuple[KeptStream | None, ...]
    now_ms: int

    @classmethod
    def read(cls, target: Target, dispatch_id: str, *, is_empty: bool = False) -> DispatchState:
        """Read the current state.

        Args:
            target: The server and the namespace.
            dispatch_id: The dispatch.
            is_empty: Whether it had no rows, so that it may have left nothing to be read.

        Raises:
            InvalidSettings: The dispatch is unknown, or keeps no outcomes.
        """
        connection = connection_to(target)
        facts = connection.facts(dispatch_id)
        shot = connection.wait(connection.transport.operator.statistics.snapshot(0))
        if facts is None and is_empty:
            facts = DispatchFacts(dispatch_id, version=0, first_ms=shot.now_ms, keep_ms=1)
        if facts is None:
            raise InvalidSettings(
                f"nothing is known of dispatch {dispatch_id!r} at {target.label}: it was never opened, or is remembered no more (remember_for)"
            )
        if not facts.keep_ms:
            raise InvalidSettings(
                f"dispatch {dispatch_id!r} keeps no outcomes, so its commands cannot be reconciled: "
                'dispatch with outcomes="7 days", or as long as they may be read'
            )
        return cls(facts, tuple(connection.streams([dispatch_id]).values()), shot.now_ms)

    @property
    def open(self) -> bool:
        """Whether a version is being loaded, so that rows may be missing."""
        return self.facts.state == "open"

    @property
    def trimmed(self) -> int:
        """Outcomes that are known to be trimmed."""
        return sum(stream.trimmed for stream in self.streams if stream is not None)

    @property
    def lossy(self) -> bool:
        """Whether outcomes may have been trimmed. An expired stream leaves no trace of itself."""
        unknown = any(stream is None or stream.added is None for stream in self.streams)
        return self.trimmed > 0 or (unknown and self.now_ms - self.facts.first_ms >= self.facts.keep_ms)

    @property
    def dropped(self) -> int:
        """Rows that were no commands and left no record, because of `on_invalid="drop"`."""
        found = None if self.facts.rejected else read_summary(self.facts.summary)
        return 0 if found is None else found.total.rejected


def await_settled(target: Target, dispatch_id: str, aim: int, deadline: float) -> None:
    """Wait until so many outcomes exist, or until the (monotonic) deadline. It reads counters, which costs the server nothing."""
    connection = connection_to(target)
    pause, logged = _SHORTEST, mono()
    while True:
        settled = sum(
            (stream.added or stream.length) for stream in connection.streams([dispatch_id]).values() if stream is not None
        )
        now = mono()
        if settled >= aim or now >= deadline:
            return
        if now - logged >= _LOG_EVERY:
            logged = now
            _log.info(
                "dispatch %r: %s of %s settled, waiting for %.0f s more at most",
                dispatch_id,
                f"{settled:,}",
                f"{aim:,}",
                deadline - now,
            )
        time.sleep(min(pause, max(deadline - now, 0.0)))
        pause = min(pause * 1.5, _LONGEST)


def commands_in_mailboxes(spark: SparkSession, target: Target, dispatch_id: str, moment: int) -> DataFrame:
    """Return the commands of a dispatch that are in mailboxes now: `command_id`, and whether the mailbox is `parked`.

    They are read at once and kept: a later read would give another result.

    Args:
        spark: The session; one task per shard reads.
        target: The server and namespace.
        dispatch_id: The dispatch.
        moment: Differs between calls, so that Spark never takes one for another.
    """
    shards = connection_to(target).transport.shards
    read = partial(_waiting, target, dispatch_id, moment)
    found = spark.range(0, shards, 1, shards).mapInArrow(read, "command_id string, parked boolean")
    return found.localCheckpoint(eager=True)


def _waiting(target: Target, dispatch_id: str, _moment: int, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the commands in a task's shards."""
    import pyarrow as pa

    connection = connection_to(target)
    limits = reading_limits(connection.settings)
    for batch in batches:
        for shard in batch.column(0).to_pylist():
            for page in _pages(connection, shard):
                found = [(each, parked) for raw, parked in page if (each := _id_of_dispatch(raw, dispatch_id, limits))]
                if found:
                    ids, parked = zip(*found, strict=True)
                    yield pa.RecordBatch.from_pydict({"command_id": ids, "parked": parked})


def _pages(connection: TargetConnection, shard: int) -> Iterator[list[tuple[bytes, bool]]]:
    """Yield the envelopes in a shard, each with whether its mailbox is parked. A delayed command moves to its mailbox, so those are first."""
    mailboxes = connection.transport.operator.mailboxes
    for [later] in connection.chunks(mailboxes.delayed(shard)):
        yield [(each.envelope, False) for _, each in later]
    for [page] in connection.chunks(mailboxes.contents(shard)):
        yield [(each.envelope, entity.state == "parked") for entity, entries in page for each in entries]


def _id_of_dispatch(raw: bytes, dispatch_id: str, limits: PayloadLimits) -> str | None:
    """Return the id of a command of the dispatch; None for all others."""
    try:
        envelope = unpack_envelope(raw, limits)
    except Undecodable:
        return None  # not from a dispatch
    return envelope.command_id if envelope.flags & KEEP_OUTCOME and envelope.correlation_id == dispatch_id else None
