"""What follows when a worker process ends: decisions of the supervisor, as functions from values to values."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from command_bus.cli.process.options import ExitCode

__all__ = ["Ended", "Pause", "Verdict", "combined", "verdict"]

_FIRST, _LAST = 0.1, 30.0
_LONG_LIFE = 10.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended.

    Attributes:
        code: Its exit code; negative for the signal that ended it.
        ready: Whether it had begun to run commands.
    """

    code: int
    ready: bool

    def story(self) -> str:
        """For the log: `was ended by SIGKILL`."""
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        try:
            return f"was ended by {signal.Signals(-self.code).name}"
        except ValueError:  # a real-time signal
            return f"was ended by signal {-self.code}"


class Verdict(Enum):
    """What to do about the place of a process that ended."""

    DONE = auto()
    RESTART = auto()
    GIVE_UP = auto()


def verdict(ended: Ended, *, stopping: bool, any_ready: bool, burst: bool) -> Verdict:
    """What to do now.

    Args:
        ended: The process.
        stopping: It was asked to stop.
        any_ready: Some process has begun to run commands. Until then a failure is taken for one of the application or of its
            settings, which no restart mends.
        burst: It may end by itself when nothing is left to do.
    """
    if stopping or (burst and ended.ready and ended.code in (ExitCode.FINISHED, ExitCode.CUT_SHORT)):
        return Verdict.DONE
    return Verdict.RESTART if any_ready else Verdict.GIVE_UP


def combined(ended: Iterable[Ended]) -> ExitCode:
    """The exit code for all processes together, once they were asked to stop. One that had not begun had nothing to finish."""
    codes = {each.code for each in ended if each.ready}
    if any(code == ExitCode.CUT_SHORT or code < 0 or code > 128 for code in codes):  # lost with its process is cut short, too
        return ExitCode.CUT_SHORT
    return ExitCode.NOT_STARTED if codes - {ExitCode.FINISHED} else ExitCode.FINISHED


class Pause:
    """Seconds until a process is started again: longer each time, unless the last one lived for a while."""

    def __init__(self) -> None:
        self._next = _FIRST

    def after(self, lived: float) -> float:
        """The pause after a process that lived so many seconds."""
        if lived >= _LONG_LIFE:
            self._next = _FIRST
        pause, self._next = self._next, min(self._next * 2, _LAST)
        return pause
