"""The writers of the data source: planned on the driver, run in tasks, committed on the driver.

Spark makes a batch writer once and pickles it to the tasks and to a process that commits. For a stream it makes a new writer for every
micro-batch, and another for its commit. So a writer is data: it identifies a dispatch by id and version.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from command_bus.errors import InvalidSettings
from command_bus.export.columns import gc_paused
from command_bus.spark.errors import without_spark_frames
from command_bus.spark.options import WriteOptions
from command_bus.spark.target import PLANNING_PATIENCE, Target, connection_to
from command_bus.spark.writing.columns import map_in_arrow
from command_bus.spark.writing.command_encoder import Packed
from command_bus.spark.writing.command_lookup import command_mappings, mapper_of, planned
from command_bus.spark.writing.encoder import BatchEncoder
from command_bus.spark.writing.fingerprint import Fingerprint, check_same_rows, ids_digest
from command_bus.spark.writing.partition import PartitionDispatcher
from command_bus.spark.writing.task_results import (
    ACCEPTED_OTHERWISE,
    REPAIR_OF,
    REPAIRED,
    PartitionResult,
    Summary,
    accepted_since,
    read_summary,
)
from command_bus.transport.ports.bulk import DispatchFacts, Opening, Version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SendAhead:
    """Queues rows in a dispatcher, in a thread of its own; as a context manager, it waits for all of them at the end.

    Args:
        dispatcher: Sends the commands of the partition. No other thread may send with it before this ends.
    """

    def __init__(self, dispatcher: PartitionDispatcher) -> None:
        self._dispatcher = dispatcher
        self._thread = ThreadPoolExecutor(1, "command_bus.spark.send")
        self._sending: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self._wait()
        finally:
            self._thread.shutdown()

    def send(self, rows: Sequence[Packed]) -> None:
        """Send rows behind those of the last call, which are sent when this returns.

        Raises:
            CommandBusError: The rows of the last call could not be sent.
        """
        self._wait()
        self._sending = self._thread.submit(self._dispatcher.add_all, rows)

    def skip(self, rows: int) -> None:
        """Count rows that were committed before, as `send` does."""
        self._wait()
        self._dispatcher.result.rows += rows
        self._dispatcher.result.duplicates += rows

    def _wait(self) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.result()


_log = logging.getLogger("command_bus.spark")
_COMMIT_WAIT = 300.0
_INNER = ("shared", "digest", "conflicts")
"""Fields of a task's result that no summary holds: an older release could not read them."""
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass
class PartitionDone(WriterCommitMessage):
    """A task's message to the driver.

    Attributes:
        result: The counts of the task.
        owner: The query that the dispatch belongs to; empty for a batch.
        dispatch_id: For a stream, where another writer commits: the dispatch.
    """

    result: PartitionResult
    owner: str = ""
    dispatch_id: str = ""


