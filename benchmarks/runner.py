"""Runs the chosen cases in turns: A B C, A B C, so that the machine's state affects all alike and the spread shows it."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks import machine
from benchmarks.case import Case
from benchmarks.figures import Figures, Sample, figures_of, from_json, to_json
from benchmarks.ground import Ground
from benchmarks.programs import ProgramFailed

__all__ = ["Results", "run"]


@dataclass(slots=True)
class Results:
    """A run: figures, and what they were measured on.

    Attributes:
        figures: By case and metric.
        failed: Why, by case; such a case has the figures of the runs before.
        about: Machine, versions, server, load, options.
        peers: The language of each peer.
    """

    figures: Figures
    failed: dict[str, str] = field(default_factory=dict[str, str])
    about: dict[str, Any] = field(default_factory=dict[str, Any])
    peers: dict[str, str] = field(default_factory=dict[str, str])

    def to_json(self) -> dict[str, Any]:
        """Return it as the file has it."""
        return {"about": self.about, "peers": self.peers, "failed": self.failed, "cases": to_json(self.figures)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Results:
        """Read what `to_json` returned."""
        return cls(from_json(data["cases"]), data["failed"], data["about"], data["peers"])


def run(ground: Ground, cases: list[Case], runs: int) -> Results:
    """Measure every case `runs` times; one that fails is reported and left out of the later turns. Ctrl-C ends with the results so far."""
    samples: dict[str, list[Sample]] = {case.name: [] for case in cases}
    failed: dict[str, str] = {}
    loads = [machine.load()]
    try:
        _take_turns(ground, cases, runs, samples, failed, loads)
    except KeyboardInterrupt:
        _tell("interrupted: the figures are of what was measured")
    ground.clear()
    about = {
        "machine": machine.machine(),
        "versions": machine.versions() | {"server": ground.server_version()},
        "load": [value for value in loads if value is not None],
        "runs": max((len(taken) for taken in samples.values()), default=0),
        "scale": ground.scale,
    }
    return Results(figures_of(samples), failed, about)


def _take_turns(
    ground: Ground,
    cases: list[Case],
    runs: int,
    samples: dict[str, list[Sample]],
    failed: dict[str, str],
    loads: list[float | None],
) -> None:
    for number in range(runs):
        due = [case for case in cases if number < case.most and case.name not in failed]
        for place, case in enumerate(due, 1):
            where = f"run {number + 1} of {runs}, {place:>2} of {len(due)}"
            ground.clear()
            began = time.monotonic()
            try:
                samples[case.name].append(case.measure(ground))
            except ProgramFailed as error:
                failed[case.name] = str(error)
                _tell(f"{where}: {case.name}: FAILED: {error}")
            else:
                _tell(f"{where}: {case.name} ({time.monotonic() - began:.1f} s)")
        loads.append(machine.load())


def _tell(text: str) -> None:
    sys.stderr.write(f"benchmarks: {text}\n")
    sys.stderr.flush()
