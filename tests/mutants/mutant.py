"""A deliberate breakage."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SIMULATION", "Mutant"]

SIMULATION = "simulation"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A breakage: in this file of the package, `old` becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    seen_by: str = SIMULATION
    more: tuple[tuple[str, str, str], ...] = ()
    """Further replacements: where two safeguards cover for one another, both must go."""