@dataclass(frozen=True)
class WritePlan:
    """A planned write: all that a task needs.

    Attributes:
        options: As they were given.
        target: The server and namespace.
        columns: Those that are read; of these only the rows need to travel.
        commands: The wire names of its commands, sorted; empty with a mapper.
        made_of: The columns that commands are made of, with their types; empty with a mapper.
        keys: The columns that feed entity ids; empty with a mapper.
        watched: Whether the driver reads the tasks' warnings about stalls.
    """

    options: WriteOptions
    target: Target
    columns: tuple[str, ...]
    commands: str = ""
    made_of: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    watched: bool = False

    @classmethod
    def build(cls, options: WriteOptions, schema: StructType) -> WritePlan:
        """Check all that can be checked before a task runs: options, columns, commands, the server.

        Raises:
            InvalidSettings: A check failed; the message says which.
            TransportUnavailable: The server cannot be reached.
        """
        target = Target.resolve(options.url, options.namespace)
        connection = connection_to(target, PLANNING_PATIENCE)
        mappings, types = planned(options, schema, connection.describe)
        if options.mapper is not None:
            return cls(options, target, tuple(types.names))
        made_of = tuple(f"{name} {types.field(name).type}" for name in sorted(types.names))
        keys = {mapping.columns[mapping.spec.key] for mapping in mappings.values() if mapping.spec.key is not None}
        return cls(options, target, tuple(types.names), ",".join(sorted(mappings)), made_of, tuple(sorted(keys)))

    @property
    def opening(self) -> Opening:
        """The terms of the dispatch, unless it belongs to a query."""
        options = self.options
        what = options.command if not options.command.startswith("pickle:") else "(a class of the driver)"
        owner = REPAIR_OF + options.repairs if options.repairs else ""
        return Opening(
            what=what, owner=owner, remember_ms=options.remember_ms, keep_ms=options.outcomes_ms, keep_max=options.max_outcomes
        )

    def fingerprint(self, results: Sequence[PartitionResult]) -> Fingerprint:
        """Return the fingerprint of the rows that tasks have read."""
        rows, digest = sum(each.rows for each in results), sum(each.digest for each in results)
        return Fingerprint(rows, digest, self.commands, self.made_of)

    def run(self, batches: Iterator[pa.RecordBatch], version: Version, owner: str = "", run: str = "") -> PartitionResult:
        """Send the rows of one partition.

        Args:
            batches: The rows.
            version: What is loaded.
            owner: The query that the dispatch belongs to.
            run: Names one run of the job, see `PartitionDispatcher`.
        """
        options = self.options
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else -1
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:  # nothing is opened for it
            return PartitionResult(partition)
        dispatcher = PartitionDispatcher(
            self.target,
            dispatch_id=version.dispatch_id,
            version=version.number,
            opening=replace(self.opening, owner=owner or self.opening.owner),
            batch_size=options.batch_size,
            max_backlog=options.max_backlog,
            max_wait=options.max_wait,
            on_invalid=options.on_invalid,
            max_rejects=options.max_rejects,
            sequenced=options.sequence_column is not None,
            partition=partition,
            run=run,
            keep_order=options.keep_order,
            watched=self.watched,
        )
        with dispatcher, SendAhead(dispatcher) as sending:
            encoder = self.encoder(dispatcher)
            for batch in chain([first], batches):
                dispatcher.result.digest += ids_digest(
                    batch.column(options.command_id_column).drop_null().cast(pa.binary()).to_pylist()
                )
                if dispatcher.result.done:  # committed before: there is nothing to add, only rows to count
                    sending.skip(batch.num_rows)
                    continue
                with gc_paused():
                    rows = encoder.encode(batch)
                sending.send(rows)
        return dispatcher.result

    def encoder(self, dispatcher: PartitionDispatcher) -> BatchEncoder:
        """Return the encoder for the rows of a partition."""
        options = self.options
        mapper = mapper_of(options.mapper) if options.mapper is not None else None
        mappings = {} if mapper is not None else command_mappings(options, self.columns, dispatcher.connection.describe)
        return BatchEncoder(mappings, dispatcher, options, mapper)


