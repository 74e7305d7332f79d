"""The project's targets, judged by `judging`: the table of what the bus shall be ahead in, then what was reached before and shall stay.

Spark's targets stand here too; `python -m benchmarks.spark` measures and judges them.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.cases.growth import ROWS
from benchmarks.judging import Condition, Figured, Measured, Missing, Peers, Run, Target, Verdict, judged

__all__ = ["BARE_ARROW", "BY_HAND", "FULL_SERVICE", "SPARK", "TARGETS", "verdicts"]

BY_HAND = "foreachPartition, pipelined XADD, no promise"
BARE_ARROW = "arrow, packed script calls, no service"
FULL_SERVICE = "full service: dispatch_dataframe"

_SHARED = "drain, 1,000 entities"
_PAIR = "drain, 1,000 entities, 2 processes"
_OWN = "drain, every command its own entity"
_OWN_BYTES = "memory, per_entity, 1 per entity, stock server"
_TEN_BYTES = "memory, per_entity, 10 per entity, stock server"
_ONE = "dispatch, one by one"
_MANY = "dispatch, 500 concurrent"
_BATCHES = "dispatch, batches of 1,000"
_CALL = "call, 1 in flight"
_CALLS = "call, 50 in flight"
_WAKE_UP = "wake-up of an idle worker"
_STEP = "durable, a step, 1,000 entities"
_FIVE = "durable, five steps, 1 in flight"
_FIVES = "durable, five steps, 50 in flight"
_DURABLE_CALL = "durable, a durable call, 1,000 entities"
_CALLING = "durable, call that calls, 50 in flight"
_PLAIN_CALL = "durable, beside it a plain call of another entity, 1,000 entities"
_PLAIN_CALLING = "durable, beside it a plain call that calls, 50 in flight"
_WAITS = "durable, commands that wait"
_PAGES = "dashboard, pages"
_OVER_HTTP = "gateway, dispatches over 50 connections"
_CALL_OVER_HTTP = "gateway, call, 1 in flight"
_ONCE, _BARE = "inbox, an UPDATE in once", "inbox, a bare UPDATE"
_ALONE, _IN_BATCHES = "drain, one entity", "drain, one entity, in batches"
_MANY_IN_BATCHES = "drain, 1,000 entities, in batches"
_RELAYED, _LOOP = "outbox, a backlog is relayed", "outbox, a loop of SELECT, XADD, DELETE"
_ADDING, _INSERTING = "outbox, a transaction with an add", "outbox, a transaction with an INSERT"
_INBOX_BATCH, _INBOX_SINGLE = "inbox, batches of 500 INSERTs", "inbox, single INSERTs in once"


def verdicts(figures: Measured, peers: Mapping[str, str]) -> list[Verdict]:
    """Return the verdict on every target; `peers` has the language of each."""
    return judged(TARGETS, figures, peers)


def _of(case: str, metric: str = "per_s") -> Figured:
    return lambda run: run(case, metric)


def _just(value: float) -> Figured:
    return lambda _run: value


def _times(factor: float, value: Figured) -> Figured:
    return lambda run: factor * value(run)


def _more(by: float, value: Figured) -> Figured:
    return lambda run: by + value(run)


def _and_a_step(two: str) -> Figured:
    """Return what the server spends on the two commands of a case, and on a step; `_STEP` has the step alone."""
    return lambda run: run(two, "server_us") + run(_STEP, "server_us")


def _best(case: str, *, python: bool = False) -> Figured:
    return lambda run: max(run.peers(case, python=python).values())


def _lowest(case: str, metric: str) -> Figured:
    return lambda run: min(run.peers(case, metric).values())


def _rate(case: str, least: float) -> Condition:
    return Condition(f"≥ {least:,.0f}/s", _of(case), _just(least))


def _cpu(case: str, whose: str, most: float) -> Condition:
    return Condition(f"{whose} ≤ {most:g} µs", _of(case, f"{whose}_us"), _just(most), at_most=True)


def _bytes(case: str, most: float, metric: str = "bytes_each") -> Condition:
    return Condition(f"≤ {most:g} bytes", _of(case, metric), _just(most), at_most=True)


def _multiple(case: str, factor: float, of: str, limit: Figured) -> Condition:
    return Condition(f"≥ {factor:g} × {of}", _of(case), _times(factor, limit))


def _change(metric: str, row: str) -> Figured:
    """Return a cost at the far end of a row, as a multiple of that at its near end."""
    found = next(each for each in ROWS if each.name == row)

    def change(run: Run) -> float:
        near = run(found.case(found.sizes[0]), metric)
        if not near:
            raise Missing(f"{metric} at the near end of {row}")
        return run(found.case(found.sizes[-1]), metric) / near

    return change


def _growth(row: str) -> tuple[Condition, ...]:
    return tuple(
        Condition(f"{step}, {where} ≤ 1.2 × of a thousand", _change(f"{step}_{where}_us", row), _just(1.2), at_most=True)
        for step in ("dispatch", "drain")
        for where in ("redis", "python")
    )


def _all_of(case: str, *conditions: Condition, beside: Peers | None = None) -> Target:
    return Target(case, (conditions,), beside)


_AHEAD: tuple[Target, ...] = (
    Target(
        _SHARED,
        ((_multiple(_SHARED, 5, "bullmq", _of("bullmq, drain")),), (_cpu(_SHARED, "server", 5.5), _cpu(_SHARED, "worker", 7.5))),
        Peers(_SHARED, "drain"),
    ),
    _all_of(_OWN, _rate(_OWN, 50_000), _cpu(_OWN, "server", 9.5), _cpu(_OWN, "worker", 10.5), beside=Peers(_OWN, "drain")),
    _all_of(_OWN_BYTES, _bytes(_OWN_BYTES, 350)),
    _all_of(
        _ONE,
        _multiple(_ONE, 1.3, "the best peer", _best(_ONE)),
        _cpu(_ONE, "server", 15),
        _cpu(_ONE, "client", 16),
        beside=Peers(_ONE, _ONE),
    ),
    _all_of(_MANY, _rate(_MANY, 75_000), _cpu(_MANY, "client", 11), beside=Peers(_MANY, _MANY)),
    _all_of(_BATCHES, _rate(_BATCHES, 220_000), beside=Peers(_BATCHES, "fill")),
    _all_of(
        _CALL,
        Condition("p50 ≤ 0.8 × every peer's", _of(_CALL, "p50_ms"), _times(0.8, _lowest(_CALL, "p50_ms")), at_most=True),
        beside=Peers(_CALL, _CALL, "p50_ms"),
    ),
    _all_of(
        _CALLS,
        _rate(_CALLS, 20_000),
        Condition("p99 ≤ 2 × p50", _of(_CALLS, "p99_ms"), _times(2, _of(_CALLS, "p50_ms")), at_most=True),
        beside=Peers(_CALLS, _CALLS),
    ),
    _all_of("a million entities", *_growth("entities")),
    _all_of(_STEP, _rate(_STEP, 26_000), _cpu(_STEP, "server", 4), _cpu(_STEP, "worker", 15)),
    _all_of(
        _FIVE,
        Condition("p50 ≤ 2 ms", _of(_FIVE, "p50_ms"), _just(2), at_most=True),
        beside=Peers(_FIVE, _FIVE, "p50_ms"),
    ),
    _all_of(_FIVES, _multiple(_FIVES, 10, "Restate", _of(f"restate, {_FIVES}")), beside=Peers(_FIVES, _FIVES)),
    _all_of(
        _DURABLE_CALL,
        Condition(
            "server ≤ two plain commands and a step", _of(_DURABLE_CALL, "server_us"), _and_a_step(_PLAIN_CALL), at_most=True
        ),
    ),
    _all_of(
        _CALLING,
        Condition(
            "server ≤ two plain commands and a step", _of(_CALLING, "server_us"), _and_a_step(_PLAIN_CALLING), at_most=True
        ),
    ),
    _all_of(_WAITS, _bytes(_WAITS, 1000)),
    _all_of(
        _PAGES,
        Condition("p95 of the slowest page ≤ 150 ms", _of(_PAGES, "slowest_p95_ms"), _just(150), at_most=True),
        Condition("200 open pages ≤ 2 % of a processor of the server", _of(_PAGES, "open_pages_percent"), _just(2), at_most=True),
    ),
    _all_of(_OVER_HTTP, _rate(_OVER_HTTP, 3_000), _cpu(_OVER_HTTP, "client", 330)),
    _all_of(
        _CALL_OVER_HTTP,
        Condition(
            "p50 ≤ 1.5 ms above the bus's own", _of(_CALL_OVER_HTTP, "p50_ms"), _more(1.5, _of(_CALL, "p50_ms")), at_most=True
        ),
    ),
    _all_of(_ONCE, _multiple(_ONCE, 0.5, "a bare UPDATE", _of(_BARE))),
    _all_of(_IN_BATCHES, _multiple(_IN_BATCHES, 10, "one at a time", _of(_ALONE))),
    _all_of(_MANY_IN_BATCHES, _multiple(_MANY_IN_BATCHES, 3, "one at a time", _of(_SHARED))),
    _all_of(_RELAYED, _rate(_RELAYED, 10_000), _multiple(_RELAYED, 0.5, "the loop", _of(_LOOP))),
    _all_of(_ADDING, _multiple(_ADDING, 0.65, "with an INSERT alone", _of(_INSERTING))),
    _all_of(_INBOX_BATCH, _multiple(_INBOX_BATCH, 10, "single ones", _of(_INBOX_SINGLE))),
)

_KEPT: tuple[Target, ...] = (
    _all_of("five million queued", *_growth("backlog")),
    _all_of(_SHARED, _multiple(_SHARED, 8, "the best Python peer", _best("drain", python=True))),
    _all_of(
        _PAIR,
        _multiple(_PAIR, 0.95, "one worker", _of(_SHARED)),
        Condition(
            "worker µs ≤ 1.1 × one worker's",
            _of(_PAIR, "worker_us"),
            _times(1.1, _of(_SHARED, "worker_us")),
            at_most=True,
        ),
    ),
    _all_of(_BATCHES, _multiple(_BATCHES, 4, "bullmq's addBulk", _of("bullmq, fill"))),
    _all_of(_CALLS, _multiple(_CALLS, 4, "the best peer", _best(_CALLS))),
    _all_of(_WAKE_UP, Condition("p99 ≤ 5 ms", _of(_WAKE_UP, "p99_ms"), _just(5), at_most=True)),
    _all_of(
        "memory, lanes",
        Condition(
            "≤ 1.5 × a bare stream entry",
            _of("memory, lanes", "bytes_each"),
            _times(1.5, _of("memory, bare stream entry", "bytes_each")),
            at_most=True,
        ),
    ),
    _all_of(_TEN_BYTES, _bytes(_TEN_BYTES, 500)),
    _all_of("a dedup mark", _bytes("memory, lanes", 100, "mark_bytes")),
)

TARGETS = (*_AHEAD, *_KEPT)

SPARK = (
    _all_of(
        FULL_SERVICE,
        _multiple(FULL_SERVICE, 1.5, "foreachPartition with pipelined XADD", _of(BY_HAND)),
        _multiple(FULL_SERVICE, 0.75, "packed Arrow without service", _of(BARE_ARROW)),
    ),
)
"""Of rows a second; meant for 200,000 rows."""
