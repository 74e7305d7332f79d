"""The expected result, computed by Spark from the table: `reference.py` once more, in SQL.

It shares no code with what it checks: no commands, no `model.apply`, no `seq`. The sums are plain aggregates, the gaps on the ground
look back one row, and the chain is folded over an aircraft's movements sorted by time, because a sum would not notice a reordering.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from examples.flights.model import Aircraft

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["SQL", "expected", "folded"]

SQL: Final = """
WITH movements AS (
    SELECT tail, departed AS at, false AS landing, key, dep_delay AS delay, origin AS airport, 0 AS minutes, 0 AS miles
    FROM flights WHERE tail IS NOT NULL AND departed IS NOT NULL
    UNION ALL
    SELECT tail, landed, true, key, arr_delay, dest, air_time, distance
    FROM flights WHERE tail IS NOT NULL AND landed IS NOT NULL
),
diary AS (
    SELECT *, lag(struct(at, landing, airport)) OVER (PARTITION BY tail ORDER BY at, landing, key) AS before FROM movements
),
visits AS (
    SELECT *, NOT landing AND coalesce(before.landing, false) AS from_ground FROM diary
)
SELECT
    tail,
    count(*) AS seq,
    aggregate(
        sort_array(collect_list(struct(at, landing, key, delay))),
        struct(0L AS place, 0L AS chain),
        (so_far, next) -> struct(
            so_far.place + 1 AS place,
            pmod(so_far.chain * 31 + next.delay + so_far.place + 1, 1000003L) AS chain
        )
    ).chain AS chain,
    count_if(NOT landing) AS flights,
    count_if(landing) AS landings,
    sum(minutes) AS minutes,
    sum(miles) AS distance,
    max_by(airport, struct(at, landing, key)) AS airport,
    max_by(if(landing, at, NULL), struct(at, landing, key)) AS landed_at,
    count_if(from_ground) AS gaps,
    sum(if(from_ground, at - before.at, 0)) AS gap_minutes,
    count_if(from_ground AND airport <> before.airport) AS elsewhere
FROM visits
GROUP BY tail
"""


def folded(flights: DataFrame) -> DataFrame:
    """Return the final state of every aircraft that left the ground, one row each, with columns like the fields of `Aircraft`."""
    # A view that stays: `sql(…, flights=flights)` would drop one of its own, and with it what is cached of these rows.
    flights.createOrReplaceTempView("flights")
    return flights.sparkSession.sql(SQL)


def expected(flights: DataFrame) -> dict[str, Aircraft]:
    """Return the same, by tail number."""
    rows = (row.asDict() for row in folded(flights).collect())
    return {row.pop("tail"): Aircraft(**row) for row in rows}
