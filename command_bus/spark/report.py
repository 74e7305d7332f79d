"""`DispatchReport`: the result of a dispatch, as counts and as DataFrames.

It counts three things: rows that were read, commands (each has an id of its own), and distinct rejects. Each is counted over the whole
dispatch: over all micro-batches of a stream, as its rejects and outcomes are those of all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast, get_args

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from command_bus.errors import InvalidSettings
from command_bus.export.views import View
from command_bus.spark.quoting import entity_text
from command_bus.spark.reading.views import schema_of
from command_bus.spark.target import PLANNING_PATIENCE, Target, connection_to
from command_bus.spark.writing.ordering import Order
from command_bus.spark.writing.task_results import PartitionResult, Summary, read_summary
from command_bus.transport.ports.bulk import DispatchFacts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ID = "command_id"


@dataclass(frozen=True)
class RepairCounts:
    """The counts of a repair over all of its runs, as command ids: `rejected` is the sum of the other three.

    Attributes:
        dispatch_id: The load that it repairs.
        rejected: Those that the load rejected and that may be valid once they are mended.
        accepted: Those that are valid now, and were sent.
        still_rejected: Those that are rejected still.
        absent: Those that none of the given rows has: the row is gone, or a column of its key was mended, which makes it another row.
    """

    dispatch_id: str
    rejected: int
    accepted: int
    still_rejected: int
    absent: int

    def __str__(self) -> str:
        return (
            f"of {self.rejected:,} ids that {self.dispatch_id!r} rejected, {self.accepted:,} accepted, "
            f"{self.still_rejected:,} still rejected, {self.absent:,} in none of the rows"
        )


@dataclass(frozen=True)
class DispatchReport:
    """The result of a dispatch. Its figures count over all micro-batches that are committed, if it has several; `partitions` alone does not.

    Commands and `distinct_rejects` count as they come, also while a dispatch is open; rows, entities and times count at the commit.

    Attributes:
        dispatch_id: Its name.
        state: `committed`; `already committed` before this call, which then added nothing; `open` while it is loaded, or after loading failed;
            `empty` if there were no rows, which leaves nothing behind; `dry run`.
        rows: Those that were read.
        added: Commands that this dispatch has put into their mailboxes, over all attempts.
        duplicates: Rows that repeat another row of the dispatch, id and content.
        folded: Rows that were dropped, because a command stood for their unique key (`Unique`), over all attempts.
        replaced: Commands of `added` that took the place of another one of their unique key, over all attempts.
        rejected: Rows that were set aside, each counted: invalid ones and `conflicts`.
        conflicts: Rejected rows whose command id was accepted with another payload: an earlier run sent the row, and one of
            its columns changes with every run (`current_timestamp()`); or another row has the same key.
        distinct_rejects: The number of rows in `rejects`, where equal rows are one.
        resent: Rows that a task sent after an earlier attempt had sent them.
        entities: Distinct entities of each micro-batch, added up: one that comes again in a later one counts again, and so does one that had
            rows in two tasks.
        waited: Seconds that tasks waited for limits, added up.
        seconds: From start to commit, added up over micro-batches.
        partitions: The results of the tasks of the last commit alone, each with its counts.
        committed_at: The time of the last commit, by the server's clock; None if there was none.
        commands: The rows that the report was asked for, with their `command_id`; for a micro-batch, its own.
        repair: The counts of the repair of another load; None if this is none.
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
    order_by: Order | None = field(default=None, repr=False)
    entity_column: str | None = field(default=None, repr=False)
    distinct_rejects: int = 0
    conflicts: int = 0
    folded: int = 0
    replaced: int = 0
    committed_at: datetime | None = None
    dry_run_rejects: DataFrame | None = field(default=None, repr=False)
    repair: RepairCounts | None = None

    def __str__(self) -> str:
        rate = f", {self.rows / self.seconds:,.0f} rows/s" if self.seconds > 0.001 else ""
        several = sum(each.rows for each in self.partitions) < self.rows
        of_each, of_last = (", counted batch by batch", " in the last batch") if several else ("", "")
        different = f" ({self.distinct_rejects:,} different)" if 0 < self.distinct_rejects < self.rejected else ""
        named = (
            (self.duplicates, "rows that repeat others"),
            (self.resent, "rows sent again"),
            (self.folded, "rows folded"),
            (self.replaced, "commands replaced"),
            (self.rejected, f"rows rejected{different}"),
        )
        rest = "".join(f", {count:,} {name}" for count, name in named if count)
        return (
            f"dispatch {self.dispatch_id!r} {self._how()}: {self.rows:,} rows, {self.added:,} commands for {self.entities:,} entities{of_each}"
            f"{rest}{self._conflicting()}; {len(self.partitions)} partitions{of_last}, {self.seconds:.1f} s{rate}"
            + (f", waited {self.waited:.1f} s in tasks" if self.waited >= 0.1 else "")
            + (f"; {self.repair}" if self.repair is not None else "")
        )

    def _conflicting(self) -> str:
        return f" ({self.conflicts:,} of them because their command ids are in with other payloads)" if self.conflicts else ""

    def _how(self) -> str:
        if self.state == "already committed" and self.committed_at is not None:
            return f"already committed at {self.committed_at:%Y-%m-%d %H:%M:%S UTC}, this time nothing was added; what it was"
        return f"{self.state}, nothing was sent; what would be" if self.state == "dry run" else self.state

    def view(self, name: str) -> DataFrame:
        """Load a view of the data source for this dispatch: `outcomes`, `rejects`, `deadLetters`."""
        if self.dry_run_rejects is not None:
            if name != "rejects":
                raise InvalidSettings(f"a dry run has no {name}: it sent nothing. It has rejects()")
            return self.dry_run_rejects
        if self.state == "empty" and name in get_args(View):  # it left nothing to be read
            return self.commands.sparkSession.createDataFrame([], schema_of(cast("View", name)))
        frame: DataFrame = self._read(name).option("dispatchId", self.dispatch_id).load()
        return frame

    def rejects(self) -> DataFrame:
        """Load the rows that are no commands, with the reasons."""
        return self.view("rejects")

    def outcomes(self) -> DataFrame:
        """Load the outcomes of the commands, if the dispatch keeps them."""
        return self.view("outcomes")

    def dead_letters(self) -> DataFrame:
        """Load the dead letters of this dispatch."""
        return self.view("deadLetters")

    def pending(self) -> DataFrame:
        """Load the commands that have no outcome yet, with the state of their entity as the reason (`waiting`, `paused`, `parked` …).

        Raises:
            InvalidSettings: The rows have a column `reason` of their own, or the text of its entity ids depends on the session.
        """
        if any(name.casefold() == "reason" for name in self.commands.columns):
            raise InvalidSettings(
                "the rows have a column 'reason' of their own: rename it, and load them as "
                f"dispatch_report(rows, {self.dispatch_id!r}, entity=…).pending()"
            )
        settled = self.outcomes().select(_ID).union(self.rejects().where("command_id is not null").select(_ID)).distinct()
        rows = self.commands.join(settled, _ID, "left_anti")
        if self.entity_column is None:
            return rows.withColumn("reason", F.lit("waiting"))
        owner = entity_text(rows, self.entity_column)
        states = self._read("entities").load().select(F.col("entity").alias("owner"), F.col("state").alias("reason"))
        found = rows.select(F.struct("*").alias("row"), owner.alias("owner")).join(states, "owner", "left")
        return found.select("row.*", F.coalesce("reason", F.lit("settled meanwhile, or outcome not kept")).alias("reason"))

    def _read(self, view: str) -> Any:
        reader = self.commands.sparkSession.read.format("command_bus")
        return reader.options(url=self.target.url, namespace=self.target.namespace, view=view)


