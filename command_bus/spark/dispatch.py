"""`dispatch_dataframe`: sends a DataFrame as commands, in order, once, and reports the result.

Rows of one entity go to one partition and are sorted there (`in_order`), which keeps their order without a global sort. A global
`orderBy` would not keep it: its range partitions are written at the same time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from command_bus.errors import InvalidSettings
from command_bus.messages.message import Message
from command_bus.spark.errors import unwrapped
from command_bus.spark.ids import NAMESPACE, UNSUPPORTED_KEY, typed_command_id, unsupported_key_type
from command_bus.spark.options import OnInvalid, WriteOptions
from command_bus.spark.quoting import check_named_once, column_named
from command_bus.spark.repair import Repair
from command_bus.spark.report import DispatchReport, build_report
from command_bus.spark.source import register
from command_bus.spark.target import PLANNING_PATIENCE, Target, TargetConnection, connection_to
from command_bus.spark.writing.command_lookup import named_command
from command_bus.spark.writing.dry_run import DryRunTask
from command_bus.spark.writing.fingerprint import Fingerprint, check_same_rows, utc_text
from command_bus.spark.writing.interpreters import check_interpreter, pickled
from command_bus.spark.writing.ordering import Order, check_order, in_order, tasks_for_few_rows
from command_bus.spark.writing.progress import ProgressWatch
from command_bus.spark.writing.random_ids import check_repeatable_ids
from command_bus.spark.writing.task_results import Summary
from command_bus.spark.writing.writer import PartitionTask, WritePlan
from command_bus.transport.ports.bulk import DispatchFacts, Version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger("command_bus.spark")
CommandName = type[Message[Any]] | str
_ID = "command_id"


def dispatch_dataframe(
    df: DataFrame,
    command: CommandName | Sequence[CommandName] | None,
    *,
    key: str | Column | Sequence[str | Column] | None,
    order_by: Order | None,
    dispatch_id: str,
    command_column: str | None = None,
    columns: Mapping[str, str] | None = None,
    entity: str | None = None,
    mapper: Callable[[dict[str, Any]], Message[Any]] | None = None,
    on_invalid: OnInvalid = "quarantine",
    max_rejects: float | None = None,
    max_backlog: int | None = None,
    max_wait: float = 300.0,
    partitions: int | None = None,
    batch_size: int = 500,
    outcomes: timedelta | str | None = None,
    remember_for: timedelta | str = "30 days",
    id_namespace: UUID = NAMESPACE,
    version: int | None = None,
    priority: str | None = None,
    dry_run: bool = False,
    repair: bool = False,
    url: str | None = None,
    namespace: str | None = None,
) -> DispatchReport:
    """Send each row as one command, in order per entity, and return a report.

    Each row becomes exactly one command in its mailbox, for as long as the dispatch is remembered: a retried task, a speculative twin or a
    repeated call adds nothing twice. Repeating a call that failed half-way completes it.

    Args:
        df: The rows. Spark may compute them more than once, and they should be the same each time.
        command: Its class, `"module:Class"`, or a wire name that running workers know; or several of these. None with a `mapper`.
        key: The columns that identify a row; its command id is made of them (see `command_id`). None: the column `command_id` exists.
        order_by: The column that orders an entity's rows, or several, the most significant first; a name means ascending, `F.desc(name)`
            descending. None: their order does not matter.
        dispatch_id: Name of the dispatch.
        command_column: The column with each row's wire name, if there are several commands.
        columns: Those that feed fields of other names, by field.
        entity: The column of entity ids; by default the one that feeds the command's `EntityId` field.
        mapper: A Python function that makes the command of a row (a dict by column), instead of `command` and `columns`.
        on_invalid: What to do with rows that are no valid commands: store them with the reason (`quarantine`), `raise`, or `drop` them.
        max_rejects: The number of such rows above which the call fails; below 1, a share of the rows.
        max_backlog: Commands that may wait in the namespace before tasks wait.
        max_wait: Seconds without any progress after which a task gives up.
        partitions: The number of tasks that write. By default one per core, fewer for less than 128 KiB each, and what Spark decides for
            more than 64 MiB each, by its estimate.
        batch_size: Commands per request.
        outcomes: How long outcomes are kept, as a `timedelta` or a text such as `"7 days"`; None keeps none.
        remember_for: How long the dispatch is remembered after its last use.
        id_namespace: The namespace for `command_id`.
        version: Number of the micro-batch, for `foreachBatch`. The dispatch then belongs to the query.
        priority: What all rows have (`"high"`, `"normal"`, `"low"`), or the name of a column with that of each row, where NULL means
            that of the class. None: that of the class. A row that is sent again keeps the priority that it had.
        dry_run: Check and count all rows as the dispatch would, and send nothing. The report has all `rejects()`. What is in the namespace
            is not looked at, but for a dispatch of this id that is committed: it would be answered, and is.
        repair: Send, of the rows, only those that the committed load of this id has rejected and that are valid now. Nothing that was accepted
            is sent again, however often this runs. They go into a dispatch of their own, `<dispatch id>/repair`, which the report is about;
            see `DispatchReport.repair`.
        url: The server; default `COMMAND_BUS_URL`, `REDIS_URL`, the development server.
        namespace: Prefix of all keys; default `COMMAND_BUS_NAMESPACE`.

    Raises:
        InvalidSettings: An argument or a column does not fit, the command ids are random, the load cannot be repaired, or executors run a
            Python without this library.
        DispatchConflict: The id was committed with other rows, belongs to another writer, or an entity has rows in two tasks.
        DispatchStalled: A limit blocked a task for longer than `max_wait`.
        InvalidRows: There are invalid rows, and `on_invalid` is `raise`; or more than `max_rejects`.
        CommandBusError: A task failed with another error of this library, or Spark failed.
    """
    began = time.monotonic()
    _check_id(dispatch_id)
    _check_values(max_rejects, partitions, id_namespace, dry_run, mapper, repair, version)
    target = Target.resolve(url, namespace)
    options = WriteOptions.of(
        url=target.url,
        namespace=target.namespace,
        command=",".join(_command_texts(command, mapper)),
        command_column=command_column,
        entity_column=entity,
        columns={} if columns is None else columns,
        dispatch_id=dispatch_id,
        version=version,
        on_invalid=on_invalid,
        max_rejects=None if max_rejects is None or 0 < max_rejects < 1 else int(max_rejects),
        max_backlog=max_backlog,
        max_wait=max_wait,
        batch_size=batch_size,
        outcomes_ms=0 if outcomes is None else outcomes,
        remember_ms=remember_for,
        mapper=None if mapper is None else pickled(mapper),
        priority=priority or None,
        keep_order=order_by is not None,
    )
    options = replace(options, made_ids=key is not None, repairs=dispatch_id if repair else "")
    with unwrapped():
        check_interpreter(df.sparkSession)
        register(df.sparkSession)
        connection = connection_to(target, PLANNING_PATIENCE)
        rows = df if key is None else _with_ids(df, key, id_namespace)
        mended = Repair.of(connection, target, rows, dispatch_id) if repair else None
        rows = rows if mended is None else mended.candidates
        if max_rejects is not None and 0 < max_rejects < 1:
            options = replace(options, max_rejects=int(max_rejects * rows.count()))
        number = Version(dispatch_id, version or 0) if mended is None else mended.version
        job = _Job.of(rows, options, number, order_by, partitions)
        report = job.run(connection, dry_run=dry_run)
        report = report if mended is None else mended.counted(report)
    return report if report.seconds else replace(report, seconds=time.monotonic() - began)


@dataclass(frozen=True)
class _Job:
    """A planned dispatch."""

    rows: DataFrame
    plan: WritePlan
    version: Version
    entity: str | None
    order_by: Order | None
    partitions: int | None

    @classmethod
    def of(cls, rows: DataFrame, options: WriteOptions, version: Version, order_by: Order | None, partitions: int | None) -> _Job:
        """Check all that can be checked before a task runs."""
        check_order(rows, order_by)
        plan = WritePlan.build(options, rows.schema)
        entity = options.entity_column or _entity_column(plan)
        if entity is None and order_by is not None:
            raise InvalidSettings(f"order_by = {order_by!r}: commands without an entity have no order, say order_by=None")
        check_named_once(rows, plan.columns)
        check_repeatable_ids(rows, _ID)
        return cls(rows, plan, version, entity, order_by, partitions)

    def run(self, connection: TargetConnection, *, dry_run: bool) -> DispatchReport:
        """Send the rows, unless they were sent before, or count them."""
        facts = connection.facts(self.version.dispatch_id)
        batch = self.plan.options.version is None
        done = facts is not None and facts.version >= self.version.number
        if facts is not None and done and batch and not facts.owner:  # an owned one goes on, to check whose it is
            return self._repeated(connection, facts)
        if dry_run:
            return self.dry_run()
        if batch or not self.version.number:
            connection.warn_without_workers()
        task = PartitionTask(replace(self.plan, watched=True), self.version)
        with unwrapped(), ProgressWatch(connection, self.version):
            sent = task.dispatch(self._arranged())
        facts = connection.facts(self.version.dispatch_id)
        if not sent or facts is None:
            return self._report(facts or DispatchFacts(self.version.dispatch_id), "empty" if facts is None else facts.state)
        return self._report(facts, "already committed" if done else "committed")

    def dry_run(self) -> DispatchReport:
        """Count what would be sent. Equal ids are in one task, so that each is counted once, as the server would."""
        name, read = self.version.dispatch_id, [column_named(name) for name in self.plan.columns]
        with unwrapped():
            rows = in_order(self.rows, _ID, self.order_by, partitions=self.partitions).select(*read)
            summary, entities, rejects = DryRunTask(self.plan).run(rows, name)
            facts = DispatchFacts(name, added=summary.total.added, rejected=rejects.count())
        return replace(self._report(facts, "dry run", summary), entities=entities, dry_run_rejects=rejects)

    def _repeated(self, connection: TargetConnection, facts: DispatchFacts) -> DispatchReport:
        """Check that these are the rows of the committed dispatch, and report it."""
        count, digest = F.count("*").alias("rows"), F.sum(F.crc32(F.col(_ID).cast("string"))).alias("digest")
        with unwrapped():
            found = self.rows.agg(count, digest).collect()[0]
        now = Fingerprint(found.rows, found.digest or 0, self.plan.commands, self.plan.made_of)
        known = connection.wait(connection.transport.bulk.fingerprints(facts.dispatch_id))
        check_same_rows(self.version, facts, known, now)
        _log.warning(
            "dispatch %r was sent before, it was committed at %s: nothing is added this time (repair=True sends rejected rows that are mended)",
            facts.dispatch_id,
            utc_text(facts.done_ms),
        )
        return self._report(facts, "already committed")

    def _report(self, facts: DispatchFacts, state: str, summary: Summary | None = None) -> DispatchReport:
        return build_report(self.rows, self.plan.target, facts, state, summary, order_by=self.order_by, entity=self.entity)

    def _arranged(self) -> DataFrame:
        """Return the rows with an entity's rows in one partition, in order, without unused columns."""
        read = [column_named(name) for name in self.plan.columns]
        if self.entity is None or self.order_by is None:
            rows = self.rows.select(*read)
            return rows if self.partitions is None else rows.repartition(self.partitions)
        # order_by may use columns that no command has; Spark drops the other columns before it moves the rows.
        partitions = self.partitions or tasks_for_few_rows(self.rows)
        return in_order(self.rows, self.entity, self.order_by, partitions=partitions).select(*read)


