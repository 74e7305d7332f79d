"""What became of each command id: rows, outcomes, rejects and what still waits, grouped once by the id.

They are put below each other instead of joined, and everything that is gathered has a fixed width (an entity is a hash, a stream's id
a number): so Spark groups millions of them by hashing, without a sort. Texts are looked up later, for the few that somebody asks
about. All is plain Spark SQL on four DataFrames; nothing here knows of a server.

Of the outcomes of one command the last one says what became of it. `completed`, `rejected`, `cancelled` and `discarded` are the end:
whatever comes after one of these is a second effect. After the others an operator may replay the command.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["FINAL", "PROVISIONAL", "column", "entity_hash", "fates_of", "late_of", "place_of", "weight"]

FINAL = ("completed", "rejected", "cancelled", "discarded")
PROVISIONAL = ("expired", "dead_lettered", "parked")
_STATUSES = (*FINAL, *PROVISIONAL)
_CONFLICT = "conflict"  # the reason of a row whose id another row has: that one was accepted
_BITS = 21  # of a place for the number within a millisecond


def fates_of(
    commands: DataFrame,
    outcomes: DataFrame,
    rejects: DataFrame,
    waiting: DataFrame,
    *,
    order_by: str | None,
    looked_ms: int,
) -> DataFrame:
    """One row per command id, with its `fate`.

    A fate is a status of the outcomes, `pending`, `quarantined`, `untraced` (in none of the three), or `unexpected` (no row has this
    id). Rows without an id are one group; `rows` says how many.

    Args:
        commands: The rows that were dispatched, with `command_id`.
        outcomes: The view, read after `waiting` was.
        rejects: The view.
        waiting: `command_id` and `parked` of what was in mailboxes.
        order_by: Of the rows.
        looked_ms: The server's time just before mailboxes were looked into.
    """
    grouped = _together(commands, outcomes, rejects, waiting, order_by).groupBy("command_id").agg(*_gathered())
    named, settled = F.col("command_id").isNotNull(), F.col("outcomes") > 0
    status, finished = F.col("status"), F.shiftright("place", _BITS)
    replayed = status.isin(*map(_code, PROVISIONAL)) & (finished < looked_ms) & ~((status == _code("parked")) & F.col("held"))
    fate = (
        F.when(F.col("rows") == 0, "unexpected")
        .when(named & settled & ~(replayed & F.col("waits")), F.element_at(F.array(*map(F.lit, _STATUSES)), status))
        .when(F.col("waits"), "pending")
        .when(F.col("refusals") > 0, "quarantined")
        .otherwise("untraced")
    )
    return grouped.select(
        "command_id",
        fate.alias("fate"),
        "order_by",
        "rows",
        "outcomes",
        "waits",
        "conflicts",
        "attempt",
        "place",
        F.shiftright("accepted", _BITS).alias("accepted_ms"),
        "started_ms",
        F.when(settled, finished).alias("finished_ms"),
        (named & ((F.col("place") > F.col("ended")) | (F.col("ends") > 1))).alias("duplicated"),
        "entity_hash",
        "fence",
        "accepted",
    )


def late_of(fates: DataFrame) -> DataFrame:
    """The commands that ran too late: after one of their entity that was accepted later, or is later by `order_by`; with `why`.

    The first outcome of each command counts, by its fence, which grows with every start. So a dead letter that is replayed has the
    place where it was given up; that its replay comes later is meant to be. NULLs have no order.
    """
    ran = fates.where("fence is not null and entity_hash is not null")
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


def weight() -> Column:
    """How many commands a row of `fates_of` stands for: rows without an id are one group."""
    return F.when(F.col("command_id").isNull(), F.col("rows")).otherwise(1)


def place_of(entry: Column) -> Column:
    """The order of a stream's ids, which are not in order as text, as a number; NULL of what is none.

    Past two million entries in one millisecond (the server's clock went back) they count as equal.
    """
    ms, number = (F.substring_index(entry, "-", end).try_cast("long") for end in (1, -1))
    return F.shiftleft(ms, _BITS).bitwiseOR(F.least(number, F.lit(2**_BITS - 1)))


def entity_hash() -> Column:
    """Of an outcome; NULL of a command without an entity. 64 bits: among a million entities two are equal once in 30 million runs."""
    return F.when(F.col("entity").isNotNull(), F.xxhash64("entity_type", "entity"))


def column(name: str) -> Column:
    """The column with this name, whatever is in it."""
    return F.col("`" + name.replace("`", "``") + "`")


def _code(status: str) -> int:
    return _STATUSES.index(status) + 1


def _together(
    commands: DataFrame, outcomes: DataFrame, rejects: DataFrame, waiting: DataFrame, order_by: str | None
) -> DataFrame:
    """All that is known, below each other: `kind` says what a row tells."""
    rows = commands.select(
        F.col("command_id").cast("string").alias("command_id"),
        F.lit("r").alias("kind"),
        (F.lit(None).cast("long") if order_by is None else column(order_by)).alias("order_by"),
    )
    settled = outcomes.select(
        "command_id",
        F.lit("o").alias("kind"),
        F.array_position(F.array(*map(F.lit, _STATUSES)), F.col("status")).cast("int").alias("code"),
        place_of(F.col("entry")).alias("place"),
        place_of(F.col("message")).alias("accepted"),
        F.when(F.col("fence") > 0, F.col("fence")).alias("fence"),
        "attempt",
        F.unix_millis("started_at").alias("started_ms"),
        entity_hash().alias("entity_hash"),
    )
    refused = rejects.select("command_id", F.when(F.col("reason") == _CONFLICT, "c").otherwise("q").alias("kind"))
    waits = waiting.select("command_id", F.lit("w").alias("kind"), "parked")
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), (rows, settled, refused, waits))


def _gathered() -> list[Column]:
    """What is known of one command id."""
    kind, place, final = F.col("kind"), F.col("place"), F.col("code") <= len(FINAL)
    return [
        F.count_if(kind == "r").alias("rows"),
        F.min("order_by").alias("order_by"),
        F.count_if(kind == "o").alias("outcomes"),
        F.max_by("code", place).alias("status"),
        F.max(place).alias("place"),
        F.min(F.when(final, place)).alias("ended"),
        F.count_if(final).alias("ends"),
        F.min("accepted").alias("accepted"),
        F.min("fence").alias("fence"),
        F.max("attempt").alias("attempt"),
        F.max("started_ms").alias("started_ms"),
        F.max("entity_hash").alias("entity_hash"),
        F.count_if(kind == "c").alias("conflicts"),
        F.count_if(kind == "q").alias("refusals"),
        (F.count_if(kind == "w") > 0).alias("waits"),
        F.coalesce(F.bool_or("parked"), F.lit(False)).alias("held"),
    ]
