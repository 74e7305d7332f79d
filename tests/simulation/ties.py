"""The history of commands of several entities: what was sent, and each run."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Tie", "TieRun", "Ties"]


@dataclass(slots=True)
class Tie:
    """A command that was, or may be, accepted."""

    tag: str
    entities: tuple[str, ...]
    invoked: float
    acked: float | None = None
    replays: int = 0
    discarded: bool = False
    """Discarded, cancelled or purged, or perhaps."""


@dataclass(slots=True)
class TieRun:
    """A run of its handler."""

    tag: str
    entities: tuple[str, ...]
    fence: int
    how: str = ""


@dataclass(slots=True)
class Ties:
    """All of a seed."""

    sent: dict[str, Tie] = field(default_factory=dict[str, Tie])
    runs: list[TieRun] = field(default_factory=list[TieRun])
