"""The report of a proof: named figures, and claims that hold or do not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

__all__ = ["Proof"]


@dataclass
class Proof:
    """Prints figures and claims as it goes.

    Attributes:
        failed: The claims that do not hold.
    """

    failed: list[str] = field(default_factory=list[str])

    def figure(self, name: str, value: Any) -> None:
        """Print a measurement."""
        print(f"  {name:<44} {value:,}" if isinstance(value, int | float) else f"  {name:<44} {value}", flush=True)

    def claim(self, text: str, holds: Any, *evidence: Any) -> None:
        """Check a claim."""
        shown = ", ".join(map(str, evidence))
        print(f"  {'ok ' if holds else 'NOT'} {text}{f': {shown}' if shown else ''}", flush=True)
        if not holds:
            self.failed.append(text)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measure how long a block takes."""
        began = monotonic()
        yield
        self.figure(f"{name} [s]", round(monotonic() - began, 1))