def dispatch_batch_writer(
    command: CommandName | Sequence[CommandName] | None, *, dispatch_id: str, **arguments: Any
) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch`: each micro-batch is a version of the dispatch, so that a replayed one adds nothing.

        frame.writeStream.foreachBatch(dispatch_batch_writer(Ship, key="order_id", order_by="seq", dispatch_id="orders")).start()

    Args:
        command: As for `dispatch_dataframe`.
        dispatch_id: Name of the dispatch. It belongs to the query's checkpoint: with a new checkpoint, use a new id.
        arguments: As for `dispatch_dataframe`.
    """

    def write(batch: DataFrame, number: int) -> None:
        dispatch_dataframe(batch, command, dispatch_id=dispatch_id, version=number, **arguments)

    return write


def _with_ids(df: DataFrame, key: str | Column | Sequence[str | Column], id_namespace: UUID) -> DataFrame:
    """Return the rows with their ids, made of the key's columns.

    Raises:
        InvalidSettings: There is no such column, no id can be made of it, or the rows have a column of our name.
    """
    listed: list[Any] = list(key) if isinstance(key, list | tuple) else [key]
    if not listed or not all(isinstance(each, str | Column) for each in listed):
        raise InvalidSettings(f"key = {key!r}: name the columns that identify a row, or None if there is a column {_ID}")
    taken = next((name for name in df.columns if name.casefold() == _ID), None)
    if taken is not None:
        raise InvalidSettings(
            f"the rows have a column {taken!r} of their own, which is where key=… puts the ids that it makes: rename it, or say key=None if "
            f"it is called {_ID} and holds them"
        )
    return df.withColumn(_ID, typed_command_id([_key_column(df, each) for each in listed], id_namespace))


def _key_column(df: DataFrame, key: str | Column) -> tuple[Column, str]:
    """Return a column of the key, and its type.

    A name is that of a column, whatever characters it has, or else what Spark makes of it (`struct.field`).
    """
    if isinstance(key, str) and (key in df.columns or "." not in key):
        check_named_once(df, [key])
    column = key if isinstance(key, Column) else column_named(key) if key in df.columns else F.col(key)
    kind = df.select(column).schema[0].dataType.simpleString()
    if unsupported_key_type(kind):
        raise InvalidSettings(f"key column {key!r}: {UNSUPPORTED_KEY}")
    return column, kind


def _command_texts(command: CommandName | Sequence[CommandName] | None, mapper: object) -> list[str]:
    if command is None:
        if mapper is None:
            raise InvalidSettings(
                "give a command: its class, 'module:Class' or a wire name; or a mapper that makes one of each row"
            )
        return []
    if not isinstance(command, str | type | Sequence):
        raise InvalidSettings(f"command = {command!r}: give its class, 'module:Class' or a wire name, or a list of these")
    listed = [command] if isinstance(command, str | type) else list(command)
    return [named_command(each) for each in listed]


def _entity_column(plan: WritePlan) -> str | None:
    """Return the column that feeds the entity id of every command."""
    if plan.options.mapper is not None:
        raise InvalidSettings("with a mapper, say which column holds the entity id: entity=…")
    if len(plan.keys) > 1:
        raise InvalidSettings(
            f"the commands take their entity ids from several columns ({', '.join(plan.keys)}): name one with entity=…"
        )
    return next(iter(plan.keys), None)


def _check_values(
    max_rejects: object,
    partitions: object,
    id_namespace: object,
    dry_run: object,
    mapper: object,
    repair: object,
    version: object,
) -> None:
    """Check what is no option of the data source, which checks its own."""
    for name, value, fits, wanted in (
        ("max_rejects", max_rejects, max_rejects is None or _is_limit(max_rejects), "a whole number of rows, or a share of them below 1"),
        ("partitions", partitions, partitions is None or (type(partitions) is int and partitions > 0), "a number of tasks, at least 1"),
        ("id_namespace", id_namespace, isinstance(id_namespace, UUID), "a UUID"),
        ("dry_run", dry_run, type(dry_run) is bool, "True or False"),
        ("repair", repair, type(repair) is bool and not (repair and version is not None), "True or False, and True without a version"),
        ("mapper", mapper, mapper is None or callable(mapper), "a function from a row to a command"),
    ):  # fmt: skip
        if not fits:
            raise InvalidSettings(f"{name} = {value!r}: give {wanted}")


def _is_limit(value: object) -> bool:
    return type(value) is int or (type(value) is float and (0 <= value < 1 or value.is_integer()))


def _check_id(dispatch_id: object) -> None:
    if not isinstance(dispatch_id, str) or not dispatch_id.strip() or dispatch_id.encode(errors="ignore").decode() != dispatch_id:
        raise InvalidSettings(
            f"dispatch_id = {dispatch_id!r}: name this dispatch, by a text such as 'orders-2026-11-21', so that running it again adds nothing twice"
        )