def dispatch_report(
    commands: DataFrame,
    dispatch_id: str,
    *,
    entity: str | None = None,
    order_by: Order | None = None,
    url: str | None = None,
    namespace: str | None = None,
) -> DispatchReport:
    """Return the report of a dispatch that was made without `dispatch_dataframe`: by `df.write`, bare dispatchers, or another program.

    Args:
        commands: The dispatched rows, with their `command_id`.
        dispatch_id: The dispatch.
        entity: The column of entity ids.
        order_by: The columns that order an entity's rows, as for `dispatch_dataframe`.
        url: The server; default as for `dispatch_dataframe`.
        namespace: Prefix of all keys; default as for `dispatch_dataframe`.

    Raises:
        InvalidSettings: The dispatch is not known (any more).
        TransportUnavailable: The server cannot be reached.
    """
    target = Target.resolve(url, namespace)
    connection = connection_to(target, PLANNING_PATIENCE)
    facts = connection.facts(dispatch_id)
    if facts is None:
        raise InvalidSettings(
            f"there is no dispatch {dispatch_id!r} at {target.label}: it had no rows, was never opened, is forgotten, or the server was flushed"
        )
    return build_report(commands, target, facts, facts.state, order_by=order_by, entity=entity)


def build_report(
    rows: DataFrame,
    target: Target,
    facts: DispatchFacts,
    state: str,
    summary: Summary | None = None,
    *,
    order_by: Order | None,
    entity: str | None,
) -> DispatchReport:
    """Return the report of a dispatch, from its record; the summary is that of the record, unless it is given."""
    summary = summary or read_summary(facts.summary) or Summary()
    total = summary.total
    rejected = total.rejected or facts.rejected
    duplicates = max(total.rows - facts.added - facts.folded - rejected, 0)
    return DispatchReport(
        dispatch_id=facts.dispatch_id,
        state=state,
        rows=total.rows,
        added=facts.added,
        duplicates=duplicates,
        rejected=rejected,
        resent=max(total.duplicates - duplicates, 0),
        entities=total.entities,
        waited=total.waited,
        seconds=summary.seconds,
        partitions=[*summary.partitions],
        commands=rows,
        target=target,
        order_by=order_by,
        entity_column=entity,
        distinct_rejects=facts.rejected,
        conflicts=summary.conflicts,
        folded=facts.folded,
        replaced=facts.replaced,
        committed_at=datetime.fromtimestamp(facts.done_ms / 1000, UTC) if facts.done_ms else None,
    )
