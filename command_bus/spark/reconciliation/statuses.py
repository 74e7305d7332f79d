"""The status of each command id: rows, outcomes, rejects and waiting commands, grouped once by the id.

The four are appended to each other instead of joined, and all gathered columns have a fixed width (an entity is a hash, a stream's id
a number). So Spark groups millions of them by hashing, without a sort. Texts are looked up later, for the few commands that are shown.
All is plain Spark SQL on four DataFrames, without a server.

The last outcome of a command decides. Those in `FINAL` are final: an outcome after one of these is a second effect. After the others an
operator may replay the command.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from command_bus.spark.quoting import column_named
from command_bus.spark.writing.task_results import ACCEPTED_OTHERWISE, REPAIRED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FINAL = ("completed", "rejected", "cancelled", "discarded", "folded", "superseded")
NEVER_RUN = ("folded", "superseded")  # another command of the same unique key ran instead
PROVISIONAL = ("expired", "dead_lettered", "parked")
_OUTCOME_STATUSES = (*FINAL, *PROVISIONAL)
_WITHOUT_EFFECT = (*(status for status in (*FINAL, *PROVISIONAL) if status != "completed"), "quarantined")
_CONFLICT = "conflict"  # the reason of a row whose id another row has: that one was accepted
_BITS = 21  # of an entry's order, for the number within a millisecond


def statuses_of(
    commands: DataFrame,
    outcomes: DataFrame,
    rejects: DataFrame,
    waiting: DataFrame,
    *,
    order_by: str | None,
    looked_ms: int,
) -> DataFrame:
    """Return one row per command id, with its `status`.

    It is a status of the outcomes, `pending`, `quarantined`, `untraced` (in none of the three), or `unexpected` (no row has this id).
    Rows without an id are one group; `rows` is their number.

    Args:
        commands: The dispatched rows, with `command_id`.
        outcomes: The view `outcomes`, read after `waiting`.
        rejects: The view `rejects`.
        waiting: `command_id` and `parked` of the commands in mailboxes.
        order_by: The column that orders the rows.
        looked_ms: The server's time just before the mailboxes were read.
    """
    grouped = _appended(commands, outcomes, rejects, waiting, order_by).groupBy("command_id").agg(*_aggregates())
    named, settled = F.col("command_id").isNotNull(), F.col("outcomes") > 0
    code, finished = F.col("last_code"), F.shiftright("last_entry", _BITS)
    replayed = code.isin(*map(_code, PROVISIONAL)) & (finished < looked_ms) & ~((code == _code("parked")) & F.col("held"))
    status = (
        F.when(F.col("rows") == 0, "unexpected")
        .when(named & settled & ~(replayed & F.col("waits")), F.element_at(F.array(*map(F.lit, _OUTCOME_STATUSES)), code))
        .when(F.col("waits"), "pending")
        .when(F.col("refusals") > 0, "quarantined")
        .otherwise("untraced")
    )
    return grouped.select(
        "command_id",
        status.alias("status"),
        "order_by",
        "rows",
        "outcomes",
        "waits",
        "conflicts",
        "attempt",
        "last_entry",
        F.shiftright("accepted", _BITS).alias("accepted_ms"),
        "started_ms",
        F.when(settled, finished).alias("finished_ms"),
        (named & ((F.col("last_entry") > F.col("final_entry")) | (F.col("ends") > 1))).alias("duplicated"),
        "entity_hash",
        "fence",
        "accepted",
        (F.col("mended") > 0).alias("mended"),
    )


def with_effects(statuses: DataFrame, effects: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the statuses with the number of `effects` of each command, `EFFECT_FLAGS` and `effect_early`; and the effects of no command of the rows.

    An effect commits before the outcome of its command is stored: so effects are read after the outcomes. One of a row that was rejected, and
    accepted since, is of that other dispatch.

    Args:
        statuses: The result of `statuses_of`, evaluated.
        effects: A row for each effect, with `command_id`.
    """
    found = effects.select(F.col("command_id").cast("string").alias("command_id"))
    counted = found.groupBy("command_id").agg(F.count(F.lit(1)).alias("effects")).localCheckpoint(eager=True)
    asked, status = F.col("status") != "unexpected", F.col("status")
    number = F.when(asked, F.coalesce(F.col("effects"), F.lit(0))).otherwise(0)
    joined = statuses.join(counted, "command_id", "left").withColumns(
        {
            "effects": number,
            "effect_missing": (status == "completed") & (number == 0),
            "effect_twice": number > 1,
            "effect_unexpected": status.isin(*_WITHOUT_EFFECT) & (number > 0) & ~((status == "quarantined") & F.col("mended")),
            "effect_early": (status == "pending") & (number > 0),
        }
    )
    return joined, counted.join(statuses.where(asked), "command_id", "left_anti")


