"""The project's targets: a pure function decides from a run's figures which are met.

A target compares one figure of ours with a limit that is made of figures of the same run: a peer's, the floor's, or a constant. A
target without its figures is neither met nor missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.cases.growth import ROWS
from benchmarks.figures import Figure

__all__ = ["TARGETS", "Target", "Verdict", "verdicts"]

Measured = Mapping[str, Mapping[str, Figure]]


class _Missing(Exception):
    """A figure that the run does not have."""


class Run:
    """The medians of a run, by case and metric."""

    def __init__(self, figures: Measured, peers: Mapping[str, str]) -> None:
        self._figures, self._peers = figures, peers

    def __call__(self, case: str, metric: str = "per_s") -> float:
        found = self._figures.get(case, {}).get(metric)
        if found is None:
            raise _Missing(f"{case}: {metric}")
        return found.median

    def best_peer(self, case: str, metric: str = "per_s", *, python: bool = False, lowest: bool = False) -> float:
        """Return the best figure of all peers in their case `NAME, case`."""
        names = [name for name, language in self._peers.items() if language == "Python" or not python]
        values = [figures[metric].median for name in names if metric in (figures := self._figures.get(f"{name}, {case}", {}))]
        if not values:
            raise _Missing(f"no peer's {case}: {metric}")
        return min(values) if lowest else max(values)


@dataclass(frozen=True, slots=True)
class Target:
    """One promise of the table.

    Attributes:
        case: What it is about.
        text: As the table has it.
        ours: Our figure.
        limit: What it must reach, or must not exceed.
        at_most: Whether the limit is an upper one.
    """

    case: str
    text: str
    ours: Callable[[Run], float]
    limit: Callable[[Run], float]
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a target.

    Attributes:
        target: Which.
        ours: Our figure; None if something was not measured.
        limit: The figure that it was compared with.
        missing: Figures that were not measured.
    """

    target: Target
    ours: float | None = None
    limit: float | None = None
    missing: str = ""

    @property
    def ratio(self) -> float | None:
        """How much better than the target: 1 is just met, 2 is twice as good."""
        if self.ours is None or self.limit is None:
            return None
        better, worse = (self.limit, self.ours) if self.target.at_most else (self.ours, self.limit)
        return better / worse if worse else float("inf")

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None if it is not known."""
        return None if self.ratio is None else self.ratio >= 1


def verdicts(figures: Measured, peers: Mapping[str, str]) -> list[Verdict]:
    """Return the verdict on every target; `peers` has the language of each."""
    run = Run(figures, peers)
    return [_judged(target, run) for target in TARGETS]


def _judged(target: Target, run: Run) -> Verdict:
    try:
        return Verdict(target, target.ours(run), target.limit(run))
    except _Missing as missing:
        return Verdict(target, missing=str(missing))


def _of(case: str, metric: str = "per_s") -> Callable[[Run], float]:
    return lambda run: run(case, metric)


def _times(factor: float, value: Callable[[Run], float]) -> Callable[[Run], float]:
    return lambda run: factor * value(run)


def _best(case: str, metric: str = "per_s", *, python: bool = False, lowest: bool = False) -> Callable[[Run], float]:
    return lambda run: run.best_peer(case, metric, python=python, lowest=lowest)


def _just(value: float) -> Callable[[Run], float]:
    return lambda _run: value


def _either(*limits: Callable[[Run], float]) -> Callable[[Run], float]:
    """Return the lower limit of those that are known: reaching one of them is enough."""

    def limit(run: Run) -> float:
        known: list[float] = []
        for one in limits:
            try:
                known.append(one(run))
            except _Missing:
                continue
        if not known:
            raise _Missing("every limit")
        return min(known)

    return limit


def _floor_of_a_call(run: Run) -> float:
    return 2 * (run("floor, EVALSHA round trip", "p50_ms") + run("floor, LPUSH/BRPOP round trip", "p50_ms"))


def _change(metric: str, row: str) -> Callable[[Run], float]:
    """Return a cost at the far end of a row, as a multiple of that at its near end."""
    found = next(each for each in ROWS if each.name == row)

    def change(run: Run) -> float:
        near = run(found.case(found.sizes[0]), metric)
        if not near:
            raise _Missing(f"{metric} at the near end of {row}")
        return run(found.case(found.sizes[-1]), metric) / near

    return change


_SHARED = "drain, 1,000 entities"
_PAIR = "drain, 1,000 entities, 2 processes"
_OWN = "drain, every command its own entity"
_BATCHES = "dispatch, batches of 1,000"

_GROWTH = tuple(
    Target(f"growth of {row}", f"{step}, {where} at the far end ≤ 1.25 ×", _change(f"{step}_{where}_us", row), _just(1.25), True)
    for row in ("backlog", "entities")
    for step in ("dispatch", "drain")
    for where in ("redis", "python")
)

TARGETS: tuple[Target, ...] = (
    Target(_SHARED, "≥ 3 × bullmq", _of(_SHARED), _times(3, _of("bullmq, drain"))),
    Target(_SHARED, "≥ 8 × the best Python peer", _of(_SHARED), _times(8, _best("drain", python=True))),
    Target(_SHARED, "≤ 15 µs worker CPU", _of(_SHARED, "worker_us"), _just(15), at_most=True),
    Target(_SHARED, "≤ 8 µs server CPU", _of(_SHARED, "server_us"), _just(8), at_most=True),
    Target(_OWN, "≥ 2 × bullmq", _of(_OWN), _times(2, _of("bullmq, drain"))),
    Target(_OWN, "≤ 14 µs server CPU", _of(_OWN, "server_us"), _just(14), at_most=True),
    Target(_PAIR, "≥ 0.95 × one worker", _of(_PAIR), _times(0.95, _of(_SHARED))),
    Target(
        _PAIR, "worker CPU ≤ 1.1 × one worker's", _of(_PAIR, "worker_us"), _times(1.1, _of(_SHARED, "worker_us")), at_most=True
    ),
    Target(
        "dispatch, one by one",
        "≥ 0.9 × an EVALSHA round trip",
        _of("dispatch, one by one"),
        _times(0.9, _of("floor, EVALSHA round trip")),
    ),
    Target(
        "dispatch, 500 concurrent",
        "≥ 100,000/s or ≥ 0.5 × pipelined XADD",
        _of("dispatch, 500 concurrent"),
        _either(_just(100_000), _times(0.5, _of("floor, XADD, pipelines of 500"))),
    ),
    Target(_BATCHES, "≥ 150,000/s", _of(_BATCHES), _just(150_000)),
    Target(_BATCHES, "≥ 4 × bullmq's addBulk", _of(_BATCHES), _times(4, _of("bullmq, fill"))),
    Target(
        "call, 1 in flight",
        "p50 ≤ 2 × (EVALSHA + LPUSH/BRPOP round trip)",
        _of("call, 1 in flight", "p50_ms"),
        _floor_of_a_call,
        at_most=True,
    ),
    Target(
        "call, 1 in flight",
        "p50 lower than every peer's",
        _of("call, 1 in flight", "p50_ms"),
        _best("call, 1 in flight", "p50_ms", lowest=True),
        at_most=True,
    ),
    Target("call, 50 in flight", "≥ 4 × the best peer", _of("call, 50 in flight"), _times(4, _best("call, 50 in flight"))),
    Target("wake-up of an idle worker", "p99 ≤ 5 ms", _of("wake-up of an idle worker", "p99_ms"), _just(5), at_most=True),
    Target(
        "memory, lanes",
        "≤ 1.5 × a bare stream entry",
        _of("memory, lanes", "bytes_each"),
        _times(1.5, _of("memory, bare stream entry", "bytes_each")),
        at_most=True,
    ),
    Target(
        "memory, per_entity, 10 per entity, stock server",
        "≤ 500 bytes",
        _of("memory, per_entity, 10 per entity, stock server", "bytes_each"),
        _just(500),
        at_most=True,
    ),
    Target("memory, lanes", "a dedup mark ≤ 100 bytes", _of("memory, lanes", "mark_bytes"), _just(100), at_most=True),
    *_GROWTH,
)
