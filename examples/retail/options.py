"""Options of the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run.

    Attributes:
        customers: Only the purchases of so many, chosen by chance; None: of all.
        seed: Chooses them.
        url: The server; None takes the environment's or an embedded one.
        out: The folder for logs and pictures.
    """

    customers: int | None = None
    seed: int = 1997
    workers: int = 2
    concurrency: int = 64
    url: str | None = None
    out: Path = Path("examples/retail/out")
