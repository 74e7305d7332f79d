"""The history of events: what was published, and who handled it."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["LATE", "Delivered", "News", "Story"]

LATE = "late"
"""The subscription that comes and goes: workers have its handler, and declare nothing of it."""


@dataclass(slots=True)
class Story:
    """An event that was, or may be, published."""

    tag: str
    entity: str
    process: str
    invoked: float
    acked: float | None = None
    subscriptions: tuple[str, ...] = ()
    cause: str = ""


@dataclass(slots=True)
class Delivered:
    """A run of a handler: of a subscription, or (without one) of what announces."""

    tag: str
    subscription: str
    entity: str
    fence: int
    began: float
    ended: float | None = None
    how: str = ""


@dataclass(slots=True)
class News:
    """The history of a seed's publications."""

    stories: dict[str, Story] = field(default_factory=dict[str, Story])
    runs: list[Delivered] = field(default_factory=list[Delivered])
    lives: list[tuple[float, float | None]] = field(default_factory=list[tuple[float, float | None]])
    """When putting `late` had returned, and when removing it began."""
