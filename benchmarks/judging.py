"""Targets and the verdicts on them: pure functions decide from a run's figures which are met.

A condition compares one figure of ours with a limit that is made of figures of the same run: a peer's, the floor's, or a constant. A
target has one or several ways, each of which is conditions that must all hold; it is met if one of its ways is. What was not
measured is neither met nor missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from benchmarks.figures import Figure

__all__ = ["Condition", "Figured", "Finding", "Measured", "Missing", "Peers", "Run", "Target", "Verdict", "asked", "judged"]

Measured = Mapping[str, Mapping[str, Figure]]


class Missing(Exception):
    """A figure that the run does not have."""


class Run:
    """The medians of a run, by case and metric."""

    def __init__(self, figures: Measured, peers: Mapping[str, str]) -> None:
        self._figures, self._peers = figures, peers

    def __call__(self, case: str, metric: str = "per_s") -> float:
        found = self._figures.get(case, {}).get(metric)
        if found is None:
            raise Missing(f"{case}: {metric}")
        return found.median

    def peers(self, case: str, metric: str = "per_s", *, python: bool = False) -> dict[str, float]:
        """Return the figures of the peers that have them, in their case `NAME, case`.

        Raises:
            Missing: None has one.
        """
        names = [name for name, language in self._peers.items() if language == "Python" or not python]
        values = {
            name: figures[metric].median for name in names if metric in (figures := self._figures.get(f"{name}, {case}", {}))
        }
        if not values:
            raise Missing(f"every peer's {case}: {metric}")
        return values


Figured = Callable[[Run], float]
"""A figure, or what is made of some."""


class _Asked(Run):
    """A run that has every figure, and notes which were asked for."""

    def __init__(self, peers: Iterable[str]) -> None:
        super().__init__({}, dict.fromkeys(peers, ""))
        self.cases: set[str] = set()

    def __call__(self, case: str, metric: str = "per_s") -> float:
        self.cases.add(case)
        return 1.0

    def peers(self, case: str, metric: str = "per_s", *, python: bool = False) -> dict[str, float]:
        self.cases.update(f"{name}, {case}" for name in self._peers)
        return dict.fromkeys(self._peers, 1.0) or {"": 1.0}


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison.

    Attributes:
        text: As the table of targets has it.
        ours: Our figure.
        limit: What it must reach, or must not exceed.
        at_most: Whether the limit is an upper one.
    """

    text: str
    ours: Figured
    limit: Figured
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class Peers:
    """The name of a target's case where peers do the same.

    Attributes:
        ours: Our case.
        theirs: Theirs, without the name of the peer.
        metric: What is compared.
    """

    ours: str
    theirs: str
    metric: str = "per_s"

    def ratios(self, run: Run) -> dict[str, float]:
        """Return how many times better we are than each peer of the run, the best peer first; empty if nothing was measured."""
        try:
            ours, theirs = run(self.ours, self.metric), run.peers(self.theirs, self.metric)
        except Missing:
            return {}
        lower = self.metric.endswith("_ms")
        ratios = {name: _times(value, ours) if lower else _times(ours, value) for name, value in theirs.items()}
        return dict(sorted(ratios.items(), key=lambda item: item[1]))


@dataclass(frozen=True, slots=True)
class Target:
    """One row of the table.

    Attributes:
        case: What it is about.
        ways: All conditions of one of them must hold.
        beside: With what of the peers it is compared.
    """

    case: str
    ways: tuple[tuple[Condition, ...], ...]
    beside: Peers | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding about a condition.

    Attributes:
        condition: Which.
        ours: Our figure; None if something was not measured.
        limit: The figure that it was compared with.
        missing: The figure that was not measured.
    """

    condition: Condition
    ours: float | None = None
    limit: float | None = None
    missing: str = ""

    @property
    def ratio(self) -> float | None:
        """The factor by which it is better than asked: 1 is just met, 2 is twice as good."""
        if self.ours is None or self.limit is None:
            return None
        return _times(self.limit, self.ours) if self.condition.at_most else _times(self.ours, self.limit)

    @property
    def met(self) -> bool | None:
        """Whether it holds; None if it is not known."""
        return None if self.ratio is None else self.ratio >= 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a target.

    Attributes:
        target: Which.
        ways: What was found, by way and condition.
        beside: How many times better we are than each peer of the run, the best peer first.
    """

    target: Target
    ways: tuple[tuple[Finding, ...], ...]
    beside: Mapping[str, float]

    @property
    def findings(self) -> list[Finding]:
        """The findings of all ways."""
        return [finding for way in self.ways for finding in way]

    @property
    def ratio(self) -> float | None:
        """The least ratio of its best way, of what is known; None if nothing is."""
        ratios = [[finding.ratio for finding in way if finding.ratio is not None] for way in self.ways]
        return max((min(way) for way in ratios if way), default=None)

    @property
    def met(self) -> bool | None:
        """Whether one way holds; None if that depends on what was not measured."""
        ways = [_all(finding.met for finding in way) for way in self.ways]
        return True if True in ways else None if None in ways else False


def asked(targets: tuple[Target, ...], peers: Iterable[str]) -> set[str]:
    """Return the names of the cases that the targets compare; some peers may not have all of theirs."""
    run = _Asked(peers)
    for condition in (condition for target in targets for way in target.ways for condition in way):
        condition.ours(run)
        condition.limit(run)
    for beside in (target.beside for target in targets if target.beside):
        beside.ratios(run)
    return run.cases


def judged(targets: tuple[Target, ...], figures: Measured, peers: Mapping[str, str]) -> list[Verdict]:
    """Return the verdict on every target; `peers` has the language of each."""
    run = Run(figures, peers)
    return [
        Verdict(
            target,
            tuple(tuple(_found(condition, run) for condition in way) for way in target.ways),
            target.beside.ratios(run) if target.beside else {},
        )
        for target in targets
    ]


def _found(condition: Condition, run: Run) -> Finding:
    try:
        return Finding(condition, condition.ours(run), condition.limit(run))
    except Missing as missing:
        return Finding(condition, missing=str(missing))


def _all(answers: Iterable[bool | None]) -> bool | None:
    """Return whether all hold: one that does not decides, one that is not known leaves it open."""
    found = list(answers)
    return False if False in found else None if None in found else True


def _times(better: float, worse: float) -> float:
    return better / worse if worse else float("inf")
