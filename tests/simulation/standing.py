"""The history of commands of several entities: who stands in which lines, and who ran there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from command_bus.testing.simulated.store import Store
from tests.simulation.several_states import broken_lines

__all__ = ["LineRun", "Stander", "Standing", "tag_of"]

_AWAKE_WITHIN = 8.0
"""Seconds in which a command that heads all its lines is made ready: a resume of many lines takes several requests."""


def tag_of(letter: Any) -> str:
    """Return the tag of the command of a letter: a part of one over several shards has another id than the whole."""
    return str((letter.payload or {}).get("tag", letter.command_id))


@dataclass(slots=True)
class Stander:
    """A command that stands in the lines of its entities; plain ones have one."""

    tag: str
    lines: tuple[str, ...]
    """Mailboxes, its home first, each once."""
    process: str
    invoked: float
    kind: str = "dispatch"
    """dispatch, batch, delayed"""
    most: int = 3
    """Attempts that it has."""
    batch: int = 0
    position: int = 0
    tries: int = 1
    acked: float | None = None
    refused: str = ""
    removable: bool = False
    """Perhaps taken out of its lines by somebody."""
    removed: float | None = None
    """When somebody learned that it was."""
    replays: int = 0
    rejoined: bool = False
    """It was replayed at the end of its lines."""
    first: tuple[str, ...] = ()
    """Those of its lines in which it stands from its acceptance on, in the order of its fields; into others it comes later."""
    last: tuple[str, ...] = ()
    """Those of its lines where it runs; its home is the first of them."""

    def __post_init__(self) -> None:
        self.first, self.last = self.first or self.lines, self.last or self.lines


@dataclass(slots=True)
class LineRun:
    """One start of such a command."""

    tag: str
    fence: int
    attempt: int
    worker: str
    process: Any
    began: float
    ended: float | None = None
    how: str = ""
    """returned, failed, rejected, cancelled, put off"""


@dataclass(slots=True)
class Standing:
    """The history of a seed's commands of several entities."""

    standers: dict[str, Stander] = field(default_factory=dict[str, Stander])
    runs: list[LineRun] = field(default_factory=list[LineRun])
    pauses: list[tuple[str, float, float]] = field(default_factory=list[tuple[str, float, float]])
    """A mailbox, or the beginning of those of a type; from the acknowledged pause until the resume was asked for."""
    aborts: list[tuple[str, float, float]] = field(default_factory=list[tuple[str, float, float]])
    letters: set[str] = field(default_factory=set[str])
    broken: list[tuple[float, str, str]] = field(default_factory=list[tuple[float, str, str]])
    """What was wrong on the server after a script."""
    _overlooked: dict[tuple[bytes, str], float] = field(default_factory=dict[tuple[bytes, str], float])
    """Since when commands head all their lines, and nobody is told."""

    def look(self, store: Store, prefix: bytes, now: float) -> None:
        """Look at the lines of a shard after a script ran there."""
        found, overlooked = broken_lines(store, prefix)
        self.broken += [(now, entity, text) for entity, text in found]
        for key in [key for key in self._overlooked if key[0] == prefix and key[1] not in overlooked]:
            del self._overlooked[key]
        for home in overlooked:
            since = self._overlooked.setdefault((prefix, home), now)
            if now > since + _AWAKE_WITHIN:
                self.broken.append(
                    (now, home, f"its command heads all its lines since {since - 1000:.3f} s, and is not made ready")
                )

    def timeline(self, entity: str) -> Iterator[tuple[float, str]]:
        """Yield the runs in a line, each with its time."""
        for run in self.runs:
            if entity in self.standers[run.tag].lines:
                who = f"{run.process} {run.worker[:4]}"
                yield run.began, f"{who}: starts {run.tag}, attempt {run.attempt}, fence {run.fence}"
                if run.ended is not None:
                    yield run.ended, f"{who}: {run.tag} {run.how} (attempt {run.attempt})"

    def decided(self, letter: Any, *, replay: bool) -> None:
        """Note what an operator does with the letter of a command that parks its lines."""
        if (stander := self.standers.get(tag_of(letter))) is not None:
            stander.replays += replay
            stander.removable = stander.removable or not replay
