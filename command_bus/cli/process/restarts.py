"""What follows when a worker process ends: decisions of the supervisor, as functions from values to values."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from command_bus.cli.exit_codes import WorkerExitCode

__all__ = ["ProcessEnd", "RestartBackoff", "RestartDecision", "combined_exit_code", "decide_restart"]

_FIRST, _LAST = 0.1, 30.0
_LONG_LIFE = 10.0


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a process ended.

    Attributes:
        code: Its exit code; negative for the signal that ended it.
        ready: Whether it had begun to run commands.
    """

    code: int
    ready: bool

    def describe(self) -> str:
        """For the log: `was ended by SIGKILL`."""
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        try:
            return f"was ended by {signal.Signals(-self.code).name}"
        except ValueError:  # a real-time signal
            return f"was ended by signal {-self.code}"


class RestartDecision(Enum):
    """What to do about the place of a process that ended."""

    DONE = auto()
    RESTART = auto()
    GIVE_UP = auto()


def decide_restart(ended: ProcessEnd, *, stopping: bool, any_ready: bool, burst: bool) -> RestartDecision:
    """What to do now.

    Args:
        ended: The process.
        stopping: It was asked to stop.
        any_ready: Some process has begun to run commands. Until then a failure is taken for one of the application or of its
            settings, which no restart mends.
        burst: It may end by itself when nothing is left to do.
    """
    if stopping or (burst and ended.ready and ended.code in (WorkerExitCode.FINISHED, WorkerExitCode.CUT_SHORT)):
        return RestartDecision.DONE
    return RestartDecision.RESTART if any_ready else RestartDecision.GIVE_UP


def combined_exit_code(ended: Iterable[ProcessEnd]) -> WorkerExitCode:
    """The exit code for all processes together, once they were asked to stop. One that had not begun had nothing to finish."""
    codes = {each.code for each in ended if each.ready}
    if any(
        code == WorkerExitCode.CUT_SHORT or code < 0 or code > 128 for code in codes
    ):  # lost with its process is cut short, too
        return WorkerExitCode.CUT_SHORT
    return WorkerExitCode.NOT_STARTED if codes - {WorkerExitCode.FINISHED} else WorkerExitCode.FINISHED


class RestartBackoff:
    """Seconds until a process is started again: longer each time, unless the last one lived for a while."""

    def __init__(self) -> None:
        self._next = _FIRST

    def delay_after(self, lifetime: float) -> float:
        """The pause after a process that lived so many seconds."""
        if lifetime >= _LONG_LIFE:
            self._next = _FIRST
        pause, self._next = self._next, min(self._next * 2, _LAST)
        return pause
