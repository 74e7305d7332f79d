"""`dispatch_dataframe`: a DataFrame into commands, in order, once; and the report of it.

Rows of one entity go to one partition and are sorted there: `repartition(entity).sortWithinPartitions(order)` is the plan that keeps
order without sorting the world. A global `orderBy` does not: its range partitions are written at the same time.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from command_bus import errors
from command_bus.errors import CommandBusError, DispatchStalled, InvalidSettings
from command_bus.messages import Message
from command_bus.spark.dispatcher import PartitionResult
from command_bus.spark.ids import NAMESPACE, command_id
from command_bus.spark.options import OnInvalid, WriteOptions, duration_ms
from command_bus.spark.routes import named_command, pickled, routes_of
from command_bus.spark.source import register
from command_bus.spark.target import PLANNING, Target, link_to
from command_bus.spark.writer import PartitionTask, Writing
from command_bus.transport.dispatches import DispatchFacts, Version

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["DispatchReport", "dispatch_batch_writer", "dispatch_dataframe", "dispatch_report", "typed"]

CommandName = type[Message[Any]] | str
_ID = "command_id"
_OURS = re.compile(r"command_bus\.errors\.(\w+): (.+?)(?:\n|$)")
_ACCEPTED = re.compile(r"([\d,]+) rows of it are in")
_WRAPPED = re.compile(r"(?:ValueError|RuntimeError|Exception): (.+?)(?:\n|$)")


@dataclass(frozen=True)
class DispatchReport:
    """What became of a dispatch.

    Attributes:
        dispatch_id: Its name.
        state: `committed`; `already committed` before this call, which then added nothing; `open` while it is loaded, or if that failed.
        rows: That were read.
        added: Commands that are in their mailboxes because of this dispatch, whichever attempt put them there.
        duplicates: Rows that repeat another row of the dispatch, id and content.
        rejected: Rows that are no commands; see `rejects`.
        resent: Rows that a task sent although an earlier attempt had.
        entities: Distinct ones.
        waited: Seconds that tasks waited for limits, added up.
        seconds: From start to commit.
        partitions: What each task did.
        commands: The rows that were dispatched, with their `command_id`.
    """

    dispatch_id: str
    state: str
    rows: int
    added: int
    duplicates: int
    rejected: int
    resent: int
    entities: int
    waited: float
    seconds: float
    partitions: list[PartitionResult]
    commands: DataFrame = field(repr=False)
    target: Target = field(repr=False)
    order_by: str | None = field(default=None, repr=False)
    entity_column: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        rate = f", {self.rows / self.seconds:,.0f} rows/s" if self.seconds > 0.001 else ""
        rest = [
            f"{count:,} {name}"
            for name, count in (("duplicates", self.duplicates), ("rejected", self.rejected), ("sent again", self.resent))
            if count
        ]
        return (
            f"dispatch {self.dispatch_id!r} {self.state}: {self.added:,} commands for {self.entities:,} entities"
            f"{''.join(f', {part}' for part in rest)}; {len(self.partitions)} partitions, {self.seconds:.1f} s{rate}"
            + (f", waited {self.waited:.1f} s in tasks" if self.waited >= 0.1 else "")
        )

    def view(self, name: str) -> DataFrame:
        """A view of the data source, of this dispatch: `outcomes`, `rejects`, `deadLetters`."""
        frame: DataFrame = self._read(name).option("dispatchId", self.dispatch_id).load()
        return frame

    def rejects(self) -> DataFrame:
        """The rows that are no commands, with the reasons."""
        return self.view("rejects")

    def outcomes(self) -> DataFrame:
        """What became of the commands; of a dispatch that keeps outcomes."""
        return self.view("outcomes")

    def dead_letters(self) -> DataFrame:
        """Commands of this dispatch that were given up."""
        return self.view("deadLetters")

    def pending(self) -> DataFrame:
        """The commands that have no outcome yet, with the state of their entity as the reason (`waiting`, `paused`, `parked` …)."""
        settled = self.outcomes().select(_ID).union(self.rejects().where("command_id is not null").select(_ID)).distinct()
        rows = self.commands.join(settled, _ID, "left_anti")
        if self.entity_column is None:
            return rows.withColumn("reason", F.lit("waiting"))
        states = self._read("entities").load().select(F.col("entity").alias("__entity"), F.col("state").alias("reason"))
        joined = rows.join(states, F.col(self.entity_column).cast("string") == F.col("__entity"), "left")
        return joined.drop("__entity").withColumn("reason", F.coalesce("reason", F.lit("settled meanwhile, or outcome not kept")))

    def _read(self, view: str) -> Any:
        reader = self.commands.sparkSession.read.format("command_bus")
        return reader.options(url=self.target.url, namespace=self.target.namespace, view=view)


def dispatch_dataframe(
    df: DataFrame,
    command: CommandName | Sequence[CommandName] | None,
    *,
    key: str | Column | Sequence[str | Column] | None,
    order_by: str | None,
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
    url: str | None = None,
    namespace: str | None = None,
) -> DispatchReport:
    """Turn each row into one command, in order per entity, and give a report.

    Each row becomes exactly one command in its mailbox, whatever Spark runs again, for as long as the dispatch is remembered: a retried
    task, a speculative twin, and the same call repeated add nothing twice. A call that fails half-way is completed by repeating it.

    Args:
        df: The rows. It may be computed more than once: it should give the same rows each time.
        command: The command class, `"module:Class"`, a wire name that running workers know; or several of these. None with a `mapper`.
        key: Columns that identify a row, of which its command id is made (see `command_id`); None: the column `command_id` is there.
        order_by: The column that orders an entity's rows; None says that their order is of no importance.
        dispatch_id: Names the dispatch.
        command_column: With several commands: the column with the wire name of each row's.
        columns: Which column feeds a field, where the names differ.
        entity: The column of entity ids; by default the one that feeds the command's `EntityId` field.
        mapper: Makes the command of a row (a dict by column) instead, in Python, row by row.
        on_invalid: Rows that are no valid commands are set aside with the reason (`quarantine`), fail the call, or are dropped.
        max_rejects: More of them fail the call; below 1 a share of the rows.
        max_backlog: Commands that may wait in the namespace before tasks wait.
        max_wait: Seconds without any progress after which a task gives up.
        partitions: Tasks that write; by default Spark decides.
        batch_size: Commands per request.
        outcomes: How long outcomes are kept, as `timedelta` or `"7 days"`; None keeps none.
        remember_for: How long the dispatch is remembered after its last touch.
        id_namespace: For `command_id`.
        version: Of the dispatch, for `foreachBatch`: the number of the micro-batch. The dispatch then belongs to the query.
        url: The server; default `COMMAND_BUS_URL`, `REDIS_URL`, the development server.
        namespace: Prefix of all keys; default `COMMAND_BUS_NAMESPACE`.

    Raises:
        InvalidSettings: An argument or a column does not fit.
        DispatchStalled: A limit held a task up for longer than `max_wait`.
        InvalidRows: There are rows that are no commands, where they may not be.
        CommandBusError: Of its subclasses, what else a task failed with.
    """
    began = time.monotonic()
    spark = df.sparkSession
    register(spark)
    target = Target.resolve(url, namespace)
    link = link_to(target, PLANNING)
    rows = df if key is None else df.withColumn(_ID, command_id(*_listed(key), namespace=id_namespace))
    texts = _texts(command, mapper)
    options = WriteOptions(
        command=",".join(texts), command_column=command_column, columns=dict(columns or {}), entity_column=entity
    )
    entity_column = entity or _entity_column(options, rows.columns, link.described, mapped=mapper is not None)
    for column in (order_by, entity_column, command_column):
        if column is not None and column not in rows.columns:
            raise InvalidSettings(f"there is no column {column!r}; there are {', '.join(rows.columns)}")
    before = link.wait(link.transport.dispatches.facts(dispatch_id))
    done = before is not None and before.version >= (version or 0)
    if before is not None and done and version is None:  # a micro-batch goes on, to see that the dispatch is its query's
        return _report(rows, target, before, "already committed", order_by, entity_column)
    given = {
        "url": target.url,
        "namespace": target.namespace,
        "command": ",".join(texts),
        "commandColumn": command_column,
        "entityColumn": entity,
        "columns": ",".join(f"{field_}={column}" for field_, column in (columns or {}).items()),
        "dispatchId": dispatch_id,
        "dispatchVersion": None if version is None else str(version),
        "onInvalid": on_invalid,
        "maxRejects": None if max_rejects is None else str(_limit(max_rejects, rows)),
        "maxBacklog": None if max_backlog is None else str(max_backlog),
        "maxWait": f"{max_wait} s",
        "batchSize": str(batch_size),
        "outcomes": None if outcomes is None else _duration(outcomes, "outcomes"),
        "rememberFor": _duration(remember_for, "remember_for"),
        "mapper": None if mapper is None else pickled(mapper),
    }
    parsed = WriteOptions.parse({name: value for name, value in given.items() if value})
    writing = Writing.plan(parsed, rows.schema).narrowed([name for name in (entity_column, order_by) if name is not None])
    task = PartitionTask(writing, Version(dispatch_id, version or 0))
    try:
        unread = [name for name in rows.columns if name not in writing.columns]
        task.dispatch(_arranged(rows.drop(*unread), entity_column, order_by, partitions))
    except PySparkException as error:
        raise typed(error) from None
    report = dispatch_report(
        rows, dispatch_id, entity=entity_column, order_by=order_by, url=target.url, namespace=target.namespace
    )
    return replace(report, state="already committed") if done else replace(report, seconds=time.monotonic() - began)


def dispatch_report(
    commands: DataFrame,
    dispatch_id: str,
    *,
    entity: str | None = None,
    order_by: str | None = None,
    url: str | None = None,
    namespace: str | None = None,
) -> DispatchReport:
    """The report of a dispatch that was made in another way: by `df.write`, bare dispatchers, or another program.

    Args:
        commands: The rows that were dispatched, with their `command_id`.
        dispatch_id: The dispatch.
        entity: The column of entity ids.
        order_by: The column that orders an entity's rows.
        url: The server; default as for `dispatch_dataframe`.
        namespace: Prefix of all keys; likewise.

    Raises:
        InvalidSettings: The dispatch is not known, or not any more.
        TransportUnavailable: The server cannot be reached.
    """
    target = Target.resolve(url, namespace)
    link = link_to(target, PLANNING)
    facts = link.wait(link.transport.dispatches.facts(dispatch_id))
    if facts is None:
        raise InvalidSettings(
            f"there is no dispatch {dispatch_id!r} at {target.label}: it was never opened, forgotten after rememberFor, or the server was flushed"
        )
    state = "committed" if facts.opened is None and facts.version >= 0 else "open"
    return _report(commands, target, facts, state, order_by, entity)


def dispatch_batch_writer(
    command: CommandName | Sequence[CommandName] | None, *, dispatch_id: str, **arguments: Any
) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch`: each micro-batch is a version of the dispatch, so that a replayed one adds nothing.

        frame.writeStream.foreachBatch(dispatch_batch_writer(Ship, key="order_id", order_by="seq", dispatch_id="orders")).start()

    Args:
        command: As for `dispatch_dataframe`.
        dispatch_id: Belongs to the query's checkpoint: with a new checkpoint, use a new id.
        arguments: As for `dispatch_dataframe`.
    """

    def write(batch: DataFrame, number: int) -> None:
        dispatch_dataframe(batch, command, dispatch_id=dispatch_id, version=number, **arguments)

    return write


