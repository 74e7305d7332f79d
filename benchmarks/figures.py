"""From samples to figures: medians and spread, per case and metric. Values in, values out."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

__all__ = ["Figure", "Figures", "Sample", "figures_of", "from_json", "to_json"]

Sample = Mapping[str, float]
"""What one run of one case measured, by metric."""

Figures = dict[str, dict[str, "Figure"]]
"""By case, by metric."""

_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Figure:
    """Several runs of one metric.

    Attributes:
        median: Of the samples.
        low: The smallest.
        high: The largest.
        samples: In the order in which they were taken.
    """

    median: float
    low: float
    high: float
    samples: tuple[float, ...]

    @classmethod
    def of(cls, samples: Sequence[float]) -> Self:
        kept = tuple(round(sample, _DIGITS) for sample in samples)
        return cls(round(statistics.median(kept), _DIGITS), min(kept), max(kept), kept)


def figures_of(samples: Mapping[str, Sequence[Sample]]) -> Figures:
    """Return the figures of all cases; a metric that some runs lack uses the runs that have it."""
    return {case: _figures(taken) for case, taken in samples.items() if taken}


def _figures(taken: Sequence[Sample]) -> dict[str, Figure]:
    metrics = dict.fromkeys(metric for sample in taken for metric in sample)
    return {metric: Figure.of([sample[metric] for sample in taken if metric in sample]) for metric in metrics}


def to_json(figures: Figures) -> dict[str, Any]:
    """Return it as JSON has it."""
    return {
        case: {metric: {"median": figure.median, "samples": list(figure.samples)} for metric, figure in metrics.items()}
        for case, metrics in figures.items()
    }


def from_json(data: Mapping[str, Any]) -> Figures:
    """Read what `to_json` returned."""
    return {case: {metric: Figure.of(found["samples"]) for metric, found in metrics.items()} for case, metrics in data.items()}