def out_of_order(statuses: DataFrame) -> DataFrame:
    """Return the commands that ran too late: after a command of their entity that was accepted later, or is later by `order_by`; with `why`.

    The first outcome of each command counts, by its fence, which grows with every start. So a replayed dead letter is ordered by its
    first failure; its replay is expected to come later. NULLs have no order.
    """
    ran = statuses.where("fence is not null and entity_hash is not null")
    before = Window.partitionBy("entity_hash").orderBy("fence").rowsBetween(Window.unboundedPreceding, -1)
    marked = ran.select(
        "command_id",
        (F.max("accepted").over(before) > F.col("accepted")).alias("overtaken"),
        (F.max("order_by").over(before) > F.col("order_by")).alias("disordered"),
    )
    why = F.when(F.col("overtaken"), "ran after a command of its entity that was accepted later").otherwise(
        "ran after a command of its entity that is later by order_by"
    )
    return marked.where("overtaken or disordered").select("command_id", why.alias("why"))


def command_count() -> Column:
    """Return the column with the number of commands in a row of `statuses_of`: rows without an id are one group."""
    return F.when(F.col("command_id").isNull(), F.col("rows")).otherwise(1)


def entry_order(entry: Column) -> Column:
    """Return a stream's id as a number that sorts like the stream, as its text does not; NULL if it is no id.

    Past two million entries in one millisecond (the server's clock went back) ids count as equal.
    """
    ms, number = (F.substring_index(entry, "-", end).try_cast("long") for end in (1, -1))
    return F.shiftleft(ms, _BITS).bitwiseOR(F.least(number, F.lit(2**_BITS - 1)))


def entity_hash() -> Column:
    """Return the hash of an outcome's entity; NULL for a command without one.

    It has 64 bits: of a million entities, two share a hash once in 30 million runs.
    """
    return F.when(F.col("entity").isNotNull(), F.xxhash64("entity_type", "entity"))


def _code(status: str) -> int:
    return _OUTCOME_STATUSES.index(status) + 1


def _appended(
    commands: DataFrame, outcomes: DataFrame, rejects: DataFrame, waiting: DataFrame, order_by: str | None
) -> DataFrame:
    """Append rows, outcomes, rejects and waiting commands: `kind` is `r`, `o`, `q` or `c` (a conflict), `w`."""
    rows = commands.select(
        F.col("command_id").cast("string").alias("command_id"),
        F.lit("r").alias("kind"),
        (F.lit(None).cast("long") if order_by is None else column_named(order_by)).alias("order_by"),
    )
    settled = outcomes.select(
        "command_id",
        F.lit("o").alias("kind"),
        F.array_position(F.array(*map(F.lit, _OUTCOME_STATUSES)), F.col("status")).cast("int").alias("code"),
        entry_order(F.col("entry")).alias("entry_order"),
        entry_order(F.col("message")).alias("accepted"),
        F.when(F.col("fence") > 0, F.col("fence")).alias("fence"),
        "attempt",
        F.unix_millis("started_at").alias("started_ms"),
        entity_hash().alias("entity_hash"),
    )
    reason = F.col("reason")
    refused = rejects.select(
        "command_id",
        F.when(reason == _CONFLICT, "c").otherwise("q").alias("kind"),
        reason.isin(REPAIRED, ACCEPTED_OTHERWISE).alias("mended"),
    )
    waits = waiting.select("command_id", F.lit("w").alias("kind"), "parked")
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), (rows, settled, refused, waits))


def _aggregates() -> list[Column]:
    """Return the aggregates over the rows of one command id."""
    kind, entry, final = F.col("kind"), F.col("entry_order"), F.col("code") <= len(FINAL)
    return [
        F.count_if(kind == "r").alias("rows"),
        F.min("order_by").alias("order_by"),
        F.count_if(kind == "o").alias("outcomes"),
        F.max_by("code", entry).alias("last_code"),
        F.max(entry).alias("last_entry"),
        F.min(F.when(final, entry)).alias("final_entry"),
        F.count_if(final).alias("ends"),
        F.min("accepted").alias("accepted"),
        F.min("fence").alias("fence"),
        F.max("attempt").alias("attempt"),
        F.max("started_ms").alias("started_ms"),
        F.max("entity_hash").alias("entity_hash"),
        F.count_if(kind == "c").alias("conflicts"),
        F.count_if(kind == "q").alias("refusals"),
        F.count_if("mended").alias("mended"),
        (F.count_if(kind == "w") > 0).alias("waits"),
        F.coalesce(F.bool_or("parked"), F.lit(False)).alias("held"),
    ]
