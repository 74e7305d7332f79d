"""`WorkerState`: whether a worker takes work. Its handlers ask for each command, so it is plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WorkerState:
    """The state of one worker.

    Attributes:
        paused: Whether it takes no work until it is resumed.
        stopping: Whether it is about to leave.
    """

    paused: bool = False
    stopping: bool = False

    def is_stopping(self) -> bool:
        """Return whether it is about to leave."""
        return self.stopping

    def is_leaving(self) -> bool:
        """Return whether it gives its entities up: it is about to leave, or paused."""
        return self.stopping or self.paused
