"""Compares dispatched rows with their outcomes: `reconcile` returns counts, DataFrames and a report page.

    ledger = reconcile(report, timeout=600)
    print(ledger)
    ledger.raise_if_wrong()
    ledger.frame("dead_lettered").show()
    ledger.write("out")

It proves that each command took effect once and in order, from the outcomes that the server writes in the same step in which a command
leaves its mailbox. What handlers wrote elsewhere it sees only in `effects`: if a worker dies after its handler wrote and before the outcome
is stored, the command runs again (`attempt` above 1), and the handler has to recognise it, by an inbox for example.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, overload

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import IntegralType, StringType

from command_bus.clock import mono
from command_bus.errors import InvalidSettings, NotReconciled
from command_bus.export.views import View
from command_bus.spark.errors import unwrapped
from command_bus.spark.quoting import check_named_once, entity_text, there_are
from command_bus.spark.reading.views import schema_of
from command_bus.spark.reconciliation.chart_data import chart_data
from command_bus.spark.reconciliation.dispatch_state import DispatchState, await_settled, commands_in_mailboxes
from command_bus.spark.reconciliation.page import Page, write_page
from command_bus.spark.reconciliation.statuses import command_count, entry_order, out_of_order, statuses_of, with_effects
from command_bus.spark.reconciliation.verdict import EFFECT_FLAGS, EFFECTS, FLAGS, STATUSES, Tally, Verdict
from command_bus.spark.report import DispatchReport
from command_bus.spark.source import register
from command_bus.spark.target import Target
from command_bus.spark.writing.ordering import Order, check_order, with_order_column
from command_bus.spark.writing.task_results import REPAIRED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger("command_bus.spark")
_ROWS = (
    "pending",
    "forgotten",
    "missing",
    "dropped",
    "effect_early",
)  # statuses without an outcome or reject, so that texts come from the rows


@dataclass(frozen=True)
class Dispatched:
    """The dispatch to reconcile, and its rows."""

    dispatch_id: str
    target: Target
    commands: DataFrame = field(repr=False)
    entity_column: str | None = None
    order_by: Order | None = None
    is_empty: bool = False
    effects: DataFrame | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if "command_id" not in self.commands.columns:
            raise InvalidSettings(
                f"the rows have no column 'command_id' (see command_bus.spark.command_id); {there_are(self.commands.columns)}"
            )
        check_named_once(self.commands, ["command_id"])
        if self.effects is not None:
            _check_effects(self.effects)
        check_order(self.commands, self.order_by)
        if self.entity_column is not None:
            entity_text(self.commands, self.entity_column)

    def view(self, name: View) -> DataFrame:
        """Load a view of the data source, as it is now."""
        register(self.commands.sparkSession)
        if self.is_empty:
            return self.commands.sparkSession.createDataFrame([], schema_of(name))
        reader = self.commands.sparkSession.read.format("command_bus")
        options = {"url": self.target.url, "namespace": self.target.namespace, "view": name, "dispatchId": self.dispatch_id}
        return reader.options(**options).load()

    def state(self) -> DispatchState:
        """Read the current state."""
        return DispatchState.read(self.target, self.dispatch_id, is_empty=self.is_empty)


def _check_effects(effects: DataFrame) -> None:
    """Check that effects have ids of commands, as text.

    Raises:
        InvalidSettings: They have not.
    """
    if "command_id" not in effects.columns:
        raise InvalidSettings(f"the effects have no column 'command_id'; {there_are(effects.columns)}")
    check_named_once(effects, ["command_id"])
    kind = effects.schema["command_id"].dataType
    if not isinstance(kind, StringType | IntegralType):
        raise InvalidSettings(
            f"the column 'command_id' of the effects is of type {kind.simpleString()}: select it as the text of the command's id"
        )


@dataclass(frozen=True)
class Reconciliation:
    """The status of each command of a dispatch at one moment. Spark keeps it as long as this object lives.

    Attributes:
        dispatched: The dispatch and its rows.
        verdict: Counts and notes.
        before: The state of the dispatch when the reconciliation began.
        statuses: One row per command id: `status`, `duplicated`, and the times when it ran.
        late: The `command_id` of each command that is out of order, and `why`.
        unasked: The `command_id` of each effect of none of these commands, and how many `effects` it has; None without effects.
        seconds: How long the reconciliation took.
    """

    dispatched: Dispatched
    verdict: Verdict
    before: DispatchState = field(repr=False)
    statuses: DataFrame = field(repr=False)
    late: DataFrame = field(repr=False)
    unasked: DataFrame | None = field(default=None, repr=False)
    seconds: float = 0.0

    @property
    def counts(self) -> dict[str, int]:
        """Commands (distinct ids) by status, and how many of them are `duplicated` or `out_of_order`.

        With effects also: `effects`, the commands with `effect_missing`, `effect_twice`, `effect_unexpected` and `effect_early`, and the
        effects that are `effect_unasked`.
        """
        return dict(self.verdict.counts)

    @property
    def notes(self) -> list[str]:
        """Explanations that belong to the counts."""
        return list(self.verdict.notes)

    @property
    def ok(self) -> bool:
        """True if nothing is missing, duplicated or out of order, nor an effect, if they are known; commands may be pending (see `settled`)."""
        return self.verdict.ok

    @property
    def settled(self) -> bool:
        """Whether nothing is pending."""
        return self.verdict.settled

    def __str__(self) -> str:
        counts = self.verdict.counts
        shown = [name for name in STATUSES if counts[name] or name in ("completed", "pending", "missing")]
        shown += [name for name in (*FLAGS, *EFFECTS) if name in counts]
        longest = max(map(len, shown))
        width = max(len(f"{count:,}") for count in counts.values())
        lines = [f"dispatch {self.dispatched.dispatch_id!r}, {self.verdict.total:,} commands; {self.verdict}"]
        lines += [f"  {name:<{longest}} {counts[name]:>{width},}" for name in shown]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])

    def raise_if_wrong(self) -> None:
        """Raise if it is not `ok`.

        Raises:
            NotReconciled: It is not `ok`; the message is `str(self)`.
        """
        if not self.ok:
            raise NotReconciled(str(self), counts=self.counts)

    def frame(self, name: str) -> DataFrame:
        """Return the commands with this status, or with this fault, with their details.

        Texts (command, entity, errors) are looked up when Spark reads the frame: in the outcomes, rejects or rows of that time.

        Args:
            name: A key of `counts`.

        Raises:
            InvalidSettings: `counts` has no such key.
        """
        if name not in self.verdict.counts:
            raise InvalidSettings(f"there is no {name!r}; there are {', '.join(self.verdict.counts)}")
        shown = F.when(F.col("status") == "untraced", self.verdict.untraced_as).otherwise(F.col("status"))
        times = (F.timestamp_millis(f"{when}_ms").alias(f"{when}_at") for when in ("accepted", "started", "finished"))
        base = self.statuses.withColumn("status", shown)
        if name == "effect_unasked" and self.unasked is not None:
            return self._with_fences(self.unasked)
        by_column = ("duplicated", *EFFECT_FLAGS, "effect_early")
        if name == "effects":
            base = base.where("effects > 0")
        elif name == "out_of_order":
            base = base.join(self.late, "command_id")
        else:
            base = base.where(F.col(name) if name in by_column else F.col("status") == name)
        base = base.withColumn("_copy", F.explode(F.array_repeat(F.lit(1), command_count().cast("int"))))
        extra = ["why"] if name == "out_of_order" else []
        facts = base.select("command_id", "status", *extra, "order_by", "outcomes", "attempt", *times, "last_entry")
        texts = self._texts(name)
        same = F.col("command_id").eqNullSafe(F.col("_id"))
        if "_entry" in texts.columns:
            same = same & (F.col("last_entry") == F.col("_entry"))
        found = facts.join(texts, same, "left").drop("_id", "last_entry", "_entry")
        return self._with_fences(found) if name in EFFECTS else found

    def write(self, folder: str | Path) -> Path:
        """Write a self-contained page with verdict, counts and charts, `reconciliation-<dispatch id>.html`, and return its path."""
        view = self.dispatched.view
        with unwrapped():
            data = chart_data(self.statuses, view("outcomes"), view("rejects"))
        page = Page(self.before.facts, self.verdict, data, self.dispatched.target.label, self.before.now_ms, self.seconds)
        return write_page(page, Path(folder))

    def _with_fences(self, found: DataFrame) -> DataFrame:
        """Return commands with the `fences` of their effects, if the effects have a column `fence`: two are of two starts."""
        effects = self.dispatched.effects
        if effects is None or "fence" not in effects.columns:
            return found
        fences = F.sort_array(F.collect_list("fence")).alias("fences")
        ids = F.col("command_id").cast("string")
        each = effects.groupBy(ids.alias("_effect")).agg(fences)
        return found.join(each, F.col("command_id").eqNullSafe(F.col("_effect")), "left").drop("_effect")

    def _texts(self, name: str) -> DataFrame:
        """Return the texts of commands with this status, by `_id`, and by `_entry` if a command may have several."""
        if name in _ROWS:
            entity = self.dispatched.entity_column
            texts = [] if entity is None else [entity_text(self.dispatched.commands, entity).alias("entity")]
            rows = self.dispatched.commands.select(F.col("command_id").cast("string").alias("_id"), *texts)
            return rows.dropDuplicates(["_id"])
        if name == "quarantined":
            rejects = self.dispatched.view("rejects").where("reason <> 'conflict'").dropDuplicates(["command_id"])
            reasons = (F.col("reason").alias("error_type"), F.col("error").alias("error_message"))
            return rejects.select(F.col("command_id").alias("_id"), "command", "entity", *reasons)
        texts = [F.col(name) for name in ("command", "entity_type", "entity", "worker", "error_type", "error_message")]
        entries = entry_order(F.col("entry")).alias("_entry")
        outcomes = self.dispatched.view("outcomes").select(F.col("command_id").alias("_id"), entries, *texts)
        return outcomes.dropDuplicates(["_id", "_entry"])


@overload
def reconcile(run: DispatchReport, *, effects: DataFrame | None = None, timeout: float | None = None) -> Reconciliation: ...


@overload
def reconcile(
    *,
    dispatch_id: str,
    commands: DataFrame,
    entity_column: str | None = None,
    order_by: Order | None = None,
    url: str | None = None,
    namespace: str | None = None,
    effects: DataFrame | None = None,
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
    effects: DataFrame | None = None,
    timeout: float | None = None,
) -> Reconciliation:
    """Compare the dispatched rows with their outcomes.

    The mailboxes are read first, the outcomes afterwards. A command moves from one to the other in one step, so a command that is in
    neither is missing, even while workers run. Reconciling reads only and may be repeated.

    Args:
        run: The report of `dispatch_dataframe`; or give the following three.
        dispatch_id: The dispatch.
        commands: The dispatched rows, with their `command_id`.
        entity_column: The column of entity ids, to be shown.
        order_by: The columns that order an entity's rows, as for `dispatch_dataframe`; None: only the order of acceptance counts.
        url: The server; default `COMMAND_BUS_URL`, `REDIS_URL`, the development server.
        namespace: Prefix of all keys; default `COMMAND_BUS_NAMESPACE`.
        effects: A row for each effect, with its `command_id`: the table of an inbox, or the rows that handlers wrote. Read after the outcomes,
            at each look: give it as it is read from the database, without `cache()`.
        timeout: Seconds to wait at most until nothing is pending; None does not wait.

    Raises:
        InvalidSettings: The dispatch is unknown or keeps no outcomes, or the rows or effects lack a column.
        TransportUnavailable: The server cannot be reached.
    """
    dispatched = _dispatched(run, dispatch_id, commands, entity_column, order_by, url, namespace)
    if effects is not None:
        dispatched = replace(dispatched, effects=effects)
    deadline = None if timeout is None else mono() + timeout
    aim: int | None = None
    while True:
        before = dispatched.state()
        if deadline is not None:
            expected = before.facts.added + before.facts.folded if aim is None else aim
            await_settled(dispatched.target, dispatched.dispatch_id, expected, deadline)
            before = dispatched.state()
        with unwrapped():
            ledger, outcomes = _examine(dispatched, before)
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
            raise InvalidSettings(
                "reconcile(report) knows all from its report: give no more than effects and a timeout beside it"
            )
        is_empty = run.state == "empty"
        return Dispatched(run.dispatch_id, run.target, run.commands, run.entity_column, run.order_by, is_empty)
    if dispatch_id is None or commands is None:
        raise InvalidSettings("reconcile needs a report, or dispatch_id=… and commands=… (the rows with their command_id)")
    return Dispatched(dispatch_id, Target.resolve(url, namespace), commands, entity_column, order_by)


def _examine(dispatched: Dispatched, before: DispatchState) -> tuple[Reconciliation, int]:
    """Return the reconciliation as of now, and the number of outcomes."""
    began = mono()
    spark = dispatched.commands.sparkSession
    waiting = commands_in_mailboxes(spark, dispatched.target, dispatched.dispatch_id, before.now_ms)
    outcomes = dispatched.view("outcomes")  # planned from here on: after the mailboxes were read
    rejects = dispatched.view("rejects")
    commands, order_by = with_order_column(dispatched.commands, dispatched.entity_column, dispatched.order_by)
    statuses = statuses_of(commands, outcomes, rejects, waiting, order_by=order_by, looked_ms=before.now_ms).localCheckpoint(
        eager=True
    )
    late = out_of_order(statuses).localCheckpoint(eager=True)
    others = None
    if dispatched.effects is not None:
        statuses, others = with_effects(statuses, dispatched.effects)
        statuses, others = statuses.localCheckpoint(eager=True), others.localCheckpoint(eager=True)
    tally = _tally(statuses, others, late.count(), rejects.where(F.col("reason") == REPAIRED).count())
    after = dispatched.state()
    verdict = Verdict.of(tally, before, after)
    return Reconciliation(dispatched, verdict, before, statuses, late, others, mono() - began), tally.outcomes


def _tally(statuses: DataFrame, unasked: DataFrame | None, late: int, repaired: int) -> Tally:
    named = F.col("command_id").isNotNull()
    effects = [] if unasked is None else ["effects", *EFFECT_FLAGS, "effect_early"]
    rows = (
        statuses.groupBy("status")
        .agg(
            F.sum(command_count()).alias("commands"),
            F.count_if("duplicated").alias("duplicated"),
            F.sum("conflicts").alias("conflicts"),
            F.count_if(named & ((F.col("outcomes") > 0) | F.col("waits"))).alias("traced"),
            F.sum("outcomes").alias("outcomes"),
            F.coalesce(F.sum(F.when(~named, F.col("outcomes"))), F.lit(0)).alias("unreadable"),
            F.min(F.when(F.col("status") == "completed", F.col("command_id"))).alias("id"),
            *(F.sum(F.col(name).cast("long")).alias(name) for name in effects),
        )
        .collect()
    )
    totals = {name: sum(row[name] for row in rows) for name in ("duplicated", "conflicts", "traced", "outcomes", "unreadable")}
    counted, spelled = {name: sum(row[name] for row in rows) for name in effects}, None
    if unasked is not None:
        (other,) = unasked.agg(F.coalesce(F.sum("effects"), F.lit(0)).alias("number"), F.min("command_id").alias("id")).collect()
        counted["effect_unasked"] = other["number"]
        ours = next((row["id"] for row in rows if row["id"] is not None), None)
        spelled = (ours, other["id"]) if ours and other["id"] and not counted["effects"] else None
    return Tally(
        {row["status"]: row["commands"] for row in rows},
        out_of_order=late,
        repaired=repaired,
        effects=counted,
        spelled=spelled,
        **totals,
    )