def typed(error: PySparkException) -> CommandBusError:
    """The error of ours that Spark wrapped, without the wall around it; or a short one of Spark's."""
    text = str(error)
    found = list(_OURS.finditer(text))
    if found:
        kind, message = getattr(errors, found[-1][1], CommandBusError), found[-1][2].strip()
        accepted = _ACCEPTED.search(message)
        if kind is DispatchStalled and accepted is not None:
            return DispatchStalled(message, accepted=int(accepted[1].replace(",", "")))
        return kind(message) if issubclass(kind, CommandBusError) else CommandBusError(message)
    wrapped = list(_WRAPPED.finditer(text))
    return CommandBusError(f"Spark failed: {wrapped[-1][1] if wrapped else text[:2000]}")


def _listed(key: str | Column | Sequence[str | Column]) -> Sequence[str | Column]:
    return key if isinstance(key, list | tuple) else [key]  # type: ignore[list-item]


def _texts(command: CommandName | Sequence[CommandName] | None, mapper: object) -> list[str]:
    if command is None:
        if mapper is None:
            raise InvalidSettings(
                "give a command: its class, 'module:Class' or a wire name; or a mapper that makes one of each row"
            )
        return []
    listed = [command] if isinstance(command, str | type) else list(command)
    return [named_command(each) for each in listed]


