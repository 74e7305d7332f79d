"""`reconcile`: what was dispatched against what became of it, as counts, DataFrames and a page for people.

    ledger = reconcile(report, timeout=600)
    print(ledger)
    ledger.raise_if_wrong()
    ledger.frame("dead_lettered").show()
    ledger.write("out")

It proves that each command took effect once and in order, from what the server wrote in the same step in which a command left its
mailbox. It does not look at what handlers wrote elsewhere: a worker that dies between its write and its report leaves a command that
runs again (`attempt` above 1), which is the handler's to recognise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, overload

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from command_bus.clock import mono
from command_bus.errors import InvalidSettings, NotReconciled
from command_bus.spark.dispatch import typed
from command_bus.spark.reconciliation.dispatch_state import Evidence, await_settled, waiting_commands
from command_bus.spark.reconciliation.figures import figures_of
from command_bus.spark.reconciliation.page import Page, write_page
from command_bus.spark.reconciliation.statuses import column, fates_of, late_of, place_of, weight
from command_bus.spark.reconciliation.verdict import FATES, FLAGS, Tally, Verdict
from command_bus.spark.report import DispatchReport
from command_bus.spark.source import register
from command_bus.spark.target import Target
from command_bus.spark.writing.ordering import Order, names_in, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Reconciliation", "reconcile"]

T = TypeVar("T")

_log = logging.getLogger("command_bus.spark")
_ROWS = ("pending", "forgotten", "missing", "dropped")  # fates that no outcome and no reject tells of


@dataclass(frozen=True)
class Dispatched:
    """What is reconciled: a dispatch, and the rows that it was made of."""

    dispatch_id: str
    target: Target
    commands: DataFrame = field(repr=False)
    entity_column: str | None = None
    order_by: Order | None = None

    def __post_init__(self) -> None:
        for name in ("command_id", self.entity_column, *names_in(self.order_by)):
            if name is not None and name not in self.commands.columns:
                hint = " (see command_bus.spark.command_id)" if name == "command_id" else ""
                raise InvalidSettings(f"the rows have no column {name!r}{hint}; there are {', '.join(self.commands.columns)}")

    def view(self, name: str) -> DataFrame:
        """A view of the data source, as it is now."""
        register(self.commands.sparkSession)
        reader = self.commands.sparkSession.read.format("command_bus")
        options = {"url": self.target.url, "namespace": self.target.namespace, "view": name, "dispatchId": self.dispatch_id}
        return reader.options(**options).load()


@dataclass(frozen=True)
class Reconciliation:
    """What became of each command of a dispatch, at one moment. Spark holds it as long as this object lives.

    Attributes:
        dispatched: What was reconciled.
        verdict: Counts and notes.
        before: What was known of the dispatch when it began.
        fates: One row per command id: `fate`, `duplicated`, and numbers that tell when it ran.
        late: The `command_id` of what is out of order, and `why`.
        seconds: That it took.
    """

    dispatched: Dispatched
    verdict: Verdict
    before: Evidence = field(repr=False)
    fates: DataFrame = field(repr=False)
    late: DataFrame = field(repr=False)
    seconds: float = 0.0

    @property
    def counts(self) -> dict[str, int]:
        """Commands (distinct ids) by fate, and how many are `duplicated` or `out_of_order` besides."""
        return dict(self.verdict.counts)

    @property
    def notes(self) -> list[str]:
        """What must be known besides the counts."""
        return list(self.verdict.notes)

    @property
    def ok(self) -> bool:
        """Whether nothing is missing, twice or out of order; some may be pending (see `settled`)."""
        return self.verdict.ok

    @property
    def settled(self) -> bool:
        """Whether nothing is pending."""
        return self.verdict.settled

    def __str__(self) -> str:
        counts = self.verdict.counts
        shown = [name for name in FATES if counts[name] or name in ("completed", "pending", "missing")] + list(FLAGS)
        width = max(len(f"{count:,}") for count in counts.values())
        lines = [f"dispatch {self.dispatched.dispatch_id!r}, {self.verdict.total:,} commands; {self.verdict}"]
        lines += [f"  {name:<13} {counts[name]:>{width},}" for name in shown]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])

    def raise_if_wrong(self) -> None:
        """Do nothing if it is `ok`.

        Raises:
            NotReconciled: It is not; the message is `str(self)`.
        """
        if not self.ok:
            raise NotReconciled(str(self), counts=self.counts)

    def frame(self, name: str) -> DataFrame:
        """The commands with this fate, or that are `duplicated` or `out_of_order`: what is known of each.

        Texts (command, entity, errors) are looked up when Spark reads the frame: in the outcomes, rejects or rows as they are then.

        Args:
            name: A key of `counts`.

        Raises:
            InvalidSettings: It is none.
        """
        if name not in self.verdict.counts:
            raise InvalidSettings(f"there is no {name!r}; there are {', '.join(self.verdict.counts)}")
        shown = F.when(F.col("fate") == "untraced", self.verdict.untraced_as).otherwise(F.col("fate"))
        times = (F.timestamp_millis(f"{when}_ms").alias(f"{when}_at") for when in ("accepted", "started", "finished"))
        base = self.fates.withColumn("fate", shown)
        if name == "out_of_order":
            base = base.join(self.late, "command_id")
        else:
            base = base.where("duplicated" if name == "duplicated" else F.col("fate") == name)
        base = base.withColumn("_copy", F.explode(F.array_repeat(F.lit(1), weight().cast("int"))))
        extra = ["why"] if name == "out_of_order" else []
        facts = base.select("command_id", "fate", *extra, "order_by", "outcomes", "attempt", *times, "place")
        told = self._told(name)
        same = F.col("command_id").eqNullSafe(F.col("_id"))
        if "_place" in told.columns:
            same = same & (F.col("place") == F.col("_place"))
        return facts.join(told, same, "left").drop("_id", "place", "_place")

    def write(self, folder: str | Path) -> Path:
        """Write one page with verdict, counts and pictures, `reconciliation-<dispatch id>.html`, that needs nothing beside it."""
        view = self.dispatched.view
        figures = _plainly(lambda: figures_of(self.fates, view("outcomes"), view("rejects")))
        place = self.dispatched.target.label
        page = Page(self.before.facts, self.verdict, figures, place, self.before.now_ms, self.seconds)
        return write_page(page, Path(folder))

    def _told(self, name: str) -> DataFrame:
        """What texts there are of commands with this fate, by `_id`, and by `_place` where a command may have several."""
        if name in _ROWS:
            entity = self.dispatched.entity_column
            texts = [] if entity is None else [column(entity).cast("string").alias("entity")]
            rows = self.dispatched.commands.select(F.col("command_id").cast("string").alias("_id"), *texts)
            return rows.dropDuplicates(["_id"])
        if name == "quarantined":
            rejects = self.dispatched.view("rejects").where("reason <> 'conflict'").dropDuplicates(["command_id"])
            reasons = (F.col("reason").alias("error_type"), F.col("error").alias("error_message"))
            return rejects.select(F.col("command_id").alias("_id"), "command", "entity", *reasons)
        texts = [F.col(name) for name in ("command", "entity_type", "entity", "worker", "error_type", "error_message")]
        places = place_of(F.col("entry")).alias("_place")
        outcomes = self.dispatched.view("outcomes").select(F.col("command_id").alias("_id"), places, *texts)
        return outcomes.dropDuplicates(["_id", "_place"])


@overload
def reconcile(run: DispatchReport, *, timeout: float | None = None) -> Reconciliation: ...


@overload
def reconcile(
    *,
    dispatch_id: str,
    commands: DataFrame,
    entity_column: str | None = None,
    order_by: Order | None = None,
    url: str | None = None,
    namespace: str | None = None,
    timeout: float | None = None,
) -> Reconciliation: ...


def reconcile(
    run: DispatchReport | None = None,
    *,
    dispatch_id: str | None = None,
    commands: DataFrame | None = None,
    entity_column: str | None = None,
    order_by: Order | None = None,
    url: str | None = None,
    namespace: str | None = None,
    timeout: float | None = None,
) -> Reconciliation:
    """Join what was dispatched with what became of it.

    Mailboxes are looked into first, then the outcomes are read: a command goes from one to the other in one step, so one that is in
    neither is missing, also while workers work. It is read-only and may be repeated.

    Args:
        run: What `dispatch_dataframe` gave; or the following three.
        dispatch_id: The dispatch.
        commands: The rows that were dispatched, with their `command_id`.
        entity_column: The column with entity ids, to be shown.
        order_by: What orders an entity's rows, as for `dispatch_dataframe`; None leaves order to the order of acceptance.
        url: The server; default `COMMAND_BUS_URL`, `REDIS_URL`, the development server.
        namespace: Prefix of all keys; default `COMMAND_BUS_NAMESPACE`.
        timeout: Seconds to wait at most until nothing is pending; None tells how it stands now.

    Raises:
        InvalidSettings: The dispatch is unknown or keeps no outcomes, or the rows have no such column.
        TransportUnavailable: The server cannot be reached.
    """
    dispatched = _dispatched(run, dispatch_id, commands, entity_column, order_by, url, namespace)
    deadline = None if timeout is None else mono() + timeout
    aim: int | None = None
    while True:
        before = Evidence.read(dispatched.target, dispatched.dispatch_id)
        if deadline is not None:
            await_settled(dispatched.target, dispatched.dispatch_id, before.facts.added if aim is None else aim, deadline)
            before = Evidence.read(dispatched.target, dispatched.dispatch_id)
        ledger, outcomes = _plainly(partial(_examined, dispatched, before))
        if ledger.settled or deadline is None or mono() >= deadline:
            return ledger
        pending = ledger.counts["pending"]
        aim = outcomes + before.trimmed + pending
        _log.info("dispatch %r: %s pending, waiting on", dispatched.dispatch_id, f"{pending:,}")


def _dispatched(
    run: DispatchReport | None,
    dispatch_id: str | None,
    commands: DataFrame | None,
    entity_column: str | None,
    order_by: Order | None,
    url: str | None,
    namespace: str | None,
) -> Dispatched:
    if run is not None:
        if any(given is not None for given in (dispatch_id, commands, entity_column, order_by, url, namespace)):
            raise InvalidSettings("reconcile(report) knows all from its report: give no more than a timeout beside it")
        return Dispatched(run.dispatch_id, run.target, run.commands, run.entity_column, run.order_by)
    if dispatch_id is None or commands is None:
        raise InvalidSettings("reconcile needs a report, or dispatch_id=… and commands=… (the rows with their command_id)")
    return Dispatched(dispatch_id, Target.resolve(url, namespace), commands, entity_column, order_by)


def _examined(dispatched: Dispatched, before: Evidence) -> tuple[Reconciliation, int]:
    """The reconciliation as things stand, and how many outcomes there were."""
    began = mono()
    spark = dispatched.commands.sparkSession
    waiting = waiting_commands(spark, dispatched.target, dispatched.dispatch_id, before.now_ms)
    outcomes = dispatched.view("outcomes")  # planned from here on: after the look into the mailboxes
    rejects = dispatched.view("rejects")
    commands, place = numbered(dispatched.commands, dispatched.entity_column, dispatched.order_by)
    fates = fates_of(commands, outcomes, rejects, waiting, order_by=place, looked_ms=before.now_ms).localCheckpoint(eager=True)
    late = late_of(fates).localCheckpoint(eager=True)
    tally = _tally(fates, late.count())
    after = Evidence.read(dispatched.target, dispatched.dispatch_id)
    verdict = Verdict.of(tally, before, after)
    return Reconciliation(dispatched, verdict, before, fates, late, mono() - began), tally.outcomes


def _tally(fates: DataFrame, out_of_order: int) -> Tally:
    named = F.col("command_id").isNotNull()
    rows = (
        fates.groupBy("fate")
        .agg(
            F.sum(weight()).alias("commands"),
            F.count_if("duplicated").alias("duplicated"),
            F.sum("conflicts").alias("conflicts"),
            F.count_if(named & ((F.col("outcomes") > 0) | F.col("waits"))).alias("traced"),
            F.sum("outcomes").alias("outcomes"),
            F.coalesce(F.sum(F.when(~named, F.col("outcomes"))), F.lit(0)).alias("unreadable"),
        )
        .collect()
    )
    totals = {name: sum(row[name] for row in rows) for name in ("duplicated", "conflicts", "traced", "outcomes", "unreadable")}
    return Tally({row["fate"]: row["commands"] for row in rows}, out_of_order=out_of_order, **totals)


def _plainly(work: Callable[[], T]) -> T:
    """Its result; what Spark fails with as a short error of ours."""
    try:
        return work()
    except PySparkException as error:
        raise typed(error) from None
