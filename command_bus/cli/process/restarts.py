"""Decisions of the supervisor about processes that ended, as pure functions."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from command_bus.cli.exit_codes import WorkerExitCode

_FIRST, _LAST = 0.1, 30.0  # seconds between restarts
_LONG_LIFE = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The end of a process.

    Attributes:
        code: Its exit code; minus the signal's number if a signal ended it.
        ready: Whether it had begun to run commands.
    """

    code: int
    ready: bool

    def describe(self) -> str:
        """Return the end in words, such as `was ended by SIGKILL`."""
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        try:
            return f"was ended by {signal.Signals(-self.code).name}"
        except ValueError:  # a real-time signal
            return f"was ended by signal {-self.code}"


class RestartDecision(Enum):
    """Actions after a process ended."""

    DONE = auto()
    RESTART = auto()
    GIVE_UP = auto()


def decide_restart(ended: ProcessEnd, *, stopping: bool, any_ready: bool, burst: bool) -> RestartDecision:
    """Decide whether to restart a process that ended.

    Args:
        ended: The end of the process.
        stopping: Whether the processes were asked to stop.
        any_ready: Whether any process has begun to run commands. Until then the application or its settings are considered broken, which
            a restart does not repair.
        burst: Whether processes may end by themselves when no work is left.
    """
    if stopping or (burst and ended.ready and ended.code in (WorkerExitCode.FINISHED, WorkerExitCode.CUT_SHORT)):
        return RestartDecision.DONE
    return RestartDecision.RESTART if any_ready else RestartDecision.GIVE_UP


def combined_exit_code(ended: Iterable[ProcessEnd]) -> WorkerExitCode:
    """Return one exit code for all processes, once they were asked to stop. A process that had not begun had nothing to finish."""
    codes = {each.code for each in ended if each.ready}
    if any(
        code == WorkerExitCode.CUT_SHORT or code < 0 or code > 128 for code in codes
    ):  # handlers of a killed process were cut short, too
        return WorkerExitCode.CUT_SHORT
    return WorkerExitCode.NOT_STARTED if codes - {WorkerExitCode.FINISHED} else WorkerExitCode.FINISHED


class RestartBackoff:
    """Exponential backoff of restarts; it starts again after a process that lived for a while."""

    def __init__(self) -> None:
        self._next = _FIRST

    def delay_after(self, lifetime: float) -> float:
        """Return the seconds to wait before a restart.

        Args:
            lifetime: Seconds that the last process lived.
        """
        if lifetime >= _LONG_LIFE:
            self._next = _FIRST
        pause, self._next = self._next, min(self._next * 2, _LAST)
        return pause
