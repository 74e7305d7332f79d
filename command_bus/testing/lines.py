"""`Lines`: calls a function before each line of some files, while handlers run.

From Python 3.12 by `sys.monitoring`, beside debuggers and coverage. Before that there is one trace function per thread: ours is set while an
attempt runs, and gives way to the one that was there. An error of the function is raised at the line. Python then ends tracing of the thread,
so a profile function raises it again wherever the frame goes on, in a `finally` for example, and begins again in the frames around it.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections.abc import Callable, Container
from types import CodeType, FrameType
from typing import Any

import command_bus

_OTHERS = (command_bus.__path__[0], sysconfig.get_path("stdlib"), "<")


class Lines:
    """The lines of some files."""

    def start(self) -> None:
        """Begin, for all threads."""

    def enter(self) -> None:
        """Begin for this thread, until as many `leave` as there are of these."""

    def go_on(self) -> None:
        """Begin again where Python has ended it: after a `RecursionError`, say."""

    def leave(self) -> None:
        """End what `enter` began."""

    def stop(self) -> None:
        """End, and leave nothing behind."""


class MonitoredLines(Lines):
    """`Lines` from Python 3.12 on.

    Args:
        files: Names of the files, as in their code objects.
        before: Is called with the frame that is about to run a line.
    """

    def __init__(self, files: Container[str], before: Callable[[FrameType], None]) -> None:
        self._files = files
        self._before = before
        self._seen: set[CodeType] = set()
        self._monitoring: Any = vars(sys)["monitoring"]

    @staticmethod
    def free_tool() -> int | None:
        """Return a number that no other tool has: first the two without a meaning; None if there is none."""
        monitoring = vars(sys).get("monitoring")
        return (
            None if monitoring is None else next((tool for tool in (4, 3, 2, 5, 1, 0) if monitoring.get_tool(tool) is None), None)
        )

    def start(self) -> None:
        monitoring, self._tool = self._monitoring, self.free_tool()
        monitoring.use_tool_id(self._tool, "command_bus")
        monitoring.register_callback(self._tool, monitoring.events.PY_START, self._begins)
        monitoring.register_callback(self._tool, monitoring.events.LINE, self._line)
        monitoring.set_events(self._tool, monitoring.events.PY_START)
        monitoring.restart_events()  # events that an earlier tool of this number has switched off

    def stop(self) -> None:
        for code in self._seen:
            self._monitoring.set_local_events(self._tool, code, 0)
        self._monitoring.set_events(self._tool, 0)
        self._monitoring.free_tool_id(self._tool)

    def _begins(self, code: CodeType, _: int) -> Any:
        if code.co_filename in self._files:
            self._seen.add(code)
            self._monitoring.set_local_events(self._tool, code, self._monitoring.events.LINE)
        return self._monitoring.DISABLE

    def _line(self, *_: object) -> None:
        self._before(sys._getframe(1))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the frame that runs the line


class TracedLines(Lines):
    """`Lines` before Python 3.12, and where all numbers of tools are taken; see `MonitoredLines`."""

    def __init__(self, files: Container[str], before: Callable[[FrameType], None]) -> None:
        self._files = files
        self._before = before
        self._entered = 0

    def start(self) -> None:
        self._in_threads = threading.gettrace()
        threading.settrace(self._calls)

    def stop(self) -> None:
        threading.settrace(self._in_threads)
        if self._entered:
            self._entered = 1
            self.leave()

    def enter(self) -> None:
        if not self._entered:
            self._was = sys.gettrace()
        self._entered += 1
        self.go_on()

    def go_on(self) -> None:
        if self._entered and sys.gettrace() != self._calls:
            sys.settrace(self._calls)

    def leave(self) -> None:
        self._entered -= 1
        if not self._entered:
            if sys.getprofile() == self._again:
                sys.setprofile(None)
            sys.settrace(self._was)

    def _calls(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace = self._lines
        return self._lines

    def _lines(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            self._try(frame)
        return self._lines

    def _again(self, frame: FrameType, event: str, _: object) -> None:
        """Begin to trace again, at the first event behind an error."""
        sys.setprofile(None)
        sys.settrace(self._calls)
        caller = frame.f_back if event == "call" and frame.f_back is not None else frame  # what it calls may be outside
        if caller.f_code.co_filename in self._files and event != "return":
            caller.f_trace = self._lines
            self._try(caller)

    def _try(self, frame: FrameType) -> None:
        try:
            self._before(frame)
        except BaseException:
            if sys.getprofile() is None:  # else a profiler runs
                sys.setprofile(self._again)
            raise


class _UsersFiles(Container[str]):
    """Every file but those of Python and of this package."""

    def __contains__(self, file: object) -> bool:
        name = str(file)
        return not name.startswith(_OTHERS) or ("site-packages" in name and not name.startswith(_OTHERS[0]))


def lines_of(files: Container[str] | None, before: Callable[[FrameType], None]) -> Lines:
    """Return the lines of these files, or of all but Python's and the bus's own, by what this Python has."""
    return (TracedLines if MonitoredLines.free_tool() is None else MonitoredLines)(
        _UsersFiles() if files is None else files, before
    )