@dataclass(frozen=True)
class PartitionTask:
    """Sends one partition, as a function for `mapInArrow`: Spark pickles it to the tasks and collects its rows."""

    plan: WritePlan
    version: Version
    token: str = field(default_factory=lambda: secrets.token_hex(4))

    RESULT: ClassVar[str] = "result string, owner string"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row: the result of the partition."""
        done = self.run(batches)
        yield pa.RecordBatch.from_pydict({"result": [json.dumps(asdict(done.result))], "owner": [done.owner]})

    def run(self, batches: Iterator[pa.RecordBatch]) -> PartitionDone:
        """Send the rows. If the options have a version, they are a micro-batch (`foreachBatch`), and the dispatch belongs to the query."""
        query = _task_property(_QUERY_ID) if self.plan.options.version is not None else None
        with without_spark_frames():
            return PartitionDone(self.plan.run(batches, self.version, query or "", self.token), query or "")

    def commit(self, done: Sequence[PartitionDone], seconds: float) -> bool:
        """Close the version for good, so that later writes add nothing; warn if entities had rows in several tasks.

        Spark may run no task for a micro-batch without rows, and then its query is unknown.

        Returns:
            Whether there was anything to close, as `commit_dispatch` says.
        """
        plan, version, results = self.plan, self.version, [each.result for each in done]
        opening = replace(plan.opening, owner=(done[0].owner if done else "") or plan.opening.owner)
        fingerprint = plan.fingerprint(results)
        if plan.options.version is not None or opening.owner:
            fingerprint = replace(fingerprint, commands="", columns=())  # a stream's program may change between crash and replay
        known = None if plan.options.repairs else fingerprint  # the rows of a repair are fewer when it is repeated
        if not commit_dispatch(plan.target, version, opening, results, seconds, fingerprint=known):
            return False
        shared = sum(result.shared for result in results)
        if shared and plan.options.sequence_column is None:
            _log.warning(
                "dispatch %r: entities had rows in several tasks (%s times), which wrote at the same time: their order was left to chance. Arrange "
                "the rows with command_bus.spark.in_order(…) before the write, or name a sequenceColumn; keepOrder = true makes this an "
                "error, keepOrder = false says that order is of no importance",
                version.dispatch_id, f"{shared:,}",
            )  # fmt: skip
        return True

    def dispatch(self, rows: DataFrame) -> bool:
        """Send all partitions of a DataFrame and commit; returns as `commit` does."""
        began = time.time()
        rows_of_tasks = map_in_arrow(rows, self, self.RESULT).collect()
        return self.commit(
            [PartitionDone(PartitionResult(**json.loads(row.result)), row.owner) for row in rows_of_tasks], time.time() - began
        )


class BatchWriter(DataSourceArrowWriter):
    """`df.write`: one dispatch with the version 0."""

    def __init__(self, plan: WritePlan) -> None:
        if plan.options.dispatch_id is None:
            raise InvalidSettings("option dispatchId is missing: name this dispatch, so that running it again adds nothing twice")
        self._task = PartitionTask(plan, Version(plan.options.dispatch_id, plan.options.version or 0))
        self._began = time.time()
        connection_to(plan.target).warn_without_workers()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send one partition."""
        return self._task.run(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Close the dispatch for good."""
        done = [message for message in messages if isinstance(message, PartitionDone)]
        with without_spark_frames():
            self._task.commit(done, time.time() - self._began)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave the dispatch open: a repeated write completes it."""
        _log.warning(
            "dispatch %r failed and stays open: run it again under the same id to complete it", self._task.version.dispatch_id
        )


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: one dispatch with a version per micro-batch; a replayed micro-batch adds nothing."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._token = secrets.token_hex(4)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send one partition of a micro-batch."""
        query, batch = _task_property(_QUERY_ID), _task_property(_BATCH_ID)
        if query is None or batch is None:
            raise InvalidSettings("this writer runs in streaming queries: Spark did not give the query and the batch")
        name = self._plan.options.dispatch_id or f"stream-{query}"
        version = Version(name, int(batch))
        with without_spark_frames():
            return PartitionDone(self._plan.run(iterator, version, query, self._token), query, name)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Close the micro-batch for good."""
        done = [message for message in messages if isinstance(message, PartitionDone)]
        if done:
            with without_spark_frames():
                seconds = max(each.result.seconds for each in done)
                PartitionTask(self._plan, Version(done[0].dispatch_id, batchId)).commit(done, seconds)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Leave the micro-batch open: the query replays it."""
        _log.warning("micro-batch %d failed and stays open: the query replays it when it is started again", batchId)


def commit_dispatch(
    target: Target,
    version: Version,
    opening: Opening,
    results: Sequence[PartitionResult],
    seconds: float = 0.0,
    *,
    fingerprint: Fingerprint | None = None,
) -> bool:
    """Close a version of a dispatch and store its summary.

    Args:
        target: The server and namespace.
        version: What was loaded.
        opening: As the tasks gave it.
        results: What its tasks returned.
        seconds: The time it took.
        fingerprint: What tells its rows from others: a version that is committed already must have been made of the same.

    Returns:
        Whether there was anything to close: a version without rows stays as it is, so that rows which come later can have it.

    Raises:
        DispatchConflict: The version belongs to another writer, or was committed with other rows.
        TransportUnavailable: The server cannot be reached.
    """
    connection = connection_to(target)
    dispatches = connection.transport.bulk
    before, load = connection.facts(version.dispatch_id) or DispatchFacts(""), opening.owner.partition(REPAIR_OF)[2]
    if (
        not any(result.rows for result in results)
        and before.version < version.number
        and not (load and before.opened is not None)
    ):
        return False
    done = connection.retry_while_full(lambda: dispatches.open(version, opening), _COMMIT_WAIT) == "done"
    if fingerprint is not None and (done or any(result.done for result in results)):
        facts = connection.facts(version.dispatch_id)
        known = connection.wait(dispatches.fingerprints(version.dispatch_id))
        if facts is not None and check_same_rows(version, facts, known, fingerprint) is None:
            _log.warning(
                "dispatch %r, version %d was committed before; of what rows is not known", version.dispatch_id, version.number
            )
    if done:
        return True  # a repeated job: the record of the first run stays
    partitions = [{name: value for name, value in asdict(result).items() if name not in _INNER} for result in results]
    for name, reason in ((version.dispatch_id, ACCEPTED_OTHERWISE), (load, REPAIRED)):
        if name and (load or not opening.owner):  # a stream has rejects of all batches, and the ids of one
            mark = partial(dispatches.mark_rejects, name, version.dispatch_id, partial(accepted_since, reason))
            connection.retry_while_full(mark, _COMMIT_WAIT)
    earlier = read_summary(before.summary) or Summary()
    summary = json.dumps(
        {
            "version": version.number,
            "seconds": round(earlier.seconds + seconds, 3),
            "partitions": partitions,
            "conflicts": earlier.conflicts + sum(result.conflicts for result in results),
            "before": asdict(earlier.total),
        }
    )
    rows = "" if fingerprint is None else str(fingerprint)
    connection.retry_while_full(lambda: dispatches.commit(version, summary, opening.remember_ms, rows), _COMMIT_WAIT)
    return True


def _task_property(name: str) -> str | None:
    """Return a property that Spark gives the tasks of a query."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)
