"""The data of a reconciliation's charts, computed by Spark from the statuses; the few texts are looked up in the outcomes, once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from command_bus.spark.reconciliation.page import ChartData, ErrorCount, SlowEntity
from command_bus.spark.reconciliation.statuses import NEVER_RUN, entity_hash

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STEPS = 80
_PER_DECADE = 8
_SLOWEST = 10
_KINDS = 12  # of errors that are shown
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def chart_data(statuses: DataFrame, outcomes: DataFrame, rejects: DataFrame) -> ChartData:
    """Compute the data of the charts.

    Args:
        statuses: See `statuses_of`.
        outcomes: The view `outcomes`.
        rejects: The view `rejects`.
    """
    named = statuses.where("command_id is not null")
    settled = named.where((F.col("outcomes") > 0) & ~F.col("status").isin(*NEVER_RUN)).select(
        "attempt", "accepted_ms", "started_ms", "finished_ms", "entity_hash",
        F.greatest(F.col("finished_ms") - F.col("accepted_ms"), F.lit(0)).alias("latency"),
        F.greatest(F.col("finished_ms") - F.col("started_ms"), F.lit(0)).alias("handling"),
    )  # fmt: skip
    whole = settled.agg(
        F.min("accepted_ms"), F.max("finished_ms"), *(_quantiles(name) for name in ("latency", "handling"))
    ).collect()[0]
    if whole[1] is None:
        return ChartData(errors=_errors([], rejects))
    first, last = int(whole[0] if whole[0] is not None else whole[1]), int(whole[1])
    step = _step(last - first)
    accepted, finished = _over_time(settled, first, step, (last - first) // step + 1)
    slow = settled.where("entity_hash is not null").groupBy("entity_hash").agg(
        F.count("*").alias("commands"), F.avg("latency").alias("mean"), F.max("latency").alias("worst"), F.sum("handling").alias("handling"),
        F.count_if(F.col("attempt") > 1).alias("retried"),
    ).orderBy(F.desc("worst"), "entity_hash").limit(_SLOWEST).collect()  # fmt: skip
    names, errors = _texts(outcomes, [row["entity_hash"] for row in slow])
    return ChartData(
        first_ms=first,
        last_ms=last,
        step_ms=step,
        accepted=accepted,
        finished=finished,
        latency=_named(whole[2]),
        handling=_named(whole[3]),
        bins=_bins(settled),
        attempts={int(row[0]): int(row[1]) for row in settled.groupBy(F.coalesce("attempt", F.lit(0))).count().collect()},
        slowest=[_slow(row, names) for row in slow],
        errors=_errors(errors, rejects),
    )


def _quantiles(name: str) -> Any:
    return F.percentile_approx(name, list(_QUANTILES.values()), 1000)


def _named(values: list[int] | None) -> dict[str, float]:
    return dict(zip(_QUANTILES, map(float, values or ()), strict=False))


def _step(span_ms: int) -> int:
    """Return a round width, for at most so many steps."""
    rough = max(span_ms / _STEPS, 1.0)
    power = 10 ** math.floor(math.log10(rough))
    return next(int(factor * power) for factor in (1, 2, 5, 10) if factor * power >= rough)


def _over_time(settled: DataFrame, first: int, step: int, steps: int) -> tuple[list[int], list[int]]:
    moments = F.explode(
        F.array(
            F.struct(F.lit(0).alias("which"), F.col("accepted_ms").alias("ms")),
            F.struct(F.lit(1).alias("which"), F.col("finished_ms").alias("ms")),
        )
    )
    at = F.floor((F.col("moment")["ms"] - first) / step)
    series = ([0] * steps, [0] * steps)
    for row in settled.select(moments.alias("moment")).groupBy(F.col("moment")["which"], at).count().collect():
        if row[1] is not None and 0 <= row[1] < steps:
            series[row[0]][row[1]] += row[2]
    return series


def _bins(settled: DataFrame) -> list[tuple[float, int]]:
    """Count commands by the logarithm of their latency; all below a millisecond count as one."""
    level = F.floor(F.log10(F.greatest(F.col("latency"), F.lit(1))) * _PER_DECADE + 1e-9)
    rows = settled.where("latency is not null").groupBy(level).count().collect()
    return sorted((10.0 ** (int(row[0]) / _PER_DECADE), int(row[1])) for row in rows)


def _texts(outcomes: DataFrame, hashes: list[int]) -> tuple[dict[int, str], list[ErrorCount]]:
    """Return the names of entities, and the kinds of errors, in one read of the outcomes. Errors that a replay resolved count too."""
    failed = ~F.col("status").isin("completed", *NEVER_RUN)
    entity = entity_hash()
    known = entity.isin(hashes) if hashes else F.lit(False)
    label = F.concat_ws(":", "entity_type", "entity")
    rows = (
        outcomes.where(failed | known)
        .groupBy(
            F.when(known, entity).alias("hash"), "status", F.when(failed, F.coalesce("error_type", F.lit("–"))).alias("error")
        )
        .agg(
            F.count("*").alias("commands"),
            F.max(label).alias("label"),
            F.max(F.substring("error_message", 1, 300)).alias("example"),
        )
        .collect()
    )
    kinds: dict[tuple[str, str], ErrorCount] = {}
    for row in rows:
        if row["error"] is not None:
            kind = (row["status"], row["error"])
            before = kinds.get(kind, ErrorCount(*kind, 0, row["example"] or ""))
            kinds[kind] = ErrorCount(*kind, before.count + row["commands"], max(before.example, row["example"] or ""))
    return {row["hash"]: row["label"] for row in rows if row["hash"] is not None}, list(kinds.values())


def _slow(row: Any, names: dict[int, str]) -> SlowEntity:
    name = names.get(row["entity_hash"], "(its outcomes are kept no more)")
    return SlowEntity(
        name, row["commands"], float(row["mean"] or 0), float(row["worst"] or 0), float(row["handling"] or 0), row["retried"]
    )


def _errors(errors: list[ErrorCount], rejects: DataFrame) -> list[ErrorCount]:
    refused = (
        rejects.groupBy("reason").agg(F.count("*").alias("rows"), F.max(F.substring("error", 1, 300)).alias("example")).collect()
    )
    kinds = errors + [ErrorCount("quarantined", row["reason"] or "–", row["rows"], row["example"] or "") for row in refused]
    return sorted(kinds, key=lambda kind: (-kind.count, kind.status, kind.error))[:_KINDS]