def _entity_column(options: WriteOptions, columns: Sequence[str], described: Any, *, mapped: bool) -> str | None:
    """The column that feeds the entity id of every command."""
    if mapped:
        raise InvalidSettings("with a mapper, say which column holds the entity id: entity=…")
    routes = routes_of(options, columns, described)
    found = {route.columns[route.spec.key] for route in routes.values() if route.spec.key is not None}
    if len(found) > 1:
        raise InvalidSettings(
            f"the commands take their entity ids from several columns ({', '.join(sorted(found))}): name one with entity=…"
        )
    return next(iter(found), None)


def _arranged(rows: DataFrame, entity: str | None, order_by: str | None, partitions: int | None) -> DataFrame:
    """The rows of an entity in one partition, in order."""
    if entity is not None and order_by is not None:
        rows = rows.repartition(entity) if partitions is None else rows.repartition(partitions, entity)
        return rows.sortWithinPartitions(order_by)
    return rows if partitions is None else rows.repartition(partitions)


def _limit(max_rejects: float, rows: DataFrame) -> int:
    return int(max_rejects * rows.count()) if 0 < max_rejects < 1 else int(max_rejects)


def _duration(value: timedelta | str, name: str) -> str:
    if isinstance(value, timedelta):
        return f"{int(value.total_seconds() * 1000)} ms"
    duration_ms(value, name)
    return value


def _report(
    rows: DataFrame, target: Target, facts: DispatchFacts, state: str, order_by: str | None, entity: str | None
) -> DispatchReport:
    summary: dict[str, Any] = json.loads(facts.summary) if facts.summary else {}
    results = [PartitionResult(**result) for result in summary.get("partitions", ())]
    read = sum(result.rows for result in results)
    rejected = facts.rejected or sum(result.rejected for result in results)
    duplicates = max(read - facts.added - rejected, 0)
    return DispatchReport(
        dispatch_id=facts.dispatch_id,
        state=state,
        rows=read,
        added=facts.added,
        duplicates=duplicates,
        rejected=rejected,
        resent=max(sum(result.duplicates for result in results) - duplicates, 0),
        entities=sum(result.entities for result in results),
        waited=sum(result.waited for result in results),
        seconds=summary.get("seconds", 0.0),
        partitions=results,
        commands=rows,
        target=target,
        order_by=order_by,
        entity_column=entity,
    )
